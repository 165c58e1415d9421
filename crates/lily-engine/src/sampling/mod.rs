//! From logits to a token.

mod params;

pub use params::{SamplingError, SamplingParams};
