//! Everything that can be wrong with a checkpoint.

/// One broken rule, with the names involved, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Io {
        /// File name.
        path: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
}
