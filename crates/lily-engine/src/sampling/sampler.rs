//! The sampler of one generation.

use super::adjust::Adjustments;
use super::candidates::{Candidate, ExpSum, largest, pick_weighted, select_nucleus, select_top};
use super::random::Random;
use super::{SamplingError, SamplingParams};

/// Temperatures below this are 0: their reciprocal would leave the numbers' range.
const LEAST_TEMPERATURE: f32 = 1e-5;

/// Chooses tokens by [`SamplingParams`] and remembers what it has to penalise.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    params: SamplingParams,
    token_limit: usize,
    adjustments: Adjustments,
    random: Random,
    candidates: Vec<Candidate>,
    sums: Vec<f64>,
}

impl Sampler {
    /// A sampler over the tokens below `token_limit`, which is not 0.
    pub(crate) fn new(params: SamplingParams, token_limit: usize) -> Result<Self, SamplingError> {
        params.validate(token_limit)?;
        Ok(Sampler {
            adjustments: Adjustments::new(&params, token_limit),
            random: Random::new(params.seed),
            params,
            token_limit,
            candidates: Vec::new(),
            sums: Vec::new(),
        })
    }

    /// Tokens that can be sampled: ids below this.
    pub(crate) fn token_limit(&self) -> usize {
        self.token_limit
    }

    /// Whether the largest logit decides, as it is.
    pub(crate) fn is_plain_greedy(&self) -> bool {
        self.params.temperature < LEAST_TEMPERATURE && self.adjustments.are_neutral()
    }

    /// Counts tokens as part of the context, for the repetition penalty.
    pub(crate) fn see(&mut self, tokens: &[u32]) {
        self.adjustments.see(tokens);
    }

    /// Chooses a token and counts it as generated. `logits` are one per vocabulary row and left as
    /// they were; those of tokens that must not be chosen are negative infinity, the others, at least
    /// one, finite.
    pub(crate) fn sample(&mut self, logits: &mut [f32]) -> u32 {
        let logits = &mut logits[..self.token_limit];
        self.adjustments.apply(logits);
        let id = self.choose(logits);
        self.adjustments.revert(logits);
        self.adjustments.generated(id);
        id
    }

    fn choose(&mut self, logits: &[f32]) -> u32 {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let best = largest(logits);
        if temperature < LEAST_TEMPERATURE {
            return best.id;
        }
        let weights = ExpSum::new(best.logit, 1.0 / temperature);
        let all = top_k == 0 || top_k >= logits.len();
        if all && top_p >= 1.0 {
            return weights.pick(logits, min_p, self.random.uniform(), &mut self.sums);
        }
        if all {
            select_nucleus(logits, weights, top_p, &mut self.candidates);
        } else {
            select_top(logits, top_k, &mut self.candidates);
            let total = self.candidates.iter().map(|c| f64::from(weights.weight(c.logit))).sum();
            self.cut_nucleus(weights, total);
        }
        self.candidates.retain(|c| weights.weight(c.logit) >= min_p);
        let weighed = self.candidates.iter().map(|c| weights.weight(c.logit));
        let total: f64 = weighed.clone().map(f64::from).sum();
        self.candidates[pick_weighted(weighed, self.random.uniform() * total)].id
    }

    /// Drops the candidates behind the one at which `top_p` of `total` is reached.
    fn cut_nucleus(&mut self, weights: ExpSum, total: f64) {
        let target = f64::from(self.params.top_p) * total;
        let mut sum = 0.0;
        let reached = self.candidates.iter().position(|c| {
            sum += f64::from(weights.weight(c.logit));
            sum >= target
        });
        if let Some(index) = reached {
            self.candidates.truncate(index + 1);
        }
    }
}
