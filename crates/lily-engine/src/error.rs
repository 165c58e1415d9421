//! What can go wrong between a checkpoint and a token.

use lily_device::DeviceError;
use lily_model::ModelError;
use lily_plan::PlanError;

use crate::guide::GuideError;
use crate::sampling::SamplingError;

/// One refused call or one failure, with the numbers involved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An engine option is outside its range.
    #[error("engine option {field} must be {expected}, found {found}")]
    Options {
        /// Name of the field in `EngineOptions`.
        field: &'static str,
        /// Allowed values.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The model, its KV cache and its scratch memory do not fit.
    #[error(
        "the model needs {need} bytes at a context of {context} tokens, {available} are available; {}",
        fitting(.fitting_context)
    )]
    Memory {
        /// Bytes needed: weights, KV cache and state of one session, scratch.
        need: u64,
        /// Bytes available, or the given limit.
        available: u64,
        /// Context that was asked for, in tokens.
        context: usize,
        /// Largest context that would fit; `None` when not even the shortest does.
        fitting_context: Option<usize>,
    },
    /// The checkpoint's own sampling defaults are invalid.
    #[error("invalid sampling defaults in generation_config.json")]
    Defaults(#[source] SamplingError),
    /// A sampling parameter is outside its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// More log-probabilities were asked for than are given.
    #[error("top log-probabilities must be at most {max}, found {found}")]
    TooManyLogprobs {
        /// What was asked for.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// There is nothing to continue from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit into what is left of the context.
    #[error(
        "the prompt has {tokens} tokens; with an answer it does not fit into the context of {context}"
    )]
    PromptTooLong {
        /// Tokens of the prompt, with what the timeline held before.
        tokens: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// A token id that the model has no row for.
    #[error("token {id} at index {index} of the prompt is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// Index in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// More scored positions were asked for than there are tokens.
    #[error("cannot score the last {last_n} positions of {tokens} tokens")]
    ScoreRange {
        /// Positions asked for.
        last_n: usize,
        /// Tokens given.
        tokens: usize,
    },
    /// The engine was loaded without `EngineOptions::score`.
    #[error("the engine was loaded without its score plan")]
    ScoreNotPrepared,
    /// The model computed something that is not a number, or an infinity.
    #[error("logit {id} after position {position} is not finite")]
    NonFiniteLogits {
        /// Position of the token whose logits these are.
        position: usize,
        /// First vocabulary row concerned.
        id: usize,
    },
    /// As [`EngineError::NonFiniteLogits`], where the device chose the token.
    #[error("the logits after position {position} are not finite")]
    NoToken {
        /// Position of the token whose logits these are.
        position: usize,
    },
    /// The guide of the generation could not say what may follow.
    #[error("the guide failed after position {position}: {source}")]
    Guide {
        /// Position of the last token.
        position: usize,
        /// What the guide says.
        source: GuideError,
    },
    /// There is nobody to ask what may follow: a fault of the program or the machine, not of what the
    /// guide was made from.
    #[error("the guide was lost after position {position}: {reason}")]
    GuideLost {
        /// Position of the last token.
        position: usize,
        /// What happened to it.
        reason: String,
    },
    /// The guide allowed no token that can be sampled.
    #[error("the guide allows no token after position {position}")]
    NothingAllowed {
        /// Position of the last token.
        position: usize,
    },
    /// The device failed in an earlier call; only a new session can go on.
    #[error("the session was lost when its device failed")]
    SessionLost,
    /// The checkpoint cannot become a plan.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A plan that was built is not valid: a defect of lily.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn fitting(context: &Option<usize>) -> String {
    match context {
        Some(tokens) => format!("a context of {tokens} tokens would fit"),
        None => "no context would fit".into(),
    }
}
