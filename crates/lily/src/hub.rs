//! Models by the name that they have on a hub, as `lily pull` put them into the cache.

use std::path::{Path, PathBuf};

use lily_hub::{Cache, HubError, RepoRef, Settings};

use crate::failure::UsageError;
use crate::model::is_pack;

/// The model that lily is made for.
pub(crate) const DEFAULT_REPO: &str = "mlx-community/Qwen3.6-35B-A3B-4bit";

/// Where the model of a `--model-path` is: what exists is taken as it is, a name of the cache stands
/// for its snapshot there, and anything else stays as it was typed, for the message.
pub(crate) fn locate(typed: &Path) -> PathBuf {
    in_cache(typed).unwrap_or_else(|| typed.to_owned())
}

fn in_cache(typed: &Path) -> Option<PathBuf> {
    let wanted = name(typed)?;
    let settings = Settings::from_env().ok()?;
    Some(Cache::new(settings.cache).find(&wanted)?.path)
}

/// The name on a hub that a path may be, where nothing is there.
fn name(typed: &Path) -> Option<RepoRef> {
    if typed.exists() || is_pack(typed) {
        return None;
    }
    typed.to_str()?.parse().ok()
}

/// For a path that looks like a name on a hub, `OWNER/NAME[@REV]`.
pub(crate) fn pull_hint(typed: &Path) -> String {
    let owner_is_a_folder = || typed.parent().is_some_and(Path::exists);
    match name(typed) {
        Some(wanted) if !owner_is_a_folder() => {
            format!(", and no such model in the cache; `lily pull {wanted}` fetches it")
        }
        _ => String::new(),
    }
}

/// An error of the user's own making apart from those of the hub and the way to it, with what to do.
pub(crate) fn failed(error: HubError) -> anyhow::Error {
    match error {
        HubError::Setting { .. } | HubError::Token { .. } | HubError::NoHome => {
            UsageError(error.into()).into()
        }
        HubError::Status { status: 429 | 500..=599, .. } => {
            let advice = format!("{error}; try again later");
            anyhow::Error::new(error).context(advice)
        }
        other => other.into(),
    }
}
