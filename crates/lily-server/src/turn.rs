//! One turn of the model: tokens in, text, reasoning and tool calls out.
//!
//! Streaming or not, every endpoint reads the same events, so both forms of an
//! answer hold the same text.

use std::ops::ControlFlow;

use lily_engine::CancelToken;
use lily_engine::FinishReason;
use lily_engine::GenerateOptions;
use lily_engine::GeneratedToken;
use lily_text::OutputEvent;
use lily_text::OutputParser;
use lily_text::ParserOptions;
use lily_text::Tokenizer;
use serde_json::Value;

use crate::error::ApiError;
use crate::generator::GenerateError;
use crate::generator::Generator;
use crate::generator::Step;
use crate::job::EventSender;

/// All that the worker needs to know of a request.
pub(crate) struct Turn {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) prompt: Vec<u32>,
    pub(crate) options: GenerateOptions,
    /// The prompt ends inside a think block.
    pub(crate) starts_in_thinking: bool,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) stop: Vec<String>,
    /// End the turn after the first complete tool call.
    pub(crate) single_tool_call: bool,
}

/// What happens to a turn.
#[derive(Debug)]
pub(crate) enum Event {
    /// This many tokens of the prompt are done.
    Prefill { done: usize, total: usize },
    /// A piece of the answer. Log probabilities come with content only: those of
    /// the tokens that the piece was made of.
    Output { event: OutputEvent, logprobs: Vec<TokenLogprob> },
    /// The turn has ended well.
    Finished(Outcome),
    /// The turn has ended badly.
    Failed(ApiError),
}

/// How a turn ended and what it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) finish: Finish,
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Those of the completion that came before the end of thinking.
    pub(crate) reasoning_tokens: usize,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended its turn, or a stop string appeared.
    Stop,
    /// The token limit or the end of the context cut the turn.
    Length,
    /// The turn ended with at least one complete tool call.
    ToolCalls,
}

impl Finish {
    /// As OpenAI's API says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// A token of the answer with its probability and that of its rivals.
#[derive(Clone, Debug)]
pub(crate) struct TokenLogprob {
    pub(crate) token: TokenText,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<(TokenText, f32)>,
}

/// The bytes of one token, which need not be whole characters.
#[derive(Clone, Debug)]
pub(crate) struct TokenText(pub(crate) Vec<u8>);

/// No turn will ever run on this generator again.
#[derive(Debug)]
pub(crate) struct GeneratorLost;

impl Turn {
    /// Runs the turn and sends all that happens; ends early when nobody listens.
    ///
    /// # Errors
    /// The generator is lost and can take no other turn.
    pub(crate) fn run<G: Generator>(
        &self,
        generator: &mut G,
        cancel: &CancelToken,
        events: &EventSender,
    ) -> Result<(), GeneratorLost> {
        let mut reader = Reader::new(self, events);
        let result =
            generator.generate(
                &self.prompt,
                self.options.clone(),
                cancel,
                &mut |step| match step {
                    Step::Prefill { done, total } => reader.send(Event::Prefill { done, total }),
                    Step::Token(token) => reader.token(token),
                },
            );
        let last = match result {
            // Only the shutdown cancels a turn that somebody still listens to.
            Ok(FinishReason::Cancelled) if !reader.complete => {
                Event::Failed(ApiError::ShuttingDown)
            }
            Ok(reason) => Event::Finished(reader.finish(reason)),
            Err(error @ GenerateError::Lost(_)) => {
                tracing::error!(%error, "generation ended for good");
                return Err(GeneratorLost);
            }
            Err(error) => Event::Failed(ApiError::from(error)),
        };
        // Nobody listening is the client's choice, not an error.
        let _ = events.send(last);
        Ok(())
    }
}

/// Turns tokens into events.
struct Reader<'a> {
    turn: &'a Turn,
    events: &'a EventSender,
    parser: OutputParser,
    /// Tokens whose text has not come out of the parser yet.
    pending: Vec<TokenLogprob>,
    completion_tokens: usize,
    reasoning_tokens: usize,
    thinking: bool,
    finished_calls: usize,
    /// The turn is over although the generator could go on.
    complete: bool,
}

impl<'a> Reader<'a> {
    fn new(turn: &'a Turn, events: &'a EventSender) -> Reader<'a> {
        let options = ParserOptions {
            starts_in_thinking: turn.starts_in_thinking,
            tools: turn.tools.clone(),
            stop: turn.stop.clone(),
        };
        Reader {
            turn,
            events,
            parser: OutputParser::new(&turn.tokenizer, options),
            pending: Vec::new(),
            completion_tokens: 0,
            reasoning_tokens: 0,
            thinking: turn.starts_in_thinking,
            finished_calls: 0,
            complete: false,
        }
    }

    fn send(&self, event: Event) -> ControlFlow<()> {
        match self.events.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn token(&mut self, token: GeneratedToken) -> ControlFlow<()> {
        self.completion_tokens += 1;
        if let Some(logprobs) = &token.logprobs {
            self.pending.push(TokenLogprob {
                token: self.text(token.id),
                logprob: logprobs.logprob,
                top: logprobs.top.iter().map(|&(id, value)| (self.text(id), value)).collect(),
            });
        }
        let output = self.parser.push(token.id);
        self.thinking &= output.iter().all(|event| matches!(event, OutputEvent::Reasoning(_)));
        self.reasoning_tokens += usize::from(self.thinking);
        self.forward(output)?;
        if self.parser.stopped() {
            self.complete = true;
        }
        if self.complete { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn text(&self, id: u32) -> TokenText {
        let bytes = self.turn.tokenizer.token_bytes(id).map(|(bytes, _)| bytes);
        TokenText(bytes.unwrap_or_default().to_vec())
    }

    fn forward(&mut self, output: Vec<OutputEvent>) -> ControlFlow<()> {
        let content = output.iter().any(|event| matches!(event, OutputEvent::Content(_)));
        if !content && !output.is_empty() {
            self.pending.clear();
        }
        for event in output {
            let logprobs = match &event {
                OutputEvent::Content(text) => self.tokens_of(text),
                _ => Vec::new(),
            };
            let call_ended = matches!(event, OutputEvent::ToolCallEnd { .. });
            self.send(Event::Output { event, logprobs })?;
            self.finished_calls += usize::from(call_ended);
            if call_ended && self.turn.single_tool_call {
                self.complete = true;
                break;
            }
        }
        ControlFlow::Continue(())
    }

    /// The pending tokens that `text` was made of: the shortest tail that covers
    /// it. Those before it were markup or white space that no client sees.
    fn tokens_of(&mut self, text: &str) -> Vec<TokenLogprob> {
        let mut pending = std::mem::take(&mut self.pending);
        let mut covered = 0;
        let tail = pending.iter().rposition(|logprob| {
            covered += logprob.token.0.len();
            covered >= text.len()
        });
        pending.split_off(tail.unwrap_or(0))
    }

    fn finish(&mut self, reason: FinishReason) -> Outcome {
        if !self.complete {
            let rest = self.parser.finish();
            let _ = self.forward(rest);
        }
        let finish = match reason {
            _ if self.complete && self.finished_calls == 0 => Finish::Stop,
            FinishReason::Length if !self.complete => Finish::Length,
            _ if self.finished_calls > 0 => Finish::ToolCalls,
            _ => Finish::Stop,
        };
        Outcome {
            finish,
            prompt_tokens: self.turn.prompt.len(),
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.reasoning_tokens,
        }
    }
}
