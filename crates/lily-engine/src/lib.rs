//! The only two handles on a running model: [`Engine`], a loaded model, and [`Session`], one token
//! timeline.
//!
//! The one idea: a session is a position in a timeline that only moves forward. Every call appends
//! to it, every pause (a cancelled prefill, the last token of an answer) leaves it at a position
//! that is true, and generation goes on from there.
//!
//! What it deliberately lacks: text, HTTP, and any one device's words.
#![forbid(unsafe_code)]

mod cancel;
mod engine;
mod error;
mod generation;
mod guide;
mod logprobs;
mod memory;
pub mod sampling;
mod session;
#[cfg(test)]
mod tests;

pub use cancel::CancelToken;
pub use engine::{Engine, EngineOptions};
pub use error::EngineError;
pub use generation::{FinishReason, GenerateOptions, GeneratedToken, Generation};
pub use guide::{Allowed, Guide, GuideError, TokenMask};
pub use logprobs::{MAX_TOP_LOGPROBS, TokenLogprobs};
pub use memory::available_memory;
pub use sampling::{SamplingError, SamplingParams};
pub use session::Session;
