//! The wire shapes of `/v1/chat/completions`: a request as it was validated, and
//! the responses as they are written.

use serde::Serialize;
use serde_json::Map;
use serde_json::Value;

/// A validated request. `None` means that the default holds.
#[derive(Debug, Default)]
pub(crate) struct ChatRequest {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) single_tool_call: bool,
    pub(crate) template_kwargs: Map<String, Value>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingRequest,
    /// `Some(n)`: log probabilities, with the `n` likeliest rivals of each token.
    pub(crate) logprobs: Option<usize>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

/// The sampling fields of a request, which every endpoint shares.
#[derive(Debug, Default)]
pub(crate) struct SamplingRequest {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) seed: Option<u64>,
}

/// The whole answer in one body.
#[derive(Debug, Serialize)]
pub(crate) struct ChatCompletion {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: [Choice; 1],
    pub(crate) usage: Usage,
}

#[derive(Debug, Serialize)]
pub(crate) struct Choice {
    pub(crate) index: u32,
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
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: u32,
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

/// Log probabilities of the tokens of the content.
#[derive(Debug, Serialize)]
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
