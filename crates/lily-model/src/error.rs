//! Everything that can keep a model from becoming a plan.

/// Why no plan could be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The manifest lacks a weight that the configuration asks for.
    #[error("weight {name} is missing")]
    MissingWeight {
        /// Canonical name.
        name: String,
    },
    /// A weight has another shape than the configuration asks for.
    #[error("weight {name}: expected {expected}, found {found}")]
    WeightShape {
        /// Canonical name.
        name: String,
        /// Shape by the configuration.
        expected: String,
        /// Shape in the manifest.
        found: String,
    },
    /// The manifest holds a weight that no step would read.
    #[error("weight {name} has no use in a {model_type} model of {n_layers} layers")]
    UnusedWeight {
        /// Canonical name.
        name: String,
        /// The configuration's model type.
        model_type: String,
        /// The configuration's layers.
        n_layers: usize,
    },
    /// A field of the configuration or of the options is impossible.
    #[error("{field}: expected {expected}, found {found}")]
    Field {
        /// Field name.
        field: &'static str,
        /// What must hold.
        expected: String,
        /// Its value.
        found: String,
    },
    /// The builder recorded a plan that the validator refuses: a defect of this crate.
    #[error("the plan that was built is not valid")]
    Plan(#[from] lily_plan::PlanError),
}
