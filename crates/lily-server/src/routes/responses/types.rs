//! The wire shapes of the answers of `/v1/responses`.

use serde::Serialize;
use serde_json::Map;
use serde_json::Value;

/// A response: whole, or as far as it has come.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Response {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created_at: u64,
    pub(crate) completed_at: Option<u64>,
    pub(crate) status: Status,
    pub(crate) error: Option<ResponseError>,
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    pub(crate) model: String,
    pub(crate) output: Vec<Item>,
    pub(crate) usage: Option<Usage>,
    #[serde(flatten)]
    pub(crate) echo: Echo,
}

/// What of the request a response repeats, with the values that held.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Echo {
    pub(crate) background: bool,
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<usize>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    pub(crate) reasoning: Reasoning,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) service_tier: &'static str,
    /// Nothing is stored, whatever was asked for.
    pub(crate) store: bool,
    pub(crate) temperature: f32,
    pub(crate) text: TextConfig,
    pub(crate) tool_choice: Value,
    pub(crate) tools: Vec<Value>,
    pub(crate) top_logprobs: usize,
    pub(crate) top_p: f32,
    pub(crate) truncation: &'static str,
    pub(crate) user: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Reasoning {
    pub(crate) effort: Option<String>,
    pub(crate) summary: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TextConfig {
    pub(crate) format: Value,
    pub(crate) verbosity: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResponseError {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct IncompleteDetails {
    pub(crate) reason: &'static str,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Usage {
    pub(crate) input_tokens: usize,
    pub(crate) input_tokens_details: InputTokensDetails,
    pub(crate) output_tokens: usize,
    pub(crate) output_tokens_details: OutputTokensDetails,
    pub(crate) total_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct InputTokensDetails {
    /// Prompt tokens that were not computed anew.
    pub(crate) cached_tokens: usize,
    pub(crate) cache_write_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct OutputTokensDetails {
    pub(crate) reasoning_tokens: usize,
}

/// A part of the answer.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item {
    Reasoning {
        id: String,
        summary: Vec<Part>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<Part>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
        status: Status,
    },
    Message {
        id: String,
        status: Status,
        role: &'static str,
        content: Vec<Part>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        arguments: String,
        status: Status,
    },
    CustomToolCall {
        id: String,
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        input: String,
        status: Status,
    },
}

/// A text within an item.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum Part {
    #[serde(rename = "output_text")]
    Output { text: String, annotations: [Value; 0], logprobs: Vec<Logprob> },
    #[serde(rename = "reasoning_text")]
    Reasoning { text: String },
    #[serde(rename = "summary_text")]
    Summary { text: String },
}

/// A token of the text with its log probability and those of its rivals.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Logprob {
    #[serde(flatten)]
    pub(crate) token: RankedToken,
    pub(crate) top_logprobs: Vec<RankedToken>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct RankedToken {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

/// An event of a streamed response, with its place in the stream.
#[derive(Debug, Serialize)]
pub(crate) struct Numbered<'a> {
    pub(crate) r#type: &'static str,
    pub(crate) sequence_number: u64,
    #[serde(flatten)]
    pub(crate) event: &'a StreamEvent,
}

/// What happens to a response.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum StreamEvent {
    Created {
        response: Box<Response>,
    },
    InProgress {
        response: Box<Response>,
    },
    Completed {
        response: Box<Response>,
    },
    Incomplete {
        response: Box<Response>,
    },
    Failed {
        response: Box<Response>,
    },
    Error {
        code: &'static str,
        message: String,
        param: Option<String>,
    },
    ItemAdded {
        output_index: usize,
        item: Item,
    },
    ItemDone {
        output_index: usize,
        item: Item,
    },
    PartAdded {
        #[serde(flatten)]
        at: Place,
        part: Part,
    },
    PartDone {
        #[serde(flatten)]
        at: Place,
        part: Part,
    },
    TextDelta {
        #[serde(flatten)]
        at: Place,
        delta: String,
        logprobs: Vec<Logprob>,
    },
    TextDone {
        #[serde(flatten)]
        at: Place,
        text: String,
        logprobs: Vec<Logprob>,
    },
    ReasoningDelta {
        #[serde(flatten)]
        at: Place,
        delta: String,
    },
    ReasoningDone {
        #[serde(flatten)]
        at: Place,
        text: String,
    },
    SummaryPartAdded {
        #[serde(flatten)]
        at: SummaryPlace,
        part: Part,
    },
    SummaryPartDone {
        #[serde(flatten)]
        at: SummaryPlace,
        part: Part,
    },
    SummaryDelta {
        #[serde(flatten)]
        at: SummaryPlace,
        delta: String,
    },
    SummaryDone {
        #[serde(flatten)]
        at: SummaryPlace,
        text: String,
    },
    ArgumentsDelta {
        #[serde(flatten)]
        at: ItemPlace,
        delta: String,
    },
    ArgumentsDone {
        #[serde(flatten)]
        at: ItemPlace,
        name: String,
        arguments: String,
    },
    InputDelta {
        #[serde(flatten)]
        at: ItemPlace,
        delta: String,
    },
    InputDone {
        #[serde(flatten)]
        at: ItemPlace,
        input: String,
    },
}

/// Where an item stands.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ItemPlace {
    pub(crate) item_id: String,
    pub(crate) output_index: usize,
}

/// Where a part of an item's content stands.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Place {
    #[serde(flatten)]
    pub(crate) item: ItemPlace,
    pub(crate) content_index: usize,
}

/// Where a part of a summary stands.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SummaryPlace {
    #[serde(flatten)]
    pub(crate) item: ItemPlace,
    pub(crate) summary_index: usize,
}

impl StreamEvent {
    /// The type, which is also the name in the `event:` line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            StreamEvent::Created { .. } => "response.created",
            StreamEvent::InProgress { .. } => "response.in_progress",
            StreamEvent::Completed { .. } => "response.completed",
            StreamEvent::Incomplete { .. } => "response.incomplete",
            StreamEvent::Failed { .. } => "response.failed",
            StreamEvent::Error { .. } => "error",
            StreamEvent::ItemAdded { .. } => "response.output_item.added",
            StreamEvent::ItemDone { .. } => "response.output_item.done",
            StreamEvent::PartAdded { .. } => "response.content_part.added",
            StreamEvent::PartDone { .. } => "response.content_part.done",
            StreamEvent::TextDelta { .. } => "response.output_text.delta",
            StreamEvent::TextDone { .. } => "response.output_text.done",
            StreamEvent::ReasoningDelta { .. } => "response.reasoning_text.delta",
            StreamEvent::ReasoningDone { .. } => "response.reasoning_text.done",
            StreamEvent::SummaryPartAdded { .. } => "response.reasoning_summary_part.added",
            StreamEvent::SummaryPartDone { .. } => "response.reasoning_summary_part.done",
            StreamEvent::SummaryDelta { .. } => "response.reasoning_summary_text.delta",
            StreamEvent::SummaryDone { .. } => "response.reasoning_summary_text.done",
            StreamEvent::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            StreamEvent::ArgumentsDone { .. } => "response.function_call_arguments.done",
            StreamEvent::InputDelta { .. } => "response.custom_tool_call_input.delta",
            StreamEvent::InputDone { .. } => "response.custom_tool_call_input.done",
        }
    }
}

/// The answer of `/v1/responses/input_tokens`.
#[derive(Debug, Serialize)]
pub(crate) struct TokenCount {
    pub(crate) object: &'static str,
    pub(crate) input_tokens: usize,
}
