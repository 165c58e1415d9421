//! Tokens, one at a time.

use std::ops::ControlFlow;

use lily_plan::op::NO_TOKEN;

use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::guide::{Allowed, Guide, GuideThread, restrict};
use crate::logprobs::{MAX_TOP_LOGPROBS, TokenLogprobs};
use crate::sampling::{Sampler, SamplingParams};
use crate::session::{Session, require_finite};

/// What to generate; [`Engine::default_options`](crate::Engine::default_options) is where to start.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens at most; `None`: up to the end of the context. 0 only runs the prompt.
    pub max_tokens: Option<usize>,
    /// Tokens that end the generation and are not given out.
    pub stop_tokens: Vec<u32>,
    /// `Some(n)`: each token comes with its log-probability and those of the `n` most probable
    /// tokens, at most [`MAX_TOP_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// With `logprobs`, those of the prompt's tokens too, for [`Generation::on_prompt_token`]. The
    /// prompt then runs token by token, which takes as long as generating it.
    pub prompt_logprobs: bool,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token was chosen.
    Stop,
    /// `max_tokens` were given or the context is full.
    Length,
    /// The cancel token was set.
    Cancelled,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// The token.
    pub id: u32,
    /// When asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// A generation in progress, made by [`Session::generate`].
pub struct Generation<'s> {
    session: &'s mut Session,
    sampler: Sampler,
    max_tokens: Option<usize>,
    stop_tokens: Vec<u32>,
    logprobs: Option<usize>,
    prompt_logprobs: bool,
    cancel: CancelToken,
    on_prefill: Option<PrefillHook<'s>>,
    on_prompt_token: Option<PromptHook<'s>>,
    guide: Guidance,
    /// What has to run before the next token can be chosen.
    input: Vec<u32>,
    n_generated: usize,
    finish: Option<FinishReason>,
    failed: bool,
}

/// How the device's steps ended.
enum End<E> {
    /// All of them ran.
    Steps,
    /// The receiver of the tokens wants no more.
    Broken,
    Finished(FinishReason),
    Failed(E),
}

/// Where the guide of a generation is.
enum Guidance {
    /// There is none, or none any more.
    None,
    /// Nothing has run yet.
    Waiting(Box<dyn Guide>),
    Running(GuideThread),
}

type PrefillHook<'s> = Box<dyn FnMut(usize, usize) + Send + 's>;
type PromptHook<'s> = Box<dyn FnMut(GeneratedToken) + Send + 's>;

impl<'s> Generation<'s> {
    pub(crate) fn new(
        session: &'s mut Session,
        prompt: &[u32],
        options: GenerateOptions,
        cancel: CancelToken,
    ) -> Result<Self, EngineError> {
        let GenerateOptions { sampling, max_tokens, stop_tokens, logprobs, prompt_logprobs } =
            options;
        if let Some(found) = logprobs.filter(|&n| n > MAX_TOP_LOGPROBS) {
            return Err(EngineError::TooManyLogprobs { found, max: MAX_TOP_LOGPROBS });
        }
        let mut sampler = Sampler::new(sampling, session.shared().token_limit)?;
        let input = session.checked_input(prompt)?;
        sampler.see(session.tokens());
        sampler.see(prompt);
        Ok(Generation {
            session,
            sampler,
            max_tokens,
            stop_tokens,
            logprobs,
            prompt_logprobs,
            cancel,
            on_prefill: None,
            on_prompt_token: None,
            guide: Guidance::None,
            input,
            n_generated: 0,
            finish: None,
            failed: false,
        })
    }

    /// Calls `hook(done, total)` after each chunk of the prompt.
    #[must_use]
    pub fn on_prefill(mut self, hook: impl FnMut(usize, usize) + Send + 's) -> Self {
        self.on_prefill = Some(Box::new(hook));
        self
    }

    /// With [`GenerateOptions::prompt_logprobs`], hands out the prompt token by token as it runs, each
    /// with what the model expected there: nothing for the first, before which there is nothing.
    #[must_use]
    pub fn on_prompt_token(mut self, hook: impl FnMut(GeneratedToken) + Send + 's) -> Self {
        self.on_prompt_token = Some(Box::new(hook));
        self
    }

    /// Lets `guide` say what may be chosen. What it forbids is out of the question before anything
    /// else is done with the logits, so that penalties, filters and the draw work on what is left as
    /// they would on a vocabulary without the rest; log-probabilities are over what is left too.
    #[must_use]
    pub fn guided_by(mut self, guide: Box<dyn Guide>) -> Self {
        self.guide = Guidance::Waiting(guide);
        self
    }

    /// The next token; `None` once the generation has ended, see [`Generation::finish_reason`].
    ///
    /// # Errors
    /// [`EngineError::NonFiniteLogits`], [`EngineError::Device`], and for a guide
    /// [`EngineError::Guide`], [`EngineError::GuideLost`] and [`EngineError::NothingAllowed`]; the
    /// generation has then ended.
    pub fn next_token(&mut self) -> Result<Option<GeneratedToken>, EngineError> {
        if self.finish.is_some() || self.failed {
            return Ok(None);
        }
        let result = self.step();
        self.failed = result.is_err();
        result
    }

    /// Hands all tokens to `each`, one by one, until it breaks or fails or the generation ends; see
    /// [`Generation::finish_reason`]. Where the device chooses greedy tokens itself this is faster
    /// than [`Generation::next_token`], for the device need not wait for the host.
    ///
    /// # Errors
    /// Those of [`Generation::next_token`], and what `each` returns.
    pub fn for_each<E: From<EngineError>>(
        &mut self,
        mut each: impl FnMut(GeneratedToken) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        while let Some(token) = self.next_token()? {
            if each(token)?.is_break() || (self.can_run_ahead() && self.run_ahead(&mut each)?) {
                break;
            }
        }
        Ok(())
    }

    /// Why the generation ended; `None` while it goes on or after an error. Known together with the
    /// last token when that reaches a limit.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Tokens given so far.
    pub fn n_generated(&self) -> usize {
        self.n_generated
    }

    fn step(&mut self) -> Result<Option<GeneratedToken>, EngineError> {
        self.start_guide()?;
        if !self.run_input()? {
            self.finish = Some(FinishReason::Cancelled);
            return Ok(None);
        }
        if self.limit_reached() {
            self.finish = Some(FinishReason::Length);
            return Ok(None);
        }
        let position = self.session.position() - 1;
        let logits = self.session.logits_mut();
        require_finite(logits, position)?;
        if let Guidance::Running(guide) = &self.guide {
            let allowed = guide.answer(position)?;
            let possible = &mut logits[..self.sampler.token_limit()];
            if restrict(&allowed, possible, position)?.is_none() {
                self.finish = Some(FinishReason::Stop);
                return Ok(None);
            }
            if allowed == Allowed::Unguided {
                self.guide = Guidance::None;
            }
        }
        let id = self.sampler.sample(logits);
        if self.stop_tokens.contains(&id) {
            self.finish = Some(FinishReason::Stop);
            return Ok(None);
        }
        let possible = &logits[..self.sampler.token_limit()];
        let logprobs = self.logprobs.map(|n| TokenLogprobs::new(possible, id, n));
        self.session.push(id);
        self.input.push(id);
        self.n_generated += 1;
        if self.limit_reached() {
            self.finish = Some(FinishReason::Length);
        } else if let Guidance::Running(guide) = &self.guide {
            guide.chosen(id);
        }
        Ok(Some(GeneratedToken { id, logprobs }))
    }

    /// The first answer of the guide is worked out while the prompt runs.
    fn start_guide(&mut self) -> Result<(), EngineError> {
        self.guide = match std::mem::replace(&mut self.guide, Guidance::None) {
            Guidance::Waiting(guide) => {
                let position = self.session.position();
                let lost = |error| EngineError::GuideLost {
                    position,
                    reason: format!("no thread for it: {error}"),
                };
                Guidance::Running(GuideThread::start(guide).map_err(lost)?)
            }
            other => other,
        };
        Ok(())
    }

    /// Whether the device can choose what follows the last token.
    fn can_run_ahead(&self) -> bool {
        self.finish.is_none()
            && self.session.shared().token_slot
            && self.logprobs.is_none()
            && matches!(self.guide, Guidance::None)
            && self.sampler.is_plain_greedy()
    }

    /// Lets the device go on to the end of the generation; `true` when `each` broke before.
    fn run_ahead<E: From<EngineError>>(
        &mut self,
        each: &mut impl FnMut(GeneratedToken) -> Result<ControlFlow<()>, E>,
    ) -> Result<bool, E> {
        // The last token, which the device runs first.
        self.input.clear();
        let room = self.session.shared().context - self.session.position();
        let left = self.max_tokens.map_or(room, |max| room.min(max - self.n_generated));
        let (cancel, stop_tokens) = (&self.cancel, &self.stop_tokens);
        let mut given = 0;
        let mut end = End::Steps;
        let ran = self.session.run_ahead(left, |id, position| {
            if id == NO_TOKEN {
                end = End::Failed(EngineError::NoToken { position: position - 1 }.into());
            } else if cancel.is_cancelled() {
                end = End::Finished(FinishReason::Cancelled);
            } else if stop_tokens.contains(&id) {
                end = End::Finished(FinishReason::Stop);
            } else {
                given += 1;
                match each(GeneratedToken { id, logprobs: None }) {
                    Ok(ControlFlow::Continue(())) => return (true, true),
                    Ok(ControlFlow::Break(())) => end = End::Broken,
                    Err(error) => end = End::Failed(error),
                }
                return (true, false);
            }
            (false, false)
        });
        self.n_generated += given;
        self.failed = ran.is_err() || matches!(end, End::Failed(_));
        ran?;
        // What goes on from the last token needs its logits, which the device has kept to itself.
        if self.session.pending().is_empty() && !matches!(end, End::Finished(FinishReason::Stop)) {
            self.session.start_again();
        }
        match end {
            End::Failed(error) => return Err(error),
            End::Finished(reason) => self.finish = Some(reason),
            End::Steps | End::Broken if self.limit_reached() => {
                self.finish = Some(FinishReason::Length);
            }
            End::Steps | End::Broken => self.input = self.session.pending().to_vec(),
        }
        Ok(matches!(end, End::Broken))
    }

    /// Runs the input in chunks; `false` when cancelled before its end.
    fn run_input(&mut self) -> Result<bool, EngineError> {
        let input = std::mem::take(&mut self.input);
        if self.prompt_logprobs && self.n_generated == 0 {
            return self.run_prompt_by_token(&input);
        }
        let mut done = 0;
        for chunk in input.chunks(self.session.shared().plans.prefill.1) {
            if self.cancel.is_cancelled() {
                return Ok(false);
            }
            self.session.advance(chunk)?;
            done += chunk.len();
            if self.n_generated == 0
                && let Some(hook) = &mut self.on_prefill
            {
                hook(done, input.len());
            }
        }
        Ok(true)
    }

    /// [`Generation::run_input`] for a prompt whose own log-probabilities are wanted.
    fn run_prompt_by_token(&mut self, input: &[u32]) -> Result<bool, EngineError> {
        let chunk = self.session.shared().plans.prefill.1;
        let mut logprobs = None;
        for (index, &id) in input.iter().enumerate() {
            if self.cancel.is_cancelled() {
                return Ok(false);
            }
            if let Some(hook) = &mut self.on_prompt_token {
                hook(GeneratedToken { id, logprobs: logprobs.take() });
            }
            self.session.advance(&[id])?;
            let (done, position) = (index + 1, self.session.position() - 1);
            let possible = &self.session.logits_mut()[..self.sampler.token_limit()];
            // A token that cannot be sampled has no probability.
            let next = input.get(done).filter(|&&next| (next as usize) < possible.len());
            if let (Some(&next), Some(n)) = (next, self.logprobs) {
                require_finite(possible, position)?;
                logprobs = Some(TokenLogprobs::new(possible, next, n));
            }
            if (done % chunk == 0 || done == input.len())
                && let Some(hook) = &mut self.on_prefill
            {
                hook(done, input.len());
            }
        }
        Ok(true)
    }

    fn limit_reached(&self) -> bool {
        self.session.position() >= self.session.shared().context
            || self.max_tokens.is_some_and(|max| self.n_generated >= max)
    }
}

impl std::fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation")
            .field("session", &self.session)
            .field("n_generated", &self.n_generated)
            .field("finish", &self.finish)
            .finish_non_exhaustive()
    }
}
