//! What the responses of OpenAI's text endpoints have in common.

use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use serde::Serialize;

use crate::turn;
use crate::turn::Outcome;

/// Log probabilities below it, infinity too, which JSON lacks, are given as this.
pub(crate) const LEAST_LOGPROB: f32 = -9999.0;

/// What all parts of one response repeat.
pub(crate) struct Envelope {
    pub(crate) id: String,
    /// In seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Envelope {
    /// An envelope with a fresh id that begins with `prefix`.
    pub(crate) fn new(prefix: &str, model: &str) -> Envelope {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Envelope { id: random_id(prefix), created: now.as_secs(), model: model.to_owned() }
    }
}

/// An id that no other response has.
pub(crate) fn random_id(prefix: &str) -> String {
    let random = std::iter::repeat_with(fastrand::alphanumeric).take(24);
    prefix.chars().chain(random).collect()
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptTokensDetails,
    pub(crate) completion_tokens_details: CompletionTokensDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PromptTokensDetails {
    /// Prompt tokens that were not computed anew.
    pub(crate) cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CompletionTokensDetails {
    pub(crate) reasoning_tokens: usize,
}

impl Usage {
    pub(crate) fn of(outcome: &Outcome) -> Usage {
        Usage {
            prompt_tokens: outcome.prompt_tokens,
            completion_tokens: outcome.completion_tokens,
            total_tokens: outcome.prompt_tokens + outcome.completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: 0 },
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: outcome.reasoning_tokens,
            },
        }
    }
}

/// Where the time went once the request ran, in milliseconds and tokens per second
/// with three decimals. OpenAI's API has no such field; the names are llama.cpp's.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Timings {
    /// Prompt tokens, counted once for each answer.
    prompt_n: usize,
    /// Up to the first token of each answer.
    prompt_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_per_second: Option<f64>,
    /// Tokens after the first of each answer.
    predicted_n: usize,
    predicted_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_per_second: Option<f64>,
}

impl Timings {
    pub(crate) fn of(timings: &turn::Timings) -> Timings {
        // To the microsecond; more digits would be those of binary fractions.
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        let ms = |time: Duration| rounded(time.as_secs_f64() * 1e3);
        let rate = |tokens: usize, time: Duration| {
            (tokens > 0 && !time.is_zero()).then(|| rounded(tokens as f64 / time.as_secs_f64()))
        };
        Timings {
            prompt_n: timings.prefill_tokens,
            prompt_ms: ms(timings.prefill),
            prompt_per_second: rate(timings.prefill_tokens, timings.prefill),
            predicted_n: timings.decode_tokens,
            predicted_ms: ms(timings.decode),
            predicted_per_second: rate(timings.decode_tokens, timings.decode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_have_no_more_digits_than_the_clock() {
        let timings = Timings::of(&turn::Timings {
            prefill_tokens: 17,
            prefill: Duration::from_nanos(3_474_222),
            decode_tokens: 0,
            decode: Duration::from_nanos(2_486_500),
        });
        let expected = serde_json::json!({
            "prompt_n": 17, "prompt_ms": 3.474, "prompt_per_second": 4893.182,
            "predicted_n": 0, "predicted_ms": 2.487,
        });
        assert_eq!(serde_json::to_value(timings).unwrap(), expected);
    }
}
