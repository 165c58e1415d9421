//! The one way out for errors: a line on standard error and an exit code.

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

use lily_engine::EngineError;
use lily_server::ServerError;

/// Marks an error as the user's own (wrong usage, a template that refuses a request): exit code 2.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct UsageError(pub(crate) anyhow::Error);

/// A [`UsageError`] with this message.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    UsageError(anyhow::Error::msg(message.into())).into()
}

/// An error of a generation: a [`UsageError`] where the prompt or a flag does not fit the model.
pub(crate) fn generation(error: EngineError) -> anyhow::Error {
    match error {
        EngineError::EmptyPrompt
        | EngineError::PromptTooLong { .. }
        | EngineError::TokenOutOfRange { .. }
        | EngineError::Sampling(_) => UsageError(error.into()).into(),
        other => other.into(),
    }
}

/// Prints `error: ...` and returns the exit code: 2 for wrong usage, otherwise 1.
///
/// A reader that closed the pipe (`lily ... | head`) is not an error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", one_line(error));
    ExitCode::from(if is_usage(error) { 2 } else { 1 })
}

/// A [`UsageError`], or what the server says of its own flags.
fn is_usage(error: &anyhow::Error) -> bool {
    let of_server = matches!(
        error.downcast_ref(),
        Some(
            ServerError::InvalidApiKey
                | ServerError::NoApiKeys
                | ServerError::InvalidOrigin { .. }
                | ServerError::Unprotected { .. }
        )
    );
    of_server || error.is::<UsageError>()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its sources, joined by colons; a source already quoted by its parent is left out.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        let _ = write!(line, "{text}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn sources_follow_on_the_same_line() {
        let error = Err::<(), _>(anyhow!("no such\nfile")).context("cannot read x").unwrap_err();
        assert_eq!(one_line(&error), "cannot read x: no such file");
    }

    #[test]
    fn a_source_that_its_parent_quotes_is_not_repeated() {
        let error = Err::<(), _>(anyhow!("no such file"))
            .context("cannot read x: no such file")
            .unwrap_err();
        assert_eq!(one_line(&error), "cannot read x: no such file");
    }

    #[test]
    fn flags_that_the_server_refuses_are_wrong_usage_wherever_that_is_told() {
        let empty = anyhow::Error::from(ServerError::NoApiKeys);
        assert!(is_usage(&empty.context("--api-key-file keys.txt")));
        assert!(is_usage(&usage("--host nowhere")));
        let source = io::Error::from(io::ErrorKind::AddrInUse);
        assert!(!is_usage(&ServerError::Io { action: "serve", source }.into()));
    }

    #[test]
    fn a_closed_pipe_is_quiet_wherever_it_happens() {
        let pipe = io::Error::new(io::ErrorKind::BrokenPipe, "pipe");
        let error = Err::<(), _>(pipe).context("cannot write").unwrap_err();
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow!("other")));
    }
}
