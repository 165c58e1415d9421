//! Why a plan cannot be lowered.

/// Why a step has no launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The manifest does not have the weight as the plan needs it.
    #[error("step {step} needs matrix {name}, found {found}")]
    Weight {
        /// Step.
        step: String,
        /// Canonical name.
        name: String,
        /// What the manifest has instead.
        found: &'static str,
    },
    /// No kernel takes the step's shape.
    #[error("no kernel for step {step}: {what}")]
    Unsupported {
        /// Step.
        step: String,
        /// What is not supported.
        what: String,
    },
}
