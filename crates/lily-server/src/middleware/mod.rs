//! What happens to a request before a route sees it; one file per concern.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod cors;
pub(crate) mod headers;
pub(crate) mod host;
pub(crate) mod log;
pub(crate) mod protocol;
