//! Other engines, as programs of their own that are measured by the same contract.
//!
//! What they say is checked here: figures are finite and positive, sizes have limits, text is shown
//! without control characters.

mod child;
mod llama_cpp;
mod mlx_lm;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use lily_device::DeviceFacts;

use super::contract::{Shape, Timed};
use crate::args::{BenchArgs, PeerKind};
use crate::failure::usage;
use crate::model;

/// Another engine.
pub(super) trait Peer {
    /// Bytes of its weights.
    fn weights(&self) -> u64;

    /// Whether the first run of a shape after loading must not count; otherwise it warms up itself.
    fn needs_warm_up(&self) -> bool;

    /// Loads the model, where it is kept loaded and is not.
    fn load(&mut self) -> Result<(), PeerError>;

    /// One run.
    fn measure(&mut self, shape: Shape) -> Result<Timed, PeerError>;

    /// Gives the memory back.
    fn release(&mut self);

    /// What is known about it now.
    fn facts(&self) -> Facts;
}

/// What a report says about a peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) name: &'static str,
    /// Its model, without the folders above.
    pub(super) model: String,
    /// The program with its arguments; for several measurements the first one's.
    pub(super) command: Vec<String>,
    /// Versions and machine, as it tells them.
    pub(super) versions: Vec<(String, String)>,
    /// Where its figures follow other rules than lily's.
    pub(super) remark: &'static str,
}

/// What pip installs for mlx-lm: elsewhere than on a Mac, mlx comes without a back end.
const PACKAGES: &str = if cfg!(target_os = "macos") { "mlx-lm" } else { "'mlx[cpu]' mlx-lm" };

/// Why a peer gives no figure.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    #[error("{program} was not found; {advice}")]
    NotFound { program: String, advice: &'static str },
    #[error("cannot start {program}")]
    Start { program: String, source: std::io::Error },
    #[error(
        "{program} has no module {module}; `pip install {PACKAGES}` for that Python, or name \
         another one with --peer-command"
    )]
    MissingModule { program: String, module: String },
    #[error("{program} ended too early ({status}){}", tail(.stderr))]
    Died { program: String, status: String, stderr: String },
    #[error("{program} failed: {message}")]
    Refused { program: String, message: String },
    #[error("{program} answered nonsense: {what}, found {found:?}{}", tail(.stderr))]
    Nonsense { program: String, what: String, found: String, stderr: String },
    #[error(
        "{program} did not answer within {seconds} s; --peer-timeout allows more{}",
        tail(.stderr)
    )]
    Timeout { program: String, seconds: u64, stderr: String },
}

/// What a program wrote to standard error, for the end of a message.
fn tail(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; it wrote: {stderr}") }
}

/// A peer's program and how long its answers may take.
#[derive(Clone, Debug)]
pub(super) struct Program {
    words: Vec<OsString>,
    timeout: Duration,
    advice: &'static str,
}

impl Program {
    fn new(args: &BenchArgs, default: &str, advice: &'static str) -> Self {
        let command = args.peer_command.clone().unwrap_or_else(|| default.into());
        let words = [command].into_iter().chain(args.peer_arg.iter().cloned()).collect();
        Program { words, timeout: Duration::from_secs(args.peer_timeout as u64), advice }
    }

    /// For reports: the folders that the program lies in are left out.
    fn words(&self) -> impl Iterator<Item = String> {
        let name = self.words.first().map(|program| file_name(Path::new(program)));
        let arguments = self.words.iter().skip(1);
        name.into_iter().chain(arguments.map(|word| plain(&word.to_string_lossy(), 200)))
    }

    /// For messages.
    fn shown(&self) -> String {
        self.words.first().map_or_else(String::new, |word| plain(&word.to_string_lossy(), 200))
    }
}

/// The peer that the flags ask for; nothing is loaded yet, but what it lacks is found out.
pub(super) fn open(
    args: &BenchArgs,
    kind: PeerKind,
    vocab: usize,
    device: &DeviceFacts,
) -> Result<Box<dyn Peer>> {
    Ok(match kind {
        PeerKind::MlxLm => Box::new(mlx_lm::MlxLm::open(args, vocab)?),
        PeerKind::LlamaCpp => Box::new(llama_cpp::LlamaCpp::open(args, device)?),
    })
}

/// What can be refused of a peer's model before anything else is looked at.
pub(super) fn check(args: &BenchArgs, kind: PeerKind) -> Result<()> {
    match (kind, &args.peer_model, args.model.dir()) {
        (PeerKind::LlamaCpp, None, _) => {
            Err(usage("--compare llama.cpp needs --peer-model FILE.gguf, the same model as GGUF"))
        }
        (PeerKind::MlxLm, None, None) => Err(usage(
            "--compare mlx-lm needs a checkpoint directory: give --model-path or --peer-model",
        )),
        (PeerKind::MlxLm, None, Some(path)) if model::is_pack(path) => Err(usage(format!(
            "mlx-lm cannot read {}: give the checkpoint directory it was made of as --peer-model",
            path.display()
        ))),
        (PeerKind::MlxLm, None, Some(_)) => Ok(()),
        (PeerKind::MlxLm, Some(path), _) => {
            let config = path.join("config.json");
            config.metadata().map(drop).with_context(|| unopened(path))
        }
        (PeerKind::LlamaCpp, Some(path), _) => {
            path.metadata().map(drop).with_context(|| unopened(path))
        }
    }
}

fn unopened(path: &Path) -> String {
    format!("cannot open the peer's model {}", path.display())
}

/// The last part of a path.
fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| "model".to_owned(), |name| plain(&name.to_string_lossy(), 200))
}

/// Text of another program for terminals and reports: at most `longest` characters, none of them a
/// control character.
fn plain(text: &str, longest: usize) -> String {
    let mut chars = text.trim().chars();
    let show = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = chars.by_ref().take(longest).map(show).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Seconds that a measurement can have taken.
fn seconds(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0 && value < 1e7).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_shown_short_and_without_control_characters() {
        assert_eq!(plain(" a\u{1b}[31mb\r\n", 9), "a [31mb");
        assert_eq!(plain("abcdef", 3), "abc…");
    }

    #[test]
    fn only_positive_finite_seconds_are_times() {
        assert_eq!(seconds(0.5), Some(0.5));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
