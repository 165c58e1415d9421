//! From the events of a turn to responses.

use lily_text::OutputEvent;

use super::Form;
use super::types::ChatCompletion;
use super::types::ChatCompletionChunk;
use super::types::Choice;
use super::types::ChunkChoice;
use super::types::ContentLogprob;
use super::types::Delta;
use super::types::FunctionCall;
use super::types::FunctionDelta;
use super::types::Logprobs;
use super::types::Message;
use super::types::RankedToken;
use super::types::ToolCall;
use super::types::ToolCallDelta;
use crate::error::ApiError;
use crate::routes::openai::Envelope;
use crate::routes::openai::LEAST_LOGPROB;
use crate::routes::openai::Timings;
use crate::routes::openai::Usage;
use crate::routes::openai::random_id;
use crate::sse::Encode;
use crate::sse::Frame;
use crate::turn::Event;
use crate::turn::Finish;
use crate::turn::Outcome;
use crate::turn::TokenLogprob;
use crate::turn::TokenText;
use crate::worker::Events;

/// Waits for all answers to be whole.
pub(super) async fn collect(
    mut events: Events,
    envelope: Envelope,
    with_logprobs: bool,
) -> Result<ChatCompletion, ApiError> {
    let mut choices: Vec<Choice> = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Prefill { .. } | Event::Prompt { .. } => {}
            Event::Output { choice, event, logprobs } => {
                let choice = nth(&mut choices, choice, with_logprobs);
                append(&mut choice.message, event);
                if let Some(all) = &mut choice.logprobs {
                    all.content.extend(logprobs.into_iter().map(content_logprob));
                }
            }
            Event::Complete { choice, finish } => {
                nth(&mut choices, choice, with_logprobs).finish_reason = finish.name();
            }
            Event::Failed(error) => return Err(error),
            Event::Finished(outcome) => {
                let Envelope { id, created, model } = envelope;
                return Ok(ChatCompletion {
                    id,
                    object: "chat.completion",
                    created,
                    model,
                    choices,
                    usage: Usage::of(&outcome),
                    timings: Timings::of(&outcome.timings),
                });
            }
        }
    }
    Err(ApiError::WorkerDead)
}

/// The choice with that index, and all before it.
fn nth(choices: &mut Vec<Choice>, index: usize, with_logprobs: bool) -> &mut Choice {
    while choices.len() <= index {
        choices.push(Choice {
            index: choices.len(),
            message: Message { role: "assistant", ..Message::default() },
            logprobs: with_logprobs.then(Logprobs::default),
            finish_reason: "",
        });
    }
    &mut choices[index]
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
    choices: usize,
    include_usage: bool,
    with_logprobs: bool,
}

impl ChunkEncoder {
    pub(super) fn new(envelope: Envelope, form: &Form) -> ChunkEncoder {
        let &Form { choices, include_usage, with_logprobs, .. } = form;
        ChunkEncoder { envelope, choices, include_usage, with_logprobs }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> ChatCompletionChunk<'_> {
        ChatCompletionChunk {
            id: &self.envelope.id,
            object: "chat.completion.chunk",
            created: self.envelope.created,
            model: &self.envelope.model,
            choices,
            usage: self.include_usage.then_some(usage),
            timings: None,
        }
    }

    fn delta(&self, index: usize, delta: Delta, logprobs: Vec<TokenLogprob>) -> Frame {
        let content: Vec<ContentLogprob> = logprobs.into_iter().map(content_logprob).collect();
        let logprobs = (self.with_logprobs && !content.is_empty()).then_some(Logprobs { content });
        let choice = ChunkChoice { index, delta, logprobs, finish_reason: None };
        Frame::json(&self.chunk(vec![choice], None))
    }
}

impl Encode for ChunkEncoder {
    fn start(&mut self) -> Vec<Frame> {
        let delta =
            || Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        (0..self.choices).map(|choice| self.delta(choice, delta(), Vec::new())).collect()
    }

    fn output(
        &mut self,
        choice: usize,
        event: OutputEvent,
        logprobs: Vec<TokenLogprob>,
    ) -> Vec<Frame> {
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
        vec![self.delta(choice, delta, logprobs)]
    }

    fn complete(&mut self, choice: usize, finish: Finish) -> Vec<Frame> {
        let reason = Some(finish.name());
        let last = ChunkChoice { index: choice, finish_reason: reason, ..ChunkChoice::default() };
        vec![Frame::json(&self.chunk(vec![last], None))]
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let mut chunk = self.chunk(Vec::new(), Some(Usage::of(&outcome)));
            chunk.timings = Some(Timings::of(&outcome.timings));
            frames.push(Frame::json(&chunk));
        }
        frames.push(Frame::text("[DONE]"));
        frames
    }
}

fn content_logprob(logprob: TokenLogprob) -> ContentLogprob {
    let ranked = |(token, logprob): (TokenText, f32)| RankedToken {
        token: String::from_utf8_lossy(&token.0).into_owned(),
        logprob: logprob.max(LEAST_LOGPROB),
        bytes: token.0,
    };
    ContentLogprob {
        token: ranked((logprob.token, logprob.logprob)),
        top_logprobs: logprob.top.into_iter().map(ranked).collect(),
    }
}
