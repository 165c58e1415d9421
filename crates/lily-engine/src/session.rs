//! One token timeline.

use std::sync::Arc;

use lily_device::{PlanId, Sequence};

use crate::cancel::CancelToken;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::generation::{GenerateOptions, Generation};

/// One token timeline and the memory that goes with it.
///
/// The timeline holds every token the model has seen and, after a generation, the last token it
/// gave, which the model sees first thing when the timeline goes on.
pub struct Session {
    shared: Arc<Shared>,
    sequence: Box<dyn Sequence>,
    /// The timeline.
    tokens: Vec<u32>,
    /// Leading tokens that the device has run: all, all but the last, or none where it had run others
    /// after them.
    computed: usize,
    logits: Vec<f32>,
    lost: bool,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, EngineError> {
        let sequence = shared.model.new_sequence()?;
        Ok(Session {
            shared,
            sequence,
            tokens: Vec::new(),
            computed: 0,
            logits: Vec::new(),
            lost: false,
        })
    }

    /// Back to the empty timeline. A lost session stays lost.
    pub fn reset(&mut self) {
        self.sequence.reset();
        self.tokens.clear();
        self.computed = 0;
    }

    /// Tokens in the timeline; the next one gets this position.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// The timeline itself.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Appends `prompt` to the timeline and generates from there. Nothing runs before the first
    /// [`Generation::next_token`]; a prompt that has only partly run when the generation is dropped
    /// or cancelled is in the timeline up to [`Session::position`].
    ///
    /// The prompt may be empty when the last generation ended for length or was cancelled: its last
    /// token is then what generation goes on from.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`], [`EngineError::TokenOutOfRange`]
    /// for the prompt, [`EngineError::Sampling`] and [`EngineError::TooManyLogprobs`] for the options,
    /// [`EngineError::SessionLost`] after a device failure.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: GenerateOptions,
        cancel: &CancelToken,
    ) -> Result<Generation<'_>, EngineError> {
        Generation::new(self, prompt, options, cancel.clone())
    }

    /// Appends `tokens` to the timeline and hands out the logits (one per vocabulary row, padding
    /// rows included) that follow each of the last `last_n` of them, with the token's position.
    ///
    /// # Errors
    /// [`EngineError::ScoreNotPrepared`] without `EngineOptions::score`, [`EngineError::ScoreRange`]
    /// when `last_n` exceeds the tokens, the errors of [`Session::generate`] for the tokens,
    /// [`EngineError::NonFiniteLogits`] and [`EngineError::Device`] while running.
    pub fn score(
        &mut self,
        tokens: &[u32],
        last_n: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        let (plan, rows) = self.shared.plans.score.ok_or(EngineError::ScoreNotPrepared)?;
        let input = self.checked_input(tokens)?;
        if last_n > tokens.len() {
            return Err(EngineError::ScoreRange { last_n, tokens: tokens.len() });
        }
        let (head, tail) = input.split_at(input.len() - last_n);
        for chunk in head.chunks(self.shared.plans.prefill.1) {
            self.advance(chunk)?;
        }
        let vocab_size = self.shared.config.vocab_size;
        for chunk in tail.chunks(rows) {
            let start = self.computed;
            self.run(plan, chunk)?;
            for (row, logits) in self.logits.chunks_exact(vocab_size).enumerate() {
                require_finite(logits, start + row)?;
                each(start + row, logits);
            }
        }
        Ok(())
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Logits of the last run.
    pub(crate) fn logits_mut(&mut self) -> &mut [f32] {
        &mut self.logits
    }

    /// What has to run before generation can go on: the token left over from the last generation,
    /// then `tokens`.
    pub(crate) fn checked_input(&self, tokens: &[u32]) -> Result<Vec<u32>, EngineError> {
        if self.lost {
            return Err(EngineError::SessionLost);
        }
        let (vocab_size, context) = (self.shared.config.vocab_size, self.shared.context);
        if let Some(index) = tokens.iter().position(|&id| id as usize >= vocab_size) {
            return Err(EngineError::TokenOutOfRange { index, id: tokens[index], vocab_size });
        }
        let end = self.tokens.len().saturating_add(tokens.len());
        if end > context {
            return Err(EngineError::PromptTooLong { tokens: end, context });
        }
        let input = [self.pending(), tokens].concat();
        if input.is_empty() { Err(EngineError::EmptyPrompt) } else { Ok(input) }
    }

    /// Tokens of the timeline that have not run.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.computed..]
    }

    /// What comes next runs from the first token on: a recurrent state does not go back.
    pub(crate) fn start_again(&mut self) {
        self.sequence.reset();
        self.computed = 0;
    }

    /// Puts a generated token at the end of the timeline; it has not run yet.
    pub(crate) fn push(&mut self, token: u32) {
        debug_assert_eq!(self.computed, self.tokens.len());
        self.tokens.push(token);
    }

    /// Runs one chunk of [`Session::checked_input`]; the logits of its last token follow.
    pub(crate) fn advance(&mut self, chunk: &[u32]) -> Result<(), EngineError> {
        self.run(self.shared.plans.for_tokens(chunk.len()), chunk)
    }

    /// Lets the device choose up to `steps` tokens after the last one, which has not run yet. `each`
    /// takes them in order and says whether the token belongs to the timeline and whether more
    /// should come.
    pub(crate) fn run_ahead(
        &mut self,
        steps: usize,
        mut each: impl FnMut(u32, usize) -> (bool, bool),
    ) -> Result<(), EngineError> {
        debug_assert_eq!(self.computed + 1, self.tokens.len());
        let (plan, first) = (self.shared.plans.decode, self.computed);
        let (token, tokens) = (self.tokens[first], &mut self.tokens);
        let mut on_token = |id| {
            let (belongs, more) = each(id, tokens.len());
            if belongs {
                tokens.push(id);
            }
            more
        };
        let sequence = self.sequence.as_mut();
        let model = &self.shared.model;
        match model.run_ahead(plan, sequence, token, first, steps, &mut on_token) {
            Ok(fed) if first + fed <= self.tokens.len() => self.computed += fed,
            // The device has seen tokens that are not part of the timeline.
            Ok(_) => self.start_again(),
            Err(error) => {
                self.lost = true;
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn run(&mut self, plan: PlanId, chunk: &[u32]) -> Result<(), EngineError> {
        let (sequence, logits) = (self.sequence.as_mut(), &mut self.logits);
        if let Err(error) = self.shared.model.run(plan, sequence, chunk, self.computed, logits) {
            self.lost = true;
            return Err(error.into());
        }
        // More than one where the device ran ahead of the timeline and starts it again.
        let known = (self.tokens.len() - self.computed).min(chunk.len());
        self.tokens.extend_from_slice(&chunk[known..]);
        self.computed += chunk.len();
        Ok(())
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("position", &self.position())
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// Refuses logits that are not numbers, naming the position they follow.
pub(crate) fn require_finite(logits: &[f32], position: usize) -> Result<(), EngineError> {
    // Without a way out of the loop, it is done many at a time.
    if logits.iter().fold(true, |all, x| all & x.is_finite()) {
        return Ok(());
    }
    match logits.iter().position(|x| !x.is_finite()) {
        Some(id) => Err(EngineError::NonFiniteLogits { position, id }),
        None => Ok(()),
    }
}
