//! From the events of a turn to responses.

use lily_text::OutputEvent;
use serde_json::Map;
use serde_json::Value;

use super::Form;
use super::types::Choice;
use super::types::Completion;
use super::types::Logprobs;
use crate::error::ApiError;
use crate::routes::openai::Envelope;
use crate::routes::openai::LEAST_LOGPROB;
use crate::routes::openai::Timings;
use crate::routes::openai::Usage;
use crate::sse::Encode;
use crate::sse::Frame;
use crate::turn::Event;
use crate::turn::Finish;
use crate::turn::Outcome;
use crate::turn::PromptToken;
use crate::turn::TokenLogprob;
use crate::turn::TokenText;
use crate::worker::Events;

/// Waits for all answers to be whole.
pub(super) async fn collect(
    mut events: Events,
    envelope: Envelope,
    form: Form,
) -> Result<Value, ApiError> {
    let start = |(index, text)| Choice {
        index,
        text,
        logprobs: form.with_logprobs.then(Logprobs::default),
        finish_reason: None,
    };
    let mut choices: Vec<Choice> = form.echo.into_iter().enumerate().map(start).collect();
    let mut offsets = vec![0; choices.len()];
    while let Some(event) = events.next().await {
        match event {
            Event::Prefill { .. } => {}
            Event::Prompt { choice: index, tokens } => {
                let all = choices.get_mut(index).and_then(|choice| choice.logprobs.as_mut());
                if let Some(all) = all {
                    append_prompt(all, tokens, &mut offsets[index]);
                }
            }
            Event::Output { choice: index, event: OutputEvent::Content(text), logprobs } => {
                let Some(choice) = choices.get_mut(index) else { continue };
                choice.text.push_str(&text);
                if let Some(all) = &mut choice.logprobs {
                    append(all, logprobs, &mut offsets[index]);
                }
            }
            // A plain answer has nothing but content.
            Event::Output { .. } => {}
            Event::Complete { choice, finish } => {
                if let Some(choice) = choices.get_mut(choice) {
                    choice.finish_reason = Some(finish.name());
                }
            }
            Event::Failed(error) => return Err(error),
            Event::Finished(outcome) => {
                return Ok(serde_json::json!(Completion {
                    usage: Some(Some(Usage::of(&outcome))),
                    timings: Some(Timings::of(&outcome.timings)),
                    ..completion(&envelope, choices)
                }));
            }
        }
    }
    Err(ApiError::WorkerDead)
}

fn completion(envelope: &Envelope, choices: Vec<Choice>) -> Completion<'_> {
    Completion {
        id: &envelope.id,
        object: "text_completion",
        created: envelope.created,
        model: &envelope.model,
        choices,
        usage: None,
        timings: None,
    }
}

/// Writes the events of a turn as chunks.
pub(super) struct ChunkEncoder {
    envelope: Envelope,
    form: Form,
    /// Characters of each choice so far.
    offsets: Vec<usize>,
}

impl ChunkEncoder {
    pub(super) fn new(envelope: Envelope, form: Form) -> ChunkEncoder {
        ChunkEncoder { envelope, offsets: vec![0; form.echo.len()], form }
    }

    fn chunk(&self, choice: Choice) -> Frame {
        let usage = self.form.include_usage.then_some(None);
        Frame::json(&Completion { usage, ..completion(&self.envelope, vec![choice]) })
    }
}

impl Encode for ChunkEncoder {
    fn start(&mut self) -> Vec<Frame> {
        // Each prompt comes with its tokens.
        if self.form.prompt_logprobs {
            return Vec::new();
        }
        let echo = std::mem::take(&mut self.form.echo).into_iter().enumerate();
        let echo = echo.filter(|(_, text)| !text.is_empty());
        let choices = echo.map(|(index, text)| Choice { index, text, ..Choice::default() });
        choices.map(|choice| self.chunk(choice)).collect()
    }

    fn prompt(&mut self, choice: usize, tokens: Vec<PromptToken>) -> Vec<Frame> {
        let (Some(text), Some(offset)) =
            (self.form.echo.get_mut(choice), self.offsets.get_mut(choice))
        else {
            return Vec::new();
        };
        let (text, mut logprobs) = (std::mem::take(text), Logprobs::default());
        append_prompt(&mut logprobs, tokens, offset);
        let logprobs = Some(logprobs);
        vec![self.chunk(Choice { index: choice, text, logprobs, finish_reason: None })]
    }

    fn output(
        &mut self,
        choice: usize,
        event: OutputEvent,
        logprobs: Vec<TokenLogprob>,
    ) -> Vec<Frame> {
        // A plain answer has nothing but content.
        let OutputEvent::Content(text) = event else { return Vec::new() };
        let mut tokens = self.form.with_logprobs.then(Logprobs::default);
        if let (Some(tokens), Some(offset)) = (&mut tokens, self.offsets.get_mut(choice)) {
            append(tokens, logprobs, offset);
        }
        vec![self.chunk(Choice { index: choice, text, logprobs: tokens, finish_reason: None })]
    }

    fn complete(&mut self, choice: usize, finish: Finish) -> Vec<Frame> {
        let finish_reason = Some(finish.name());
        vec![self.chunk(Choice { index: choice, finish_reason, ..Choice::default() })]
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.form.include_usage {
            frames.push(Frame::json(&Completion {
                usage: Some(Some(Usage::of(&outcome))),
                timings: Some(Timings::of(&outcome.timings)),
                ..completion(&self.envelope, Vec::new())
            }));
        }
        frames.push(Frame::text("[DONE]"));
        frames
    }
}

/// Adds tokens to the lists; `offset` is where the first of them begins.
fn append(all: &mut Logprobs, tokens: Vec<TokenLogprob>, offset: &mut usize) {
    for TokenLogprob { token, logprob, top } in tokens {
        let token = place(all, token, offset);
        let value = |logprob: f32| Value::from(logprob.max(LEAST_LOGPROB));
        let mut rivals: Map<String, Value> =
            top.into_iter().map(|(token, logprob)| (name(token), value(logprob))).collect();
        rivals.insert(token.clone(), value(logprob));
        all.top_logprobs.push(Some(rivals));
        all.tokens.push(token);
        all.token_logprobs.push(Some(f64::from(logprob.max(LEAST_LOGPROB))));
    }
}

/// The same for a prompt.
fn append_prompt(all: &mut Logprobs, tokens: Vec<PromptToken>, offset: &mut usize) {
    for token in tokens {
        match token {
            PromptToken::Expected(token) => append(all, vec![token], offset),
            PromptToken::First(token) => {
                let token = place(all, token, offset);
                all.tokens.push(token);
                all.token_logprobs.push(None);
                all.top_logprobs.push(None);
            }
        }
    }
}

/// Notes where a token begins, and names it.
fn place(all: &mut Logprobs, token: TokenText, offset: &mut usize) -> String {
    all.text_offset.push(*offset);
    *offset += token.0.iter().filter(|&&byte| begins_character(byte)).count();
    name(token)
}

/// Whether this byte of UTF-8 is the first of a character.
fn begins_character(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

/// The text of a token, or its bytes as OpenAI's API writes them where they are
/// no text.
fn name(token: TokenText) -> String {
    String::from_utf8(token.0).unwrap_or_else(|error| {
        let bytes = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
        format!("bytes:{}", bytes.collect::<String>())
    })
}
