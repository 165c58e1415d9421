//! Log-likelihood of known tokens, in double precision.

/// Mean negative log-likelihood in the making.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Likelihood {
    sum: f64,
    tokens: usize,
}

impl Likelihood {
    /// Adds `-ln softmax(logits)[token]`.
    pub(super) fn add(&mut self, logits: &[f32], token: u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        self.sum += sum.ln() - f64::from(logits[token as usize] - max);
        self.tokens += 1;
    }

    /// Tokens added.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// `exp` of the mean; `None` before the first token.
    pub(super) fn perplexity(&self) -> Option<f64> {
        (self.tokens > 0).then(|| (self.sum / self.tokens as f64).exp())
    }
}

/// The index of the largest value; the lowest one of equals.
pub(super) fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_give_the_vocabulary_as_perplexity() {
        let mut likelihood = Likelihood::default();
        likelihood.add(&[3.0; 8], 5);
        likelihood.add(&[-1e4; 8], 0);
        assert!((likelihood.perplexity().unwrap() - 8.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_scored_has_no_perplexity() {
        assert_eq!(Likelihood::default().perplexity(), None);
    }

    #[test]
    fn the_first_of_equal_maxima_wins() {
        assert_eq!(argmax(&[1.0, 2.0, 2.0]), 1);
    }
}
