//! From logits to a token.
//!
//! The order, each step working on what the one before left, which is at first what a
//! [`Guide`](crate::Guide) allows, or all:
//!
//! 1. `repetition_penalty` on every distinct token of the context, prompt included: positive logits
//!    are divided by it, negative ones multiplied;
//! 2. `presence_penalty` (once) and `frequency_penalty` (per occurrence) are subtracted from tokens
//!    that this generation has given before;
//! 3. `logit_bias` is added;
//! 4. rows at and above the token limit are out of the question, whatever their logits and bias;
//! 5. `temperature` divides; 0 ends here with the largest logit, ties going to the lower id;
//! 6. `top_k` keeps that many candidates by rank, ties going to the lower id;
//! 7. `top_p` keeps the smallest leading set whose share of what is left reaches it;
//! 8. `min_p` drops candidates less probable than that fraction of the best;
//! 9. one uniform number picks among the rest by probability.
//!
//! Everything is plain arithmetic in a fixed order with no help from the system's mathematics
//! library, so equal logits and an equal seed give equal tokens on every machine.

mod adjust;
mod candidates;
mod params;
mod random;
mod sampler;
#[cfg(test)]
mod tests;

pub use params::{SamplingError, SamplingParams};

pub(crate) use candidates::{Candidate, ExpSum, select_top};
pub(crate) use sampler::Sampler;
