//! One turn of the model: tokens in, text, reasoning and tool calls out. A turn
//! may hold several answers (`n`, several prompts), which have one place in the
//! queue and are made one after another.
//!
//! Streaming or not, every endpoint reads the same events, so both forms of an
//! answer hold the same text.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::ops::Range;
use std::time::Duration;
use std::time::Instant;

use lily_engine::CancelToken;
use lily_engine::FinishReason;
use lily_engine::GenerateOptions;
use lily_engine::GeneratedToken;
use lily_text::AnswerPlan;
use lily_text::Located;
use lily_text::OutputEvent;
use lily_text::OutputParser;
use lily_text::ParserOptions;
use lily_text::Tokenizer;
use serde_json::Value;

use crate::error::ApiError;
use crate::generator::GenerateError;
use crate::generator::Generator;
use crate::generator::Step;
use crate::guide::Constraints;
use crate::guide::engine_guide;
use crate::job::EventSender;

/// All that the worker needs to know of a request.
pub(crate) struct Turn {
    pub(crate) tokenizer: Tokenizer,
    /// Each is answered for itself.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Answers to each prompt: that to prompt `p` with number `a` is choice `p * n + a`.
    pub(crate) n: usize,
    pub(crate) options: GenerateOptions,
    /// The answer is text and nothing else: no markup means anything in it.
    pub(crate) plain: bool,
    /// The prompts end inside a think block.
    pub(crate) starts_in_thinking: bool,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) stop: Vec<String>,
    /// What the answer is held to.
    pub(crate) constraints: Constraints,
    /// The same made ready by [`Turn::compile`]; `None` if it leaves everything to the model.
    pub(crate) plan: Option<AnswerPlan>,
    /// End the turn after the first complete tool call.
    pub(crate) single_tool_call: bool,
}

/// What happens to a turn.
#[derive(Debug)]
pub(crate) enum Event {
    /// This many tokens of the prompt are done.
    Prefill { done: usize, total: usize },
    /// The tokens of a choice's prompt with their log probabilities, before its answer, where they
    /// are asked for; the first has none.
    Prompt { choice: usize, tokens: Vec<PromptToken> },
    /// A piece of an answer. Log probabilities come with content only: those of
    /// the tokens that the piece was made of.
    Output { choice: usize, event: OutputEvent, logprobs: Vec<TokenLogprob> },
    /// An answer is complete; others may follow.
    Complete { choice: usize, finish: Finish },
    /// The turn has ended well, every answer of it.
    Finished(Outcome),
    /// The turn has ended badly.
    Failed(ApiError),
}

/// How a turn ended and what it took, all answers together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Why the last answer ended.
    pub(crate) finish: Finish,
    /// Position, in [`Turn::stop`], of the stop string that ended the last answer.
    pub(crate) stop_string: Option<usize>,
    /// Tokens of the prompts, each counted once however many answers it got.
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Those of the completion that came before the end of thinking.
    pub(crate) reasoning_tokens: usize,
    pub(crate) timings: Timings,
}

/// Where the time of a turn went once it had begun to run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timings {
    /// Prompt tokens that the device ran, once for each answer.
    pub(crate) prefill_tokens: usize,
    /// Up to the first token of each answer.
    pub(crate) prefill: Duration,
    /// Tokens after the first one of each answer.
    pub(crate) decode_tokens: usize,
    /// From the first token of each answer to its end.
    pub(crate) decode: Duration,
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
    /// The model ended its turn inside its reasoning: there is no answer.
    Unanswered,
}

impl Finish {
    /// As OpenAI's API says it. That has no word for an answer that never came; `length` is the one
    /// by which clients know that what they have is not all.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length | Finish::Unanswered => "length",
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

/// A token of the prompt.
#[derive(Clone, Debug)]
pub(crate) enum PromptToken {
    /// Nothing was expected here: it is the first.
    First(TokenText),
    /// With its probability after those before it.
    Expected(TokenLogprob),
}

/// The bytes of one token, which need not be whole characters.
#[derive(Clone, Debug)]
pub(crate) struct TokenText(pub(crate) Vec<u8>);

/// No turn will ever run on this generator again.
#[derive(Debug)]
pub(crate) struct GeneratorLost;

impl Turn {
    /// Makes the constraints ready. Takes a while: not for an async thread.
    ///
    /// # Errors
    /// One of them cannot be kept.
    pub(crate) fn compile(mut self) -> Result<Turn, ApiError> {
        let Turn { tokenizer, tools, single_tool_call, .. } = &self;
        self.plan = self.constraints.plan(tokenizer, tools.as_deref(), *single_tool_call)?;
        Ok(self)
    }

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
        let mut total = Outcome {
            finish: Finish::Stop,
            stop_string: None,
            prompt_tokens: self.prompts.iter().map(Vec::len).sum(),
            completion_tokens: 0,
            reasoning_tokens: 0,
            timings: Timings::default(),
        };
        let answers = self.prompts.iter().flat_map(|prompt| (0..self.n).map(move |n| (prompt, n)));
        for (choice, (prompt, n)) in answers.enumerate() {
            let mut reader = Reader::new(self, choice, events);
            let guide = self.plan.as_ref().map(|plan| {
                engine_guide(plan.start(self.starts_in_thinking, &self.options.stop_tokens))
            });
            let result =
                generator.generate(
                    prompt,
                    self.options(n),
                    guide,
                    cancel,
                    &mut |step| match step {
                        Step::Prefill { done, total } => {
                            reader.send(Event::Prefill { done, total })
                        }
                        Step::PromptToken(token) => {
                            reader.prompt_token(&token);
                            ControlFlow::Continue(())
                        }
                        Step::Token(token) => reader.token(token),
                    },
                );
            match result {
                // Only the shutdown cancels a turn that somebody still listens to.
                Ok(FinishReason::Cancelled) if !reader.complete => {
                    let _ = events.send(Event::Failed(ApiError::ShuttingDown));
                    return Ok(());
                }
                Ok(reason) => {
                    total.finish = reader.finish(reason);
                    reader.add_to(&mut total, prompt.len());
                }
                Err(error @ GenerateError::Lost(_)) => {
                    tracing::error!(%error, "generation ended for good");
                    return Err(GeneratorLost);
                }
                Err(error) => {
                    let _ = events.send(Event::Failed(ApiError::from(error)));
                    return Ok(());
                }
            }
        }
        // Nobody listening is the client's choice, not an error.
        let _ = events.send(Event::Finished(total));
        Ok(())
    }

    /// What the generator is asked for answer `n` of a prompt. The first one has the seed of the
    /// request, so that asking for more changes nothing about it; the others have seeds that follow
    /// from it.
    fn options(&self, n: usize) -> GenerateOptions {
        // 2^64 by the golden ratio: the seeds of neighbouring requests share no answer.
        const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut options = self.options.clone();
        let nth = |seed: u64| seed.wrapping_add((n as u64).wrapping_mul(STRIDE));
        options.sampling.seed = options.sampling.seed.map(nth);
        options
    }
}

/// Turns tokens into events.
struct Reader<'a> {
    turn: &'a Turn,
    choice: usize,
    events: &'a EventSender,
    parser: OutputParser,
    /// Tokens whose text has not come out of the parser yet, each with the place of its bytes in
    /// the answer.
    pending: VecDeque<(Range<usize>, TokenLogprob)>,
    /// Tokens of the prompt that have not been sent.
    prompt: Vec<PromptToken>,
    start: Instant,
    first_token: Option<Instant>,
    completion_tokens: usize,
    reasoning_tokens: usize,
    thinking: bool,
    finished_calls: usize,
    /// The turn is over although the generator could go on.
    complete: bool,
}

impl<'a> Reader<'a> {
    fn new(turn: &'a Turn, choice: usize, events: &'a EventSender) -> Reader<'a> {
        let options = ParserOptions {
            starts_in_thinking: turn.starts_in_thinking,
            tools: turn.tools.clone(),
            stop: turn.stop.clone(),
            plain: turn.plain,
        };
        Reader {
            turn,
            choice,
            events,
            parser: OutputParser::new(&turn.tokenizer, options),
            pending: VecDeque::new(),
            prompt: Vec::new(),
            start: Instant::now(),
            first_token: None,
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

    fn prompt_token(&mut self, token: &GeneratedToken) {
        let token = match self.logprob(token) {
            Some(logprob) => PromptToken::Expected(logprob),
            None => PromptToken::First(self.text(token.id)),
        };
        self.prompt.push(token);
    }

    fn send_prompt(&mut self) -> ControlFlow<()> {
        match std::mem::take(&mut self.prompt) {
            tokens if tokens.is_empty() => ControlFlow::Continue(()),
            tokens => self.send(Event::Prompt { choice: self.choice, tokens }),
        }
    }

    fn logprob(&self, token: &GeneratedToken) -> Option<TokenLogprob> {
        let logprobs = token.logprobs.as_ref()?;
        let top = logprobs.top.iter().map(|&(id, value)| (self.text(id), value));
        let (token, logprob) = (self.text(token.id), logprobs.logprob);
        Some(TokenLogprob { token, logprob, top: top.collect() })
    }

    fn token(&mut self, token: GeneratedToken) -> ControlFlow<()> {
        self.send_prompt()?;
        self.completion_tokens += 1;
        self.first_token.get_or_insert_with(Instant::now);
        let start = self.parser.position();
        let output = self.parser.push_located(token.id);
        if let Some(logprob) = self.logprob(&token) {
            self.pending.push_back((start..self.parser.position(), logprob));
        }
        let reasoning = |output: &Located| matches!(output.event, OutputEvent::Reasoning(_));
        self.thinking &= output.iter().all(reasoning);
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

    fn forward(&mut self, output: Vec<Located>) -> ControlFlow<()> {
        for Located { event, span } in output {
            if !matches!(event, OutputEvent::Content(_)) {
                // No content is held back any more: only the newest token can have some.
                self.pending.drain(..self.pending.len().saturating_sub(1));
            }
            let logprobs = self.tokens_of(&span);
            let call_ended = matches!(event, OutputEvent::ToolCallEnd { .. });
            self.send(Event::Output { choice: self.choice, event, logprobs })?;
            self.finished_calls += usize::from(call_ended);
            if call_ended && self.turn.single_tool_call {
                self.complete = true;
                break;
            }
        }
        ControlFlow::Continue(())
    }

    /// The pending tokens that have bytes in `span`. Those before them were reasoning, markup or
    /// white space that is not part of the content.
    fn tokens_of(&mut self, span: &Range<usize>) -> Vec<TokenLogprob> {
        let begun = self.pending.partition_point(|(bytes, _)| bytes.start < span.end);
        let begun = self.pending.drain(..begun);
        begun.filter(|(bytes, _)| bytes.end > span.start).map(|(_, token)| token).collect()
    }

    fn finish(&mut self, reason: FinishReason) -> Finish {
        let _ = self.send_prompt();
        let in_reasoning = self.parser.in_reasoning();
        if !self.complete {
            let rest = self.parser.finish_located();
            let _ = self.forward(rest);
        }
        let finish = match reason {
            _ if self.complete && self.finished_calls == 0 => Finish::Stop,
            FinishReason::Length if !self.complete => Finish::Length,
            _ if self.finished_calls > 0 => Finish::ToolCalls,
            _ if in_reasoning && !self.complete => Finish::Unanswered,
            _ => Finish::Stop,
        };
        let _ = self.send(Event::Complete { choice: self.choice, finish });
        finish
    }

    fn add_to(&self, total: &mut Outcome, prompt_tokens: usize) {
        let end = Instant::now();
        let first_token = self.first_token.unwrap_or(end);
        total.stop_string = self.parser.stop_string();
        total.completion_tokens += self.completion_tokens;
        total.reasoning_tokens += self.reasoning_tokens;
        total.timings.prefill_tokens += prompt_tokens;
        total.timings.prefill += first_token - self.start;
        total.timings.decode_tokens += self.completion_tokens.saturating_sub(1);
        total.timings.decode += end - first_token;
    }
}
