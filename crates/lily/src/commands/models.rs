//! `lily models`: what is in the cache.

use anyhow::Result;
use lily_hub::{Cache, CachedModel, Settings};
use serde_json::json;

use super::output::{bytes, print, print_pretty};
use crate::args::ModelsArgs;
use crate::hub;

pub(crate) fn run(args: &ModelsArgs) -> Result<()> {
    let settings = Settings::from_env().map_err(hub::failed)?;
    let cache = Cache::new(settings.cache);
    let models = cache.models().map_err(hub::failed)?;
    if args.json {
        let all: Vec<_> = models.iter().map(as_json).collect();
        print_pretty(&json!({ "cache": cache.root(), "models": all }))?;
        return Ok(());
    }
    if models.is_empty() {
        eprintln!("no models in {}; `lily pull` fetches one", cache.root().display());
    }
    let rows: Vec<_> = models.iter().flat_map(rows).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines = rows.iter().map(|(name, rest)| format!("{name:<width$}  {rest}\n"));
    print(&lines.collect::<String>())?;
    Ok(())
}

fn as_json(model: &CachedModel) -> serde_json::Value {
    let revisions = model.revisions.iter().map(|(name, snapshot)| {
        json!({ "revision": name, "commit": snapshot.commit.as_str(), "path": snapshot.path })
    });
    json!({
        "repo": model.repo.as_str(),
        "bytes": model.bytes,
        "incomplete_bytes": model.incomplete_bytes,
        "revisions": revisions.collect::<Vec<_>>(),
    })
}

/// A line per revision, as `--model-path` takes it; the size is that of all revisions together.
fn rows(model: &CachedModel) -> Vec<(String, String)> {
    let size = match model.incomplete_bytes {
        0 => bytes(model.bytes),
        unfinished => format!("{}, and {} unfinished", bytes(model.bytes), bytes(unfinished)),
    };
    let named = |revision: &str| match revision {
        "main" => model.repo.to_string(),
        other => format!("{}@{other}", model.repo),
    };
    if model.revisions.is_empty() {
        return vec![(model.repo.to_string(), format!("{size}, no revision is whole"))];
    }
    model.revisions.iter().map(|(revision, _)| (named(revision), size.clone())).collect()
}
