//! What can go wrong.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Why a model could not be fetched or found.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not `owner/name`.
    #[error("{found:?} is no repository name, expected OWNER/NAME")]
    RepoName {
        /// As given, shortened.
        found: String,
    },
    /// An address that is not that of a model on the hub.
    #[error("{found:?} is no page of a model on {endpoint}; expected OWNER/NAME{}", meant(.guess))]
    Address {
        /// As given, shortened.
        found: String,
        /// The hub.
        endpoint: String,
        /// The model that may be meant.
        guess: Option<String>,
    },
    /// A revision that no path could hold.
    #[error("{found:?} is no revision, expected a branch, a tag or a commit")]
    RevisionName {
        /// As given, shortened.
        found: String,
    },
    /// Not 40 hexadecimal digits.
    #[error("{found:?} is no commit, expected 40 hexadecimal digits")]
    CommitName {
        /// As found, shortened.
        found: String,
    },
    /// A file name of the repository that must not become a path.
    #[error("the repository names a file {name:?}, which is refused: {reason}")]
    FileName {
        /// As listed, shortened.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A setting of the environment that cannot be used.
    #[error("{variable} is {found:?}, expected {expected}")]
    Setting {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The token holds what no header may hold. It is not shown.
    #[error(
        "the access token from {source_name} is not usable: expected printable ASCII in one line"
    )]
    Token {
        /// The variable or file it is from.
        source_name: String,
    },
    /// Neither `HF_HOME` nor a home folder is known.
    #[error("there is no home folder for the model cache; HF_HOME sets one")]
    NoHome,
    /// Offline, and not in the cache.
    #[error("{what} is not in the cache {cache}, and HF_HUB_OFFLINE is set")]
    Offline {
        /// A repository or file.
        what: String,
        /// The cache folder.
        cache: String,
    },
    /// TLS is not available on this machine.
    #[error("cannot open an encrypted connection: {reason}")]
    NoTls {
        /// What is missing.
        reason: String,
    },
    /// The server was not reached, or the connection broke.
    #[error("no answer from {host}: {reason}")]
    Network {
        /// Host and port.
        host: String,
        /// What the system says.
        reason: String,
    },
    /// Too few bytes for too long.
    #[error("the connection to {host} stalled: {bytes} bytes in {} s", .within.as_secs_f64())]
    Stalled {
        /// Host and port.
        host: String,
        /// Bytes that came.
        bytes: u64,
        /// Within this time.
        within: Duration,
    },
    /// A body that ended early.
    #[error("{file} was cut short: {found} of {expected} bytes came")]
    Short {
        /// Which file.
        file: String,
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// A body, or what the server says of it, that does not fit what was announced.
    #[error("{file} has {found} bytes on the server, expected {expected}")]
    Length {
        /// Which file.
        file: String,
        /// Bytes announced before.
        expected: u64,
        /// Bytes announced now, or at least sent.
        found: u64,
    },
    /// The bytes are not those that the hub announced, twice.
    #[error("{file} is damaged: {kind} is {found}, expected {expected}")]
    Checksum {
        /// Which file.
        file: String,
        /// Name of the hash.
        kind: &'static str,
        /// As announced.
        expected: String,
        /// Of the bytes that came.
        found: String,
    },
    /// The hub announced another content than before.
    #[error(
        "{file} changed on the server while it was fetched: its tag was {expected}, now {found}"
    )]
    Changed {
        /// Which file.
        file: String,
        /// Tag at first.
        expected: String,
        /// Tag later.
        found: String,
    },
    /// The repository is unknown, or hidden from who asks.
    #[error("{repo} is not on {endpoint}, or it is private; {}", token_hint(*.with_token))]
    RepoNotFound {
        /// Which repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The repository has no such revision.
    #[error("{repo} has no revision {revision:?} on {endpoint}")]
    RevisionNotFound {
        /// Which repository.
        repo: String,
        /// Which revision.
        revision: String,
        /// The hub.
        endpoint: String,
    },
    /// The repository has no such file.
    #[error("{repo} has no file {file:?}")]
    FileNotFound {
        /// Which repository.
        repo: String,
        /// Which file.
        file: String,
    },
    /// A repository that asks for consent first.
    #[error("{repo} is gated: ask for access at {endpoint}/{repo}; {}", token_hint(*.with_token))]
    Gated {
        /// Which repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// 401 or 403.
    #[error("{endpoint} refuses access to {repo} (status {status}); {}", token_hint(*.with_token))]
    Access {
        /// Which repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// HTTP status.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// 429 for longer than is worth waiting.
    #[error("{host} asks to wait {} s before the next request; try again later", .wait.as_secs())]
    RateLimited {
        /// Host and port.
        host: String,
        /// As the server says.
        wait: Duration,
    },
    /// Any other status that is not a success.
    #[error("{host} answered status {status} for {what}{}", meaning(*.status))]
    Status {
        /// Host and port.
        host: String,
        /// HTTP status.
        status: u16,
        /// What was asked for.
        what: String,
    },
    /// An answer that is not that of a hub at all.
    #[error(
        "{address} answered with {found}, as no hub does: it may be the page of a proxy or of a login; \
         HF_ENDPOINT and HTTPS_PROXY say where requests go"
    )]
    NoHub {
        /// Where it came from, without a query.
        address: String,
        /// What it is.
        found: &'static str,
    },
    /// An answer that the protocol does not allow.
    #[error("{host} sent an answer that makes no sense: {reason}")]
    Answer {
        /// Host and port.
        host: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the cache.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Which file or folder.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// Another transfer of the same call failed; this one was left where it was.
    #[error("the transfer was stopped")]
    Stopped,
}

impl HubError {
    pub(crate) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |source| HubError::Io { action, path, source }
    }
}

fn meant(guess: &Option<String>) -> String {
    guess.as_ref().map_or_else(String::new, |name| format!(", perhaps {name}"))
}

/// What a status means that may be gone in a while.
fn meaning(status: u16) -> &'static str {
    match status {
        429 => ", which means too many requests",
        500..=599 => ", which means trouble on its side",
        _ => "",
    }
}

fn token_hint(with_token: bool) -> &'static str {
    match with_token {
        true => "the access token that was sent does not open it",
        false => "an access token, if you have one, goes into HF_TOKEN",
    }
}
