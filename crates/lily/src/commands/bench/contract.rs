//! The contract: which tokens go in, what is timed, and which figures count.

use std::ops::ControlFlow;

use anyhow::{Result, bail};
use lily_engine::{CancelToken, GenerateOptions, SamplingParams, Session};
use sha2::{Digest, Sha256};

use crate::commands::speed::Stopwatch;

/// What is measured: a prefill of `length` tokens, then `steps` decode steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) length: usize,
    pub(super) steps: usize,
}

impl Shape {
    /// Tokens of context it takes.
    pub(super) fn context(self) -> usize {
        self.length.saturating_add(self.steps).saturating_add(1)
    }
}

/// One timed run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Round {
    pub(super) first_token_s: f64,
    pub(super) decode_s: f64,
}

/// One run with what it generated, where the engine tells.
#[derive(Debug, PartialEq)]
pub(super) struct Timed {
    pub(super) round: Round,
    pub(super) tokens: Option<Vec<u32>>,
}

/// The runs of one shape on one engine.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) shape: Shape,
    /// What every run generated.
    pub(super) tokens: Option<Vec<u32>>,
    pub(super) rounds: Vec<Round>,
}

impl Measured {
    pub(super) fn new(shape: Shape) -> Self {
        Measured { shape, tokens: None, rounds: Vec::new() }
    }

    /// A run that is not counted, but must generate what the others do.
    pub(super) fn warm_up(&mut self, who: &str, timed: Timed) -> Result<()> {
        self.agree(who, "another warm-up", timed.tokens)
    }

    /// A run that counts.
    pub(super) fn add(&mut self, who: &str, timed: Timed) -> Result<()> {
        self.agree(who, &format!("round {}", self.rounds.len() + 1), timed.tokens)?;
        self.rounds.push(timed.round);
        Ok(())
    }

    fn agree(&mut self, who: &str, what: &str, tokens: Option<Vec<u32>>) -> Result<()> {
        match (&self.tokens, &tokens) {
            (Some(expected), Some(found)) if expected != found => bail!(
                "{who}{what} at {} prompt tokens generated other tokens (digest {}) than the \
                 warm-up ({}); nothing is reported",
                self.shape.length,
                digest(found),
                digest(expected)
            ),
            (None, Some(_)) => self.tokens = tokens,
            _ => {}
        }
        Ok(())
    }

    pub(super) fn digest(&self) -> Option<String> {
        self.tokens.as_deref().map(digest)
    }
    pub(super) fn first_token_s(&self) -> f64 {
        median(self.rounds.iter().map(|r| r.first_token_s))
    }
    pub(super) fn decode_s(&self) -> f64 {
        median(self.rounds.iter().map(|r| r.decode_s))
    }
    /// Prompt tokens per second up to the first token.
    pub(super) fn prefill_rate(&self) -> f64 {
        self.shape.length as f64 / self.first_token_s()
    }
    /// Tokens per second after the first one.
    pub(super) fn decode_rate(&self) -> f64 {
        self.shape.steps as f64 / self.decode_s()
    }
}

/// One prefill to the first token, then the decode steps.
pub(super) fn run(session: &mut Session, prompt: &[u32], steps: usize) -> Result<Timed> {
    session.reset();
    let options = GenerateOptions {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(steps + 1),
        stop_tokens: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
    };
    let mut watch = Stopwatch::start(prompt.len());
    let mut generation = session.generate(prompt, options, &CancelToken::new())?;
    let mut tokens = Vec::with_capacity(steps + 1);
    generation.for_each(|token| {
        watch.token();
        tokens.push(token.id);
        anyhow::Ok(ControlFlow::Continue(()))
    })?;
    if tokens.len() != steps + 1 {
        bail!("{} tokens came, expected {}; is --context too small?", tokens.len(), steps + 1);
    }
    let first_token_s = watch.first_token().unwrap_or_default().as_secs_f64();
    let round = Round { first_token_s, decode_s: watch.decode().as_secs_f64() };
    Ok(Timed { round, tokens: Some(tokens) })
}

/// Token `i` is `((i * 2654435761) mod 2^32) mod vocab`: the same on every engine, and spread over
/// the vocabulary.
pub(super) fn prompt(length: usize, vocab_size: usize) -> Vec<u32> {
    let token = |i: usize| {
        let hashed = (i as u64).wrapping_mul(2_654_435_761) & 0xffff_ffff;
        (hashed % vocab_size as u64) as u32
    };
    (0..length).map(token).collect()
}

pub(super) fn digest(tokens: &[u32]) -> String {
    let mut hash = Sha256::new();
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The middle value, or the mean of the two in the middle; 0 of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(tokens: &[u32]) -> Timed {
        let round = Round { first_token_s: 1.0, decode_s: 1.0 };
        Timed { round, tokens: Some(tokens.to_vec()) }
    }

    #[test]
    fn prompt_tokens_follow_the_contract() {
        assert_eq!(prompt(4, 248_320), [0, 143_281, 13_666, 156_947]);
    }

    #[test]
    fn the_median_of_two_is_their_mean() {
        assert_eq!(median([3.0, 1.0].into_iter()), 2.0);
        assert_eq!(median([9.0, 1.0, 2.0].into_iter()), 2.0);
    }

    #[test]
    fn the_digest_tells_token_lists_apart() {
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
        assert_eq!(digest(&[1, 2]).len(), 16);
    }

    #[test]
    fn a_round_that_generates_other_tokens_is_an_error() {
        let mut measured = Measured::new(Shape { length: 8, steps: 1 });
        measured.warm_up("", timed(&[1, 2])).unwrap();
        measured.add("", timed(&[1, 2])).unwrap();
        let refusal = measured.add("the peer: ", timed(&[1, 3])).unwrap_err().to_string();
        assert!(refusal.starts_with("the peer: round 2 at 8 prompt tokens"), "{refusal}");
        assert!(refusal.ends_with("nothing is reported"), "{refusal}");
        assert_eq!(measured.rounds.len(), 1);
    }

    #[test]
    fn an_engine_that_tells_no_tokens_has_no_digest() {
        let mut measured = Measured::new(Shape { length: 8, steps: 1 });
        measured.add("", Timed { tokens: None, ..timed(&[]) }).unwrap();
        assert_eq!((measured.digest(), measured.rounds.len()), (None, 1));
    }
}
