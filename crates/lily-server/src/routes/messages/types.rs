//! The wire shapes of the responses of `/v1/messages`.

use serde::Serialize;
use serde_json::Map;
use serde_json::Value;

/// The whole answer in one body; in a stream, what is known at its start.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) r#type: &'static str,
    pub(crate) role: &'static str,
    pub(crate) model: String,
    pub(crate) content: Vec<Block>,
    pub(crate) stop_reason: Option<&'static str>,
    /// The stop sequence that ended the answer.
    pub(crate) stop_sequence: Option<String>,
    pub(crate) usage: Usage,
}

/// A part of the answer.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    Thinking { thinking: String, signature: String },
    Text { text: String },
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Usage {
    pub(crate) input_tokens: usize,
    pub(crate) cache_creation_input_tokens: usize,
    /// Prompt tokens that were not computed anew.
    pub(crate) cache_read_input_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) output_tokens_details: OutputTokensDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct OutputTokensDetails {
    pub(crate) thinking_tokens: usize,
}

/// One event of a streamed answer.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum StreamEvent {
    MessageStart { message: Message },
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: Delta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageDelta, usage: Usage },
    MessageStop,
    Ping,
}

impl StreamEvent {
    /// The name in the `event:` line, which the body repeats as its type.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            StreamEvent::MessageStart { .. } => "message_start",
            StreamEvent::ContentBlockStart { .. } => "content_block_start",
            StreamEvent::ContentBlockDelta { .. } => "content_block_delta",
            StreamEvent::ContentBlockStop { .. } => "content_block_stop",
            StreamEvent::MessageDelta { .. } => "message_delta",
            StreamEvent::MessageStop => "message_stop",
            StreamEvent::Ping => "ping",
        }
    }
}

/// More of the block that is open.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum Delta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// How the answer ended.
#[derive(Debug, Serialize)]
pub(crate) struct MessageDelta {
    pub(crate) stop_reason: &'static str,
    pub(crate) stop_sequence: Option<String>,
}

/// The answer of `/v1/messages/count_tokens`.
#[derive(Debug, Serialize)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}
