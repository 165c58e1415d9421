//! Measuring a generation: time to the first token, and the rate after it.

use std::time::{Duration, Instant};

use lily_device::DeviceFacts;

use super::output::counted;
use crate::device::describe;

/// A stopwatch that is told about every token.
pub(crate) struct Stopwatch {
    start: Instant,
    first: Option<Instant>,
    last: Instant,
    prompt_tokens: usize,
    tokens: usize,
}

impl Stopwatch {
    /// Starts at the beginning of the prefill.
    pub(crate) fn start(prompt_tokens: usize) -> Self {
        let now = Instant::now();
        Stopwatch { start: now, first: None, last: now, prompt_tokens, tokens: 0 }
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens that have arrived.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// A token has arrived.
    pub(crate) fn token(&mut self) {
        self.last = Instant::now();
        self.first.get_or_insert(self.last);
        self.tokens += 1;
    }

    /// From the start to the first token.
    pub(crate) fn first_token(&self) -> Option<Duration> {
        Some(self.first? - self.start)
    }

    /// From the first token to the last.
    pub(crate) fn decode(&self) -> Duration {
        self.first.map_or(Duration::ZERO, |first| self.last - first)
    }

    /// Prompt tokens per second, up to the first token.
    pub(crate) fn prefill_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.first_token()?)
    }

    /// Tokens per second after the first one.
    pub(crate) fn decode_rate(&self) -> Option<f64> {
        rate(self.tokens.checked_sub(1)?, self.decode())
    }

    /// One line for people, with the machine where they have not been told it yet.
    pub(crate) fn summary_on(&self, device: &DeviceFacts) -> String {
        format!("{} on {}", self.summary(), describe(device))
    }

    /// One line for people.
    pub(crate) fn summary(&self) -> String {
        let at = |r: Option<f64>| r.map_or(String::new(), |r| format!(" at {r:.1} tokens/s"));
        let first = self.first_token().map(|t| format!("first token after {} ms, ", t.as_millis()));
        format!(
            "{}{}, {}{}{}",
            counted(self.prompt_tokens as u64, "prompt token"),
            at(self.prefill_rate()),
            first.unwrap_or_default(),
            counted(self.tokens as u64, "token"),
            at(self.decode_rate()),
        )
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_leaves_out_what_was_not_measured() {
        assert_eq!(Stopwatch::start(8).summary(), "8 prompt tokens, 0 tokens");
        let mut watch = Stopwatch::start(1);
        watch.token();
        let summary = watch.summary();
        assert!(summary.starts_with("1 prompt token"), "{summary}");
        assert!(summary.ends_with(", 1 token"), "{summary}");
    }
}
