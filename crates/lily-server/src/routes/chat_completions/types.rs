//! The wire shapes of the responses of `/v1/chat/completions`.

use serde::Serialize;

use crate::routes::openai::Timings;
use crate::routes::openai::Usage;

/// The whole answer in one body.
#[derive(Debug, Serialize)]
pub(crate) struct ChatCompletion {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
}

#[derive(Debug, Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) message: Message,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: &'static str,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Message {
    pub(crate) role: &'static str,
    /// Always a string: clients trip over `null`.
    pub(crate) content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) r#type: &'static str,
    pub(crate) function: FunctionCall,
}

#[derive(Debug, Serialize)]
pub(crate) struct FunctionCall {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// One event of a streamed answer.
#[derive(Debug, Serialize)]
pub(crate) struct ChatCompletionChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    /// One choice, or none in the usage chunk.
    pub(crate) choices: Vec<ChunkChoice>,
    /// Absent unless asked for; then `null` in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
    /// With the usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<[ToolCallDelta; 1]>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct ToolCallDelta {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<&'static str>,
    pub(crate) function: FunctionDelta,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

/// Log probabilities of the tokens of the content.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Logprobs {
    pub(crate) content: Vec<ContentLogprob>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ContentLogprob {
    #[serde(flatten)]
    pub(crate) token: RankedToken,
    pub(crate) top_logprobs: Vec<RankedToken>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RankedToken {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}
