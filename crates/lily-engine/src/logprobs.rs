//! Log-probabilities of chosen and likely tokens.

/// Most likely tokens that can be asked for per position.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Log-softmax of the raw logits: before penalties, bias, temperature and every filter, over the
/// tokens that can be sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// Most probable tokens and their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}
