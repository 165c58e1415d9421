//! Saying which tokens may come next, while the device computes what the model thinks of them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::error::EngineError;

/// A set of tokens, one bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// Bit `id % 32` of word `id / 32` says whether the token is in the set; tokens behind the last
    /// word are not.
    pub fn from_words(words: Vec<u32>) -> Self {
        TokenMask { words }
    }
    /// The tokens below `len`.
    pub fn all(len: usize) -> Self {
        let mut words = vec![u32::MAX; len.div_ceil(32)];
        if let Some(last) = words.last_mut().filter(|_| !len.is_multiple_of(32)) {
            *last = (1 << (len % 32)) - 1;
        }
        TokenMask { words }
    }
    /// Whether the token is in the set.
    pub fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }
    /// Puts a token in.
    pub fn insert(&mut self, id: u32) {
        let index = id as usize / 32;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (id % 32);
    }
    /// Takes a token out.
    pub fn remove(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }

    /// Makes the logits of all other tokens negative infinity; `false` when none is left.
    pub(crate) fn apply(&self, logits: &mut [f32]) -> bool {
        let mut left = 0;
        let mut blocks = logits.chunks_mut(32);
        // The words first: `zip` asks its second side only where the first has something.
        for (&word, block) in self.words.iter().zip(blocks.by_ref()) {
            left |= if block.len() == 32 { word } else { word & ((1 << block.len()) - 1) };
            match word {
                u32::MAX => {}
                0 => block.fill(f32::NEG_INFINITY),
                _ => {
                    for (bit, logit) in block.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
        blocks.for_each(|block| block.fill(f32::NEG_INFINITY));
        left != 0
    }
}

/// What a guide allows as the next token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Any token, this time.
    Any,
    /// These tokens. Whether the generation may end here is whether its stop tokens are among them.
    Tokens(Arc<TokenMask>),
    /// This token.
    Only(u32),
    /// None: the generation ends here, as if a stop token had been chosen.
    End,
    /// Any token, from here on: the guide is not asked again.
    Unguided,
}

/// Why a guide cannot go on, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct GuideError {
    /// What happened.
    pub message: String,
}

/// Restricts what a generation may choose; see
/// [`Generation::guided_by`](crate::Generation::guided_by).
///
/// It is asked on a thread of its own, while the device runs the token before: what it computes
/// costs time only where it takes longer than the device does.
pub trait Guide: Send {
    /// What may come next. Called once before each token.
    ///
    /// # Errors
    /// When the guide cannot tell; the generation then fails with [`EngineError::Guide`].
    fn allowed(&mut self) -> Result<Allowed, GuideError>;

    /// Takes note of the token that was chosen; it was among those allowed.
    ///
    /// # Errors
    /// As [`Guide::allowed`].
    fn chosen(&mut self, token: u32) -> Result<(), GuideError>;
}

/// A guide at work on its thread. Dropping it waits for the thread, which is at most for one answer.
pub(crate) struct GuideThread {
    /// `None` only while it is dropped.
    tokens: Option<SyncSender<u32>>,
    answers: Receiver<Result<Allowed, GuideError>>,
    thread: Option<JoinHandle<()>>,
}

impl GuideThread {
    /// Asks for the first answer at once.
    pub(crate) fn start(guide: Box<dyn Guide>) -> std::io::Result<Self> {
        // One token and one answer are on their way at most.
        let (tokens, chosen) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("lily-guide".to_owned())
            .spawn(move || answer_all(guide, &chosen, &answer))?;
        Ok(GuideThread { tokens: Some(tokens), answers, thread: Some(thread) })
    }

    /// The answer to the last token, which was at `position`; waits for it.
    pub(crate) fn answer(&self, position: usize) -> Result<Allowed, EngineError> {
        match self.answers.recv() {
            Ok(answer) => answer.map_err(|source| EngineError::Guide { position, source }),
            Err(_) => {
                Err(EngineError::GuideLost { position, reason: "it has panicked".to_owned() })
            }
        }
    }

    /// Hands over the token that was chosen, to be answered.
    pub(crate) fn chosen(&self, token: u32) {
        if let Some(tokens) = &self.tokens {
            // A guide that has panicked is found out when it is asked.
            let _ = tokens.send(token);
        }
    }
}

impl Drop for GuideThread {
    fn drop(&mut self) {
        self.tokens = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported where the answer was missed.
            let _ = thread.join();
        }
    }
}

fn answer_all(
    mut guide: Box<dyn Guide>,
    tokens: &Receiver<u32>,
    answers: &SyncSender<Result<Allowed, GuideError>>,
) {
    let mut answer = guide.allowed();
    while answers.send(answer).is_ok() {
        let Ok(token) = tokens.recv() else { return };
        answer = guide.chosen(token).and_then(|()| guide.allowed());
    }
}

/// What an answer leaves of the logits of the tokens that can be sampled; `None` ends the
/// generation.
pub(crate) fn restrict(
    allowed: &Allowed,
    logits: &mut [f32],
    position: usize,
) -> Result<Option<()>, EngineError> {
    let left = match allowed {
        Allowed::Any | Allowed::Unguided => true,
        Allowed::Tokens(mask) => mask.apply(logits),
        Allowed::Only(id) => match logits.get(*id as usize).copied() {
            Some(logit) => {
                logits.fill(f32::NEG_INFINITY);
                logits[*id as usize] = logit;
                true
            }
            None => false,
        },
        Allowed::End => return Ok(None),
    };
    if left { Ok(Some(())) } else { Err(EngineError::NothingAllowed { position }) }
}
