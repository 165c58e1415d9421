//! From the events of a turn to responses.

use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use lily_text::OutputEvent;

use super::types::ChatCompletion;
use super::types::ChatCompletionChunk;
use super::types::Choice;
use super::types::ChunkChoice;
use super::types::CompletionTokensDetails;
use super::types::ContentLogprob;
use super::types::Delta;
use super::types::FunctionCall;
use super::types::FunctionDelta;
use super::types::Logprobs;
use super::types::Message;
use super::types::PromptTokensDetails;
use super::types::RankedToken;
use super::types::ToolCall;
use super::types::ToolCallDelta;
use super::types::Usage;
use crate::error::ApiError;
use crate::sse::Encode;
use crate::sse::Frame;
use crate::turn::Event;
use crate::turn::Outcome;
use crate::turn::TokenLogprob;
use crate::turn::TokenText;
use crate::worker::Events;

/// What all parts of one response have in common.
pub(super) struct Envelope {
    id: String,
    created: u64,
    model: String,
}

impl Envelope {
    pub(super) fn new(model: &str) -> Envelope {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Envelope { id: random_id("chatcmpl-"), created: now.as_secs(), model: model.to_owned() }
    }
}

fn random_id(prefix: &str) -> String {
    let random = std::iter::repeat_with(fastrand::alphanumeric).take(24);
    prefix.chars().chain(random).collect()
}

/// Waits for the whole answer.
pub(super) async fn collect(
    mut events: Events,
    envelope: Envelope,
    with_logprobs: bool,
) -> Result<ChatCompletion, ApiError> {
    let mut message = Message { role: "assistant", ..Message::default() };
    let mut content_logprobs = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Prefill { .. } => {}
            Event::Output { event, logprobs } => {
                append(&mut message, event);
                content_logprobs.extend(logprobs.into_iter().map(content_logprob));
            }
            Event::Failed(error) => return Err(error),
            Event::Finished(outcome) => {
                return Ok(ChatCompletion {
                    id: envelope.id,
                    object: "chat.completion",
                    created: envelope.created,
                    model: envelope.model,
                    choices: [Choice {
                        index: 0,
                        message,
                        logprobs: with_logprobs.then_some(Logprobs { content: content_logprobs }),
                        finish_reason: outcome.finish.name(),
                    }],
                    usage: usage(outcome),
                });
            }
        }
    }
    Err(ApiError::WorkerDead)
}

fn append(message: &mut Message, event: OutputEvent) {
    match event {
        OutputEvent::Reasoning(text) => message.reasoning_content.push_str(&text),
        OutputEvent::Content(text) => message.content.push_str(&text),
        OutputEvent::ToolCallStart { name, .. } => message.tool_calls.push(ToolCall {
            id: random_id("call_"),
            r#type: "function",
            function: FunctionCall { name, arguments: String::new() },
        }),
        OutputEvent::ToolCallArguments { index, fragment } => {
            if let Some(call) = message.tool_calls.get_mut(index) {
                call.function.arguments.push_str(&fragment);
            }
        }
        OutputEvent::ToolCallEnd { .. } => {}
    }
}

/// Writes the events of a turn as chunks.
pub(super) struct ChunkEncoder {
    envelope: Envelope,
    include_usage: bool,
    with_logprobs: bool,
}

impl ChunkEncoder {
    pub(super) fn new(
        envelope: Envelope,
        include_usage: bool,
        with_logprobs: bool,
    ) -> ChunkEncoder {
        ChunkEncoder { envelope, include_usage, with_logprobs }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> Frame {
        Frame::json(&ChatCompletionChunk {
            id: &self.envelope.id,
            object: "chat.completion.chunk",
            created: self.envelope.created,
            model: &self.envelope.model,
            choices,
            usage: self.include_usage.then_some(usage),
        })
    }

    fn delta(&self, delta: Delta, logprobs: Vec<TokenLogprob>) -> Frame {
        let content: Vec<ContentLogprob> = logprobs.into_iter().map(content_logprob).collect();
        let logprobs = (self.with_logprobs && !content.is_empty()).then_some(Logprobs { content });
        self.chunk(vec![ChunkChoice { delta, logprobs, ..ChunkChoice::default() }], None)
    }
}

impl Encode for ChunkEncoder {
    fn start(&mut self) -> Vec<Frame> {
        let delta =
            Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        vec![self.delta(delta, Vec::new())]
    }

    fn output(&mut self, event: OutputEvent, logprobs: Vec<TokenLogprob>) -> Vec<Frame> {
        let mut delta = Delta::default();
        match event {
            OutputEvent::Reasoning(text) => delta.reasoning_content = Some(text),
            OutputEvent::Content(text) => delta.content = Some(text),
            OutputEvent::ToolCallStart { index, name } => {
                delta.tool_calls = Some([ToolCallDelta {
                    index,
                    id: Some(random_id("call_")),
                    r#type: Some("function"),
                    function: FunctionDelta { name: Some(name), arguments: String::new() },
                }]);
            }
            OutputEvent::ToolCallArguments { index, fragment } => {
                delta.tool_calls = Some([ToolCallDelta {
                    index,
                    function: FunctionDelta { name: None, arguments: fragment },
                    ..ToolCallDelta::default()
                }]);
            }
            OutputEvent::ToolCallEnd { .. } => return Vec::new(),
        }
        vec![self.delta(delta, logprobs)]
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<Frame> {
        let reason = Some(outcome.finish.name());
        let last = ChunkChoice { finish_reason: reason, ..ChunkChoice::default() };
        let mut frames = vec![self.chunk(vec![last], None)];
        if self.include_usage {
            frames.push(self.chunk(Vec::new(), Some(usage(outcome))));
        }
        frames.push(Frame::text("[DONE]"));
        frames
    }
}

fn usage(outcome: Outcome) -> Usage {
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

fn content_logprob(logprob: TokenLogprob) -> ContentLogprob {
    let ranked = |(token, logprob): (TokenText, f32)| RankedToken {
        token: String::from_utf8_lossy(&token.0).into_owned(),
        // JSON has no infinity; this is what OpenAI's API sends for it.
        logprob: logprob.max(-9999.0),
        bytes: token.0,
    };
    ContentLogprob {
        token: ranked((logprob.token, logprob.logprob)),
        top_logprobs: logprob.top.into_iter().map(ranked).collect(),
    }
}
