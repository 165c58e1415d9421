//! Log-probabilities of chosen and likely tokens.

use crate::sampling::{Candidate, ExpSum, select_top};

/// Most likely tokens that can be asked for per position.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Log-softmax of the raw logits: before penalties, bias, temperature and every filter, over the
/// tokens that can be sampled. Under a [`Guide`](crate::Guide) these are the tokens that it allows:
/// where it leaves one, that one has the log-probability 0.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// Most probable tokens and their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Those of token `id` and of the `n` most probable tokens; one logit per token that can be
    /// sampled, finite.
    pub(crate) fn new(logits: &[f32], id: u32, n: usize) -> Self {
        let mut best = Vec::new();
        select_top(logits, n.max(1), &mut best);
        let max = best[0].logit;
        let log_total = ExpSum::new(max, 1.0).sum(logits, 0.0).ln();
        let logprob = |logit: f32| (f64::from(logit) - f64::from(max) - log_total) as f32;
        best.truncate(n);
        TokenLogprobs {
            logprob: logprob(logits[id as usize]),
            top: best.iter().map(|&Candidate { id, logit }| (id, logprob(logit))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_the_log_softmax() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 1000) as f32 * 0.02 - 7.0).collect();
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let expected = |id: usize| f64::from(logits[id]) - total.ln();
        for id in [0, 1, 500, 999] {
            let found = TokenLogprobs::new(&logits, id as u32, 5);
            assert!((f64::from(found.logprob) - expected(id)).abs() < 1e-5);
            assert_eq!(found.top.len(), 5);
            assert!(found.top.windows(2).all(|pair| pair[0].1 > pair[1].1));
            for (id, logprob) in found.top {
                assert!((f64::from(logprob) - expected(id as usize)).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn no_top_tokens_still_give_the_chosen_one() {
        let found = TokenLogprobs::new(&[0.0, 0.0], 1, 0);
        assert_eq!(found.top, []);
        assert!((found.logprob + std::f32::consts::LN_2).abs() < 1e-6);
    }

    #[test]
    fn all_tokens_are_given_when_there_are_fewer_than_asked_for() {
        assert_eq!(TokenLogprobs::new(&[0.0, 1.0, 2.0], 0, 20).top.len(), 3);
    }
}
