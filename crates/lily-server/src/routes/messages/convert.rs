//! From the events of a turn to responses.

use lily_text::OutputEvent;
use serde_json::Map;
use serde_json::Value;

use super::types::Block;
use super::types::Delta;
use super::types::Message;
use super::types::MessageDelta;
use super::types::OutputTokensDetails;
use super::types::StreamEvent;
use super::types::Usage;
use crate::error::ApiError;
use crate::routes::openai::random_id;
use crate::sealed;
use crate::sse::Encode;
use crate::sse::Frame;
use crate::turn::Event;
use crate::turn::Finish;
use crate::turn::Outcome;
use crate::turn::TokenLogprob;
use crate::worker::Events;

/// What of the request shapes the answer.
#[derive(Debug)]
pub(super) struct Form {
    /// The name of the served model.
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
    pub(super) max_tokens: Option<usize>,
    pub(super) stop: Vec<String>,
    /// Thinking is not shown, only carried in the signature.
    pub(super) omit_thinking: bool,
}

/// Waits for the whole answer.
pub(super) async fn collect(mut events: Events, form: Form) -> Result<Message, ApiError> {
    let mut answer = Answer::new(form);
    while let Some(event) = events.next().await {
        match event {
            Event::Prefill { .. } | Event::Prompt { .. } | Event::Complete { .. } => {}
            Event::Output { event, .. } => drop(answer.output(event)),
            Event::Failed(error) => return Err(error),
            Event::Finished(outcome) => {
                answer.finish(outcome);
                return Ok(answer.message);
            }
        }
    }
    Err(ApiError::WorkerDead)
}

/// The answer as far as it has come. Streamed or not, it is put together here.
pub(super) struct Answer {
    form: Form,
    message: Message,
    open: Option<Open>,
}

/// The block that may still grow.
enum Open {
    Thinking(String),
    Text(String),
    /// The arguments are the text of a JSON object, once the call has ended.
    Tool {
        id: String,
        name: String,
        arguments: String,
    },
}

impl Answer {
    pub(super) fn new(form: Form) -> Answer {
        let message = Message {
            id: random_id("msg_"),
            r#type: "message",
            role: "assistant",
            model: form.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: usage(form.prompt_tokens, 0, 0),
        };
        Answer { form, message, open: None }
    }

    /// Position of the block that is open.
    fn index(&self) -> usize {
        self.message.content.len()
    }

    fn delta(&self, delta: Delta) -> StreamEvent {
        StreamEvent::ContentBlockDelta { index: self.index(), delta }
    }

    fn output(&mut self, event: OutputEvent) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        match event {
            OutputEvent::Reasoning(text) => {
                if !matches!(self.open, Some(Open::Thinking(_))) {
                    events.extend(self.begin(Open::Thinking(String::new())));
                }
                if let Some(Open::Thinking(all)) = &mut self.open {
                    all.push_str(&text);
                }
                if !self.form.omit_thinking {
                    events.push(self.delta(Delta::Thinking { thinking: text }));
                }
            }
            OutputEvent::Content(text) => {
                if !matches!(self.open, Some(Open::Text(_))) {
                    events.extend(self.begin(Open::Text(String::new())));
                }
                if let Some(Open::Text(all)) = &mut self.open {
                    all.push_str(&text);
                }
                events.push(self.delta(Delta::Text { text }));
            }
            OutputEvent::ToolCallStart { name, .. } => {
                let id = random_id("toolu_");
                events.extend(self.begin(Open::Tool { id, name, arguments: String::new() }));
            }
            OutputEvent::ToolCallArguments { fragment, .. } => {
                if let Some(Open::Tool { arguments, .. }) = &mut self.open {
                    arguments.push_str(&fragment);
                }
                events.push(self.delta(Delta::InputJson { partial_json: fragment }));
            }
            OutputEvent::ToolCallEnd { .. } => events.extend(self.end()),
        }
        events
    }

    fn begin(&mut self, open: Open) -> Vec<StreamEvent> {
        let mut events = self.end();
        let content_block = match &open {
            Open::Thinking(_) => {
                Block::Thinking { thinking: String::new(), signature: String::new() }
            }
            Open::Text(_) => Block::Text { text: String::new() },
            Open::Tool { id, name, .. } => {
                Block::ToolUse { id: id.clone(), name: name.clone(), input: Map::new() }
            }
        };
        self.open = Some(open);
        events.push(StreamEvent::ContentBlockStart { index: self.index(), content_block });
        events
    }

    /// Closes the block that is open, if there is one.
    fn end(&mut self) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        let Some(open) = self.open.take() else { return events };
        let block = match open {
            Open::Thinking(text) => {
                // Nothing is proved by it: the field must be there, and comes back. Where thinking
                // is shown, the block itself brings the text back.
                let (thinking, carried) = if self.form.omit_thinking {
                    (String::new(), text)
                } else {
                    (text, String::new())
                };
                let signature = sealed::seal(&carried);
                events.push(self.delta(Delta::Signature { signature: signature.clone() }));
                Block::Thinking { thinking, signature }
            }
            Open::Text(text) => Block::Text { text },
            // A call that was cut off has no input yet: half of it must not be taken for the whole.
            Open::Tool { id, name, arguments } => {
                Block::ToolUse { id, name, input: object(&arguments).unwrap_or_default() }
            }
        };
        events.push(StreamEvent::ContentBlockStop { index: self.index() });
        self.message.content.push(block);
        events
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<StreamEvent> {
        let mut events = self.end();
        let (stop_reason, stop_sequence) = self.stop(outcome);
        let usage =
            usage(outcome.prompt_tokens, outcome.completion_tokens, outcome.reasoning_tokens);
        self.message.stop_reason = Some(stop_reason);
        self.message.stop_sequence.clone_from(&stop_sequence);
        self.message.usage = usage;
        let delta = MessageDelta { stop_reason, stop_sequence };
        events.push(StreamEvent::MessageDelta { delta, usage });
        events.push(StreamEvent::MessageStop);
        events
    }

    fn stop(&self, outcome: Outcome) -> (&'static str, Option<String>) {
        let limited = self.form.max_tokens.is_some_and(|limit| outcome.completion_tokens >= limit);
        match outcome.finish {
            Finish::ToolCalls => ("tool_use", None),
            // Of an answer that never came this alone says that something is missing.
            Finish::Unanswered => ("max_tokens", None),
            Finish::Length if limited => ("max_tokens", None),
            Finish::Length => ("model_context_window_exceeded", None),
            Finish::Stop => {
                let met = outcome.stop_string.and_then(|at| self.form.stop.get(at));
                (if met.is_some() { "stop_sequence" } else { "end_turn" }, met.cloned())
            }
        }
    }
}

fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

fn usage(input_tokens: usize, output_tokens: usize, thinking_tokens: usize) -> Usage {
    Usage {
        input_tokens,
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: 0,
        output_tokens,
        output_tokens_details: OutputTokensDetails { thinking_tokens },
    }
}

fn frames(events: Vec<StreamEvent>) -> Vec<Frame> {
    events.iter().map(|event| Frame::event(event.name(), event)).collect()
}

/// Writes the events of a turn as events of the API.
impl Encode for Answer {
    fn start(&mut self) -> Vec<Frame> {
        let message = self.message.clone();
        frames(vec![StreamEvent::MessageStart { message }, StreamEvent::Ping])
    }

    fn output(&mut self, _choice: usize, event: OutputEvent, _: Vec<TokenLogprob>) -> Vec<Frame> {
        frames(Answer::output(self, event))
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<Frame> {
        frames(Answer::finish(self, outcome))
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::event("error", &error.anthropic_body(None))]
    }

    fn keep_alive(&self, progress: String) -> Frame {
        Frame::event(StreamEvent::Ping.name(), &StreamEvent::Ping).commented(progress)
    }
}
