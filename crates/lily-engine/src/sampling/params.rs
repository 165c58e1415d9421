//! What a caller may ask of the sampler.

use lily_checkpoint::config::GenerationConfig;

/// Largest temperature that is accepted.
const MAX_TEMPERATURE: f32 = 5.0;

/// How the next token is chosen; see the [module documentation](super) for the order.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 picks the largest logit (ties: the lower id). 0 ..= 5.
    pub temperature: f32,
    /// Candidates kept by rank; 0 keeps all.
    pub top_k: usize,
    /// Smallest set of most probable candidates whose probability reaches this; 0 < `top_p` ≤ 1.
    pub top_p: f32,
    /// Candidates at least this probable relative to the best; 0 ..= 1.
    pub min_p: f32,
    /// Subtracted once from tokens generated before; -2 ..= 2.
    pub presence_penalty: f32,
    /// Subtracted per earlier occurrence among generated tokens; -2 ..= 2.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens anywhere in the context; > 0, 1 is
    /// neutral.
    pub repetition_penalty: f32,
    /// Added to the logits of single tokens; -100 ..= 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same logits, same tokens, on every machine; `None` draws a seed.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    /// The model's own distribution: temperature 1, nothing filtered or penalised.
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// A sampling parameter that is outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A number is outside its range.
    #[error("{field} must be {expected}, found {found}")]
    OutOfRange {
        /// Name of the field in [`SamplingParams`].
        field: &'static str,
        /// The range.
        expected: &'static str,
        /// What was given.
        found: f32,
    },
    /// A biased token does not exist.
    #[error("logit_bias names token {id}, the vocabulary has {token_limit}")]
    BiasToken {
        /// The id.
        id: u32,
        /// Tokens that can be sampled.
        token_limit: usize,
    },
    /// A token is biased twice.
    #[error("logit_bias names token {id} twice")]
    DuplicateBias {
        /// The id.
        id: u32,
    },
}

impl SamplingParams {
    /// Always the most probable token.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..Self::default() }
    }

    /// What a checkpoint recommends. `do_sample: false`, or neither `do_sample` nor a temperature,
    /// means greedy.
    pub fn from_generation_config(config: &GenerationConfig) -> Self {
        let neutral = Self::default();
        let temperature = match config.do_sample {
            Some(false) => 0.0,
            Some(true) => config.temperature.unwrap_or(neutral.temperature),
            None => config.temperature.unwrap_or(0.0),
        };
        SamplingParams {
            temperature,
            top_k: config.top_k.unwrap_or(neutral.top_k),
            top_p: config.top_p.unwrap_or(neutral.top_p),
            min_p: config.min_p.unwrap_or(neutral.min_p),
            repetition_penalty: config.repetition_penalty.unwrap_or(neutral.repetition_penalty),
            ..neutral
        }
    }

    /// Checks every field; `token_limit` is the number of tokens that can be sampled.
    ///
    /// # Errors
    /// The first field that is outside its range, by name.
    pub fn validate(&self, token_limit: usize) -> Result<(), SamplingError> {
        let check = |ok: bool, field, expected, found| {
            if ok { Ok(()) } else { Err(SamplingError::OutOfRange { field, expected, found }) }
        };
        let penalty = |x: f32| (-2.0..=2.0).contains(&x);
        check(
            (0.0..=MAX_TEMPERATURE).contains(&self.temperature),
            "temperature",
            "between 0 and 5",
            self.temperature,
        )?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", "above 0 and at most 1", self.top_p)?;
        check((0.0..=1.0).contains(&self.min_p), "min_p", "between 0 and 1", self.min_p)?;
        let (presence, frequency) = (self.presence_penalty, self.frequency_penalty);
        check(penalty(presence), "presence_penalty", "between -2 and 2", presence)?;
        check(penalty(frequency), "frequency_penalty", "between -2 and 2", frequency)?;
        check(
            self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
            "repetition_penalty",
            "above 0 and finite",
            self.repetition_penalty,
        )?;
        self.validate_bias(token_limit)
    }

    fn validate_bias(&self, token_limit: usize) -> Result<(), SamplingError> {
        for &(id, bias) in &self.logit_bias {
            if id as usize >= token_limit {
                return Err(SamplingError::BiasToken { id, token_limit });
            }
            if !(-100.0..=100.0).contains(&bias) {
                return Err(SamplingError::OutOfRange {
                    field: "logit_bias",
                    expected: "between -100 and 100",
                    found: bias,
                });
            }
        }
        let mut ids: Vec<u32> = self.logit_bias.iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(SamplingError::DuplicateBias { id: pair[0] }),
            None => Ok(()),
        }
    }
}
