//! The wire shapes of the responses of `/v1/completions`.

use serde::Serialize;
use serde_json::Map;
use serde_json::Value;

use crate::routes::openai::Timings;
use crate::routes::openai::Usage;

/// All answers in one body, or one event of a streamed answer.
#[derive(Debug, Serialize)]
pub(crate) struct Completion<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    /// One choice in an event, none in that of the usage.
    pub(crate) choices: Vec<Choice>,
    /// Absent in the events of a stream unless asked for; then `null` in all but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// Log probabilities of the tokens of a text; the lists are equally long.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Logprobs {
    pub(crate) tokens: Vec<String>,
    /// `None` for the first token of a prompt, before which there is nothing.
    pub(crate) token_logprobs: Vec<Option<f64>>,
    /// The likeliest tokens of each place and the one that is there.
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token begins in the whole text of the choice, in characters.
    pub(crate) text_offset: Vec<usize>,
}
