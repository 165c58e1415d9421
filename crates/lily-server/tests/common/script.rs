//! A generator that follows a script instead of a model.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc;

use lily_engine::CancelToken;
use lily_engine::FinishReason;
use lily_engine::GenerateOptions;
use lily_engine::GeneratedToken;
use lily_engine::Guide;
use lily_engine::TokenLogprobs;
use lily_server::GenerateError;
use lily_server::Generator;
use lily_server::Sink;
use lily_server::Step;
use lily_text::Tokenizer;
use tokio::sync::oneshot;

/// What the model does with one request.
pub(crate) enum Reply {
    /// Says the text, then ends its turn.
    Says(&'static str),
    /// Reports two chunks of prefill, then says the text.
    PrefillsThenSays(&'static str),
    /// Says the text, then reaches the limit.
    RunsOutAfter(&'static str),
    /// Gives the tokens, then ends for that reason.
    Gives(Vec<u32>, FinishReason),
    /// Says the text, then fails.
    FailsAfter(&'static str),
    /// Says the text, then panics.
    PanicsAfter(&'static str),
    /// Can never say anything again.
    IsLost,
    /// Says one token, tells `started`, then goes on until it is cancelled and
    /// tells `cancelled`.
    GoesOn { started: oneshot::Sender<()>, cancelled: oneshot::Sender<()> },
    /// Reports the first token of the prompt, tells `started`, then goes on without
    /// another until it is cancelled, and tells `cancelled`.
    PrefillsOn { started: oneshot::Sender<()>, cancelled: oneshot::Sender<()> },
    /// Says the same token until it is cancelled or nobody listens, and tells
    /// `cancelled`.
    Floods { cancelled: oneshot::Sender<()> },
    /// Tells `started`, waits for `release`, then does what `reply` says.
    Waits { started: oneshot::Sender<()>, release: mpsc::Receiver<()>, reply: Box<Reply> },
}

/// What the generator was asked.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) prompt: String,
    pub(crate) options: GenerateOptions,
}

pub(crate) struct Scripted {
    tokenizer: Tokenizer,
    replies: VecDeque<Reply>,
    calls: mpsc::Sender<Call>,
}

impl Scripted {
    pub(crate) fn new(
        tokenizer: Tokenizer,
        replies: Vec<Reply>,
        calls: mpsc::Sender<Call>,
    ) -> Scripted {
        Scripted { tokenizer, replies: replies.into(), calls }
    }
}

impl Generator for Scripted {
    fn generate(
        &mut self,
        prompt: &[u32],
        options: GenerateOptions,
        _guide: Option<Box<dyn Guide>>,
        cancel: &CancelToken,
        sink: &mut Sink<'_>,
    ) -> Result<FinishReason, GenerateError> {
        let call = Call { prompt: self.tokenizer.decode(prompt, false), options };
        let logprobs = call.options.logprobs;
        let _ = self.calls.send(call);
        let mut reply = self.replies.pop_front().unwrap_or(Reply::Says("The script has ended."));
        if let Reply::Waits { started, release, reply: after } = reply {
            let _ = started.send(());
            let _ = release.recv();
            reply = *after;
        }
        if let Reply::Gives(ids, reason) = reply {
            return Ok(match give(ids, logprobs, sink) {
                ControlFlow::Continue(()) => reason,
                ControlFlow::Break(()) => FinishReason::Cancelled,
            });
        }
        let mut say = |text, reason| match say(&self.tokenizer, text, logprobs, sink) {
            ControlFlow::Continue(()) => reason,
            ControlFlow::Break(()) => FinishReason::Cancelled,
        };
        match reply {
            Reply::Says(text) => Ok(say(text, FinishReason::Stop)),
            Reply::PrefillsThenSays(text) => {
                let total = prompt.len();
                for done in [1, total] {
                    let _ = sink(Step::Prefill { done, total });
                }
                let _ = self::say(&self.tokenizer, text, logprobs, sink);
                Ok(FinishReason::Stop)
            }
            Reply::RunsOutAfter(text) => Ok(say(text, FinishReason::Length)),
            Reply::FailsAfter(text) => {
                say(text, FinishReason::Stop);
                Err(GenerateError::Failed("logit 7 after position 3 is not finite".to_owned()))
            }
            Reply::PanicsAfter(text) => {
                say(text, FinishReason::Stop);
                panic!("scripted panic")
            }
            Reply::IsLost => Err(GenerateError::Lost("no memory".to_owned())),
            Reply::GoesOn { started, cancelled } => {
                say("a", FinishReason::Stop);
                let _ = started.send(());
                while !cancel.is_cancelled() {
                    std::thread::yield_now();
                }
                let _ = cancelled.send(());
                Ok(FinishReason::Cancelled)
            }
            Reply::Gives(..) => unreachable!("given above"),
            Reply::PrefillsOn { started, cancelled } => {
                let _ = sink(Step::Prefill { done: 1, total: prompt.len() });
                let _ = started.send(());
                while !cancel.is_cancelled() {
                    std::thread::yield_now();
                }
                let _ = cancelled.send(());
                Ok(FinishReason::Cancelled)
            }
            Reply::Floods { cancelled } => {
                while self::say(&self.tokenizer, "a", logprobs, sink).is_continue()
                    && !cancel.is_cancelled()
                {
                    std::thread::yield_now();
                }
                let _ = cancelled.send(());
                Ok(FinishReason::Cancelled)
            }
            Reply::Waits { .. } => panic!("a script waits once per reply"),
        }
    }
}

fn say(
    tokenizer: &Tokenizer,
    text: &str,
    logprobs: Option<usize>,
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    give(tokenizer.encode(text).unwrap(), logprobs, sink)
}

fn give(ids: Vec<u32>, logprobs: Option<usize>, sink: &mut Sink<'_>) -> ControlFlow<()> {
    for id in ids {
        let logprobs = logprobs.map(|n| TokenLogprobs {
            logprob: -0.5,
            top: (0..n).map(|rank| (id, -0.5 - rank as f32)).collect(),
        });
        sink(Step::Token(GeneratedToken { id, logprobs }))?;
    }
    ControlFlow::Continue(())
}
