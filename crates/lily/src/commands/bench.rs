//! `lily bench`: prefill and decode speed under the published contract.

use std::fs;
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use lily_engine::{CancelToken, EngineOptions, GenerateOptions, SamplingParams, Session};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::output::{bytes, counted, print, print_pretty};
use super::speed::Stopwatch;
use crate::args::BenchArgs;
use crate::device::describe;
use crate::failure::usage;
use crate::model::{self, Loaded, Needs};

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let longest = *args.lengths.iter().max().context("--lengths is empty")?;
    let loaded = model::load(&args.model, &args.engine, Needs::Ids, |options, config| {
        let needed = longest.saturating_add(args.steps).saturating_add(1);
        let (holder, held) = match options.context {
            Some(context) => ("the context", context),
            None => ("the model", config.max_position_embeddings),
        };
        if needed > held {
            return Err(usage(format!(
                "length {longest} and {} need {needed} tokens, {holder} has {held}",
                counted(args.steps as u64, "step")
            )));
        }
        Ok(EngineOptions { context: options.context.or(Some(needed)), ..options })
    })?;
    let mut session = loaded.engine.new_session()?;
    let results = args
        .lengths
        .iter()
        .map(|&length| measure(args, &loaded, &mut session, length))
        .collect::<Result<Vec<_>>>()?;
    if args.json {
        print_pretty(&report(args, &loaded, &results))?;
    } else {
        print(&table(&loaded, &results))?;
    }
    Ok(())
}

/// One timed run.
struct Round {
    first_token_s: f64,
    decode_s: f64,
}

/// Everything about one prompt length.
struct Measured {
    length: usize,
    steps: usize,
    digest: String,
    rounds: Vec<Round>,
}

impl Measured {
    fn first_token_s(&self) -> f64 {
        median(self.rounds.iter().map(|r| r.first_token_s))
    }
    fn decode_s(&self) -> f64 {
        median(self.rounds.iter().map(|r| r.decode_s))
    }
    fn prefill_rate(&self) -> f64 {
        self.length as f64 / self.first_token_s()
    }
    fn decode_rate(&self) -> f64 {
        self.steps as f64 / self.decode_s()
    }
}

fn measure(
    args: &BenchArgs,
    loaded: &Loaded,
    session: &mut Session,
    length: usize,
) -> Result<Measured> {
    let prompt = prompt(length, loaded.engine.config().vocab_size);
    let (_, expected) = round(session, &prompt, args.steps)?; // warm-up
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        let (timed, tokens) = round(session, &prompt, args.steps)?;
        if tokens != expected {
            bail!(
                "round {number} at {length} prompt tokens generated other tokens (digest {}) than \
                 the warm-up ({}); nothing is reported",
                digest(&tokens),
                digest(&expected)
            );
        }
        rounds.push(timed);
    }
    Ok(Measured { length, steps: args.steps, digest: digest(&expected), rounds })
}

/// One prefill to the first token, then `steps` decode steps.
fn round(session: &mut Session, prompt: &[u32], steps: usize) -> Result<(Round, Vec<u32>)> {
    session.reset();
    let options = GenerateOptions {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(steps + 1),
        stop_tokens: Vec::new(),
        logprobs: None,
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
    Ok((Round { first_token_s, decode_s: watch.decode().as_secs_f64() }, tokens))
}

/// Token `i` is `((i * 2654435761) mod 2^32) mod vocab`: the same on every engine, and spread over
/// the vocabulary.
fn prompt(length: usize, vocab_size: usize) -> Vec<u32> {
    let token = |i: usize| {
        let hashed = (i as u64).wrapping_mul(2_654_435_761) & 0xffff_ffff;
        (hashed % vocab_size as u64) as u32
    };
    (0..length).map(token).collect()
}

fn digest(tokens: &[u32]) -> String {
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

fn report(args: &BenchArgs, loaded: &Loaded, results: &[Measured]) -> Value {
    let result = |m: &Measured| {
        let rounds = m.rounds.iter().map(
            |r| json!({"first_token_ms": r.first_token_s * 1e3, "decode_ms": r.decode_s * 1e3}),
        );
        json!({
            "prompt_tokens": m.length,
            "decode_steps": m.steps,
            "prefill_tokens_per_second": m.prefill_rate(),
            "first_token_ms": m.first_token_s() * 1e3,
            "decode_tokens_per_second": m.decode_rate(),
            "decode_ms_per_token": m.decode_s() * 1e3 / m.steps as f64,
            "digest": m.digest,
            "rounds": rounds.collect::<Vec<_>>(),
        })
    };
    json!({
        "model": loaded.name,
        "version": env!("CARGO_PKG_VERSION"),
        "device": describe(&loaded.device),
        "batch": 1,
        "kv_cache": format!("{:?}", args.engine.planning.kv(&loaded.device)).to_lowercase(),
        "prefill_chunk": args.engine.planning.prefill_chunk(&loaded.device),
        "results": results.iter().map(result).collect::<Vec<_>>(),
        "peak_memory_bytes": peak_memory(),
    })
}

fn table(loaded: &Loaded, results: &[Measured]) -> String {
    let mut text = format!("{} on {}\n", loaded.name, describe(&loaded.device));
    text += "prompt  first token    prefill     decode  digest\n";
    for m in results {
        text += &format!(
            "{:>6} {:>9.0} ms {:>6.1} t/s {:>6.1} t/s  {}\n",
            m.length,
            m.first_token_s() * 1e3,
            m.prefill_rate(),
            m.decode_rate(),
            m.digest
        );
    }
    if let Some(peak) = peak_memory() {
        text += &format!("peak memory {}\n", bytes(peak));
    }
    text
}

/// The most memory this process ever held, where the system tells (Linux).
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
