//! Asking a generation to end from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag shared by whoever may end a generation and the generation itself; clones share it.
///
/// It is looked at between runs of the device: before every prefill chunk and every decoded token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
    parent: Option<Arc<CancelToken>>,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }
    /// A token that is cancelled with this one, and can be cancelled alone: for one of several
    /// generations that belong together.
    #[must_use]
    pub fn child(&self) -> Self {
        CancelToken { cancelled: Arc::default(), parent: Some(Arc::new(self.clone())) }
    }
    /// Ends the generations that hold this token or a child of it; there is no way back.
    pub fn cancel(&self) {
        // Relaxed: the flag carries no other data.
        self.cancelled.store(true, Ordering::Relaxed);
    }
    /// Whether [`CancelToken::cancel`] was called on any clone or on what this is a child of.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
            || self.parent.as_ref().is_some_and(|parent| parent.is_cancelled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_cancelled_with_its_parent_and_alone_without_it() {
        let parent = CancelToken::new();
        let (first, second) = (parent.child(), parent.child());
        first.cancel();
        assert!(first.is_cancelled() && !second.is_cancelled() && !parent.is_cancelled());
        parent.clone().cancel();
        assert!(second.is_cancelled() && second.child().is_cancelled());
    }
}
