//! Fetches models from a Hugging Face hub into the cache folder that other tools share.
//!
//! The one idea: a blob has the name of its content. Whatever a transfer went through (a cut
//! connection, a kill, another process), its bytes are hashed as they arrive, and a blob gets its
//! name only when the hash is the one that the hub announced; so everything under `blobs/` without
//! `.incomplete` is right, and everything with it can be continued.
//!
//! The order of a pull: [`Hub::look_up`] turns a revision into a commit and a list of files,
//! [`Hub::complete`] asks for what the list does not say, [`Hub::start_of`] reads the first bytes of
//! a file so that the caller can judge it, [`Hub::fetch`] transfers, and [`Cache::set_ref`] makes the
//! revision known when all of it is there.
//!
//! What it deliberately lacks: checkpoints, devices, and any opinion on which files are worth
//! having; the command line brings these.
#![forbid(unsafe_code)]

mod address;
mod cache;
mod client;
mod digest;
mod error;
mod hub;
mod listing;
mod names;
mod retry;
mod settings;
mod tls;
mod transfer;

pub use cache::{Cache, CachedModel, Snapshot, snapshot_of};
pub use digest::Checksum;
pub use error::HubError;
pub use hub::{Event, Fetch, Fetched, Hub, Watch};
pub use listing::{Listing, RemoteFile};
pub use names::{Commit, RepoId, RepoRef, Revision, check_file_name, check_portable};
pub use retry::Retry;
pub use settings::{DEFAULT_ENDPOINT, Settings, Token, endpoint_from_env};
pub use tls::config as tls_config;
