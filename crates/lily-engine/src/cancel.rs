//! Asking a generation to end from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag shared by whoever may end a generation and the generation itself; clones share it.
///
/// It is looked at between runs of the device: before every prefill chunk and every decoded token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }
    /// Ends the generations that hold this token; there is no way back.
    pub fn cancel(&self) {
        // Relaxed: the flag carries no other data.
        self.cancelled.store(true, Ordering::Relaxed);
    }
    /// Whether [`CancelToken::cancel`] was called on any clone.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
