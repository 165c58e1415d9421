//! Whole models: tokens and likelihoods against the CPU's, and runs against each other.

use std::ops::ControlFlow;

use anyhow::{Result, ensure};
use clap::Args;
use lily_checkpoint::Checkpoint;
use lily_cpu::{CpuDevice, CpuOptions};
use lily_device::{Device, NoProgress};
use lily_engine::{CancelToken, Engine, EngineOptions, GenerateOptions, SamplingParams, Session};
use lily_model::Fusions;
use lily_plan::buffer::Elem;
use serde_json::json;

use crate::Verdict;
use crate::models::{ModelArgs, prompt};

#[derive(Clone, Debug, Args)]
pub(crate) struct TokensArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens to generate
    #[arg(long, default_value_t = 64)]
    steps: usize,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 96)]
    prompt: usize,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens to score
    #[arg(long, default_value_t = 193)]
    tokens: usize,
    /// Perplexities may differ by this part
    #[arg(long, default_value_t = 0.0004)]
    perplexity: f64,
    /// The most probable token must be the same for this part of the positions
    #[arg(long, default_value_t = 0.9635)]
    agreement: f64,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CompanyArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens to generate
    #[arg(long, default_value_t = 64)]
    steps: usize,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 700)]
    prompt: usize,
}

pub(crate) fn engine(
    args: &ModelArgs,
    checkpoint: &Checkpoint,
    device: &dyn Device,
    score: bool,
) -> Result<Engine> {
    let cpu = device.facts().kind == "cpu";
    let options = EngineOptions {
        context: Some(args.context),
        prefill_chunk: args.rows,
        // As exact as the products are.
        kv: if cpu { Elem::F32 } else { device.facts().activations },
        fusions: Some(if cpu { Fusions::cpu() } else { args.fusions()? }),
        memory_limit: Some(u64::MAX),
        score,
        ..EngineOptions::default()
    };
    Ok(Engine::load(checkpoint, device, options, &NoProgress)?)
}

pub(crate) fn greedy(session: &mut Session, prompt: &[u32], steps: usize) -> Result<Vec<u32>> {
    session.reset();
    let options = GenerateOptions {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(steps),
        stop_tokens: Vec::new(),
        logprobs: None,
    };
    let mut generation = session.generate(prompt, options, &CancelToken::new())?;
    let mut tokens = Vec::new();
    generation.for_each(|token| {
        tokens.push(token.id);
        anyhow::Ok(ControlFlow::Continue(()))
    })?;
    ensure!(tokens.len() == steps, "{} tokens came, expected {steps}", tokens.len());
    Ok(tokens)
}

pub(crate) fn tokens(args: &TokensArgs) -> Result<Verdict> {
    let (checkpoint, _folder) = args.model.open()?;
    let prompt = prompt(args.prompt, checkpoint.config().vocab_size);
    let cuda = engine(&args.model, &checkpoint, &args.model.cuda()?, false)?;
    let found = greedy(&mut cuda.new_session()?, &prompt, args.steps)?;
    let cpu = CpuDevice::new(CpuOptions::default());
    let cpu = engine(&args.model, &checkpoint, &cpu, true)?;
    let mut session = cpu.new_session()?;
    let expected = greedy(&mut session, &prompt, args.steps)?;
    let first = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    eprintln!("{} tokens, first difference: {first:?}", args.steps);
    let mut gap = None;
    if let Some(first) = first {
        // How sure the CPU was there: a tie is no difference.
        session.reset();
        let so_far = [&prompt[..], &expected[..first]].concat();
        session.score(&so_far, 1, |_, logits| {
            let (a, b) = (logits[expected[first] as usize], logits[found[first] as usize]);
            let largest = logits.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
            gap = Some((a, b, (a - b) / largest));
        })?;
        eprintln!("there the CPU's logits are {gap:?} (last: gap over largest logit)");
    }
    let tie = gap.is_none_or(|(_, _, relative)| relative.abs() < 2e-2);
    let report = json!({
        "steps": args.steps,
        "first_difference": first,
        "logits_there": gap.map(|(expected, found, _)| [expected, found]),
        "relative_gap": gap.map(|(.., relative)| relative),
        "found": found,
        "expected": expected,
    });
    Ok(Verdict { passed: first.is_none() || tie, report })
}

/// Log-likelihood of `token` and the most probable id.
fn judge(logits: &[f32], token: u32) -> (f64, usize) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    let best = logits.iter().position(|&logit| logit == most).unwrap_or(usize::MAX);
    (f64::from(logits[token as usize] - most) - sum.ln(), best)
}

pub(crate) fn score(args: &ScoreArgs) -> Result<Verdict> {
    let (checkpoint, _folder) = args.model.open()?;
    let tokens = prompt(args.tokens, checkpoint.config().vocab_size);
    let scored = &tokens[..tokens.len() - 1];
    let run = |engine: &Engine| -> Result<Vec<(f64, usize)>> {
        let mut judged = Vec::new();
        let start = std::time::Instant::now();
        engine.new_session()?.score(scored, scored.len(), |position, logits| {
            judged.push(judge(logits, tokens[position + 1]));
        })?;
        eprintln!("{} positions in {:.2} s", judged.len(), start.elapsed().as_secs_f64());
        Ok(judged)
    };
    let found = run(&engine(&args.model, &checkpoint, &args.model.cuda()?, true)?)?;
    let cpu = CpuDevice::new(CpuOptions::default());
    let expected = run(&engine(&args.model, &checkpoint, &cpu, true)?)?;
    let perplexity = |judged: &[(f64, usize)]| {
        (-judged.iter().map(|(log, _)| log).sum::<f64>() / judged.len() as f64).exp()
    };
    let (ours, theirs) = (perplexity(&found), perplexity(&expected));
    let agreed = found.iter().zip(&expected).filter(|(a, b)| a.1 == b.1).count();
    let agreement = agreed as f64 / expected.len() as f64;
    let off = (ours / theirs - 1.0).abs();
    eprintln!("perplexity {ours:.4} against {theirs:.4} ({:.4} %)", off * 100.0);
    eprintln!("most probable token equal at {agreed} of {} positions", expected.len());
    let report = json!({
        "positions": expected.len(),
        "perplexity": ours,
        "perplexity_cpu": theirs,
        "perplexity_off": off,
        "agreement": agreement,
    });
    Ok(Verdict { passed: off <= args.perplexity && agreement >= args.agreement, report })
}

pub(crate) fn company(args: &CompanyArgs) -> Result<Verdict> {
    let (checkpoint, _folder) = args.model.open()?;
    let prompt = prompt(args.prompt, checkpoint.config().vocab_size);
    let engine = engine(&args.model, &checkpoint, &args.model.cuda()?, false)?;
    let alone = greedy(&mut engine.new_session()?, &prompt, args.steps)?;
    let mut session = engine.new_session()?;
    let again: Vec<Vec<u32>> =
        (0..3).map(|_| greedy(&mut session, &prompt, args.steps)).collect::<Result<_>>()?;
    let other: Vec<u32> = prompt.iter().rev().copied().collect();
    let (beside, also) = std::thread::scope(|scope| {
        let first = scope.spawn(|| greedy(&mut engine.new_session()?, &prompt, args.steps));
        let second = scope.spawn(|| greedy(&mut engine.new_session()?, &other, args.steps));
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<u32>>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        (join(first), join(second))
    });
    also?;
    let (again, beside) = (again.iter().all(|tokens| *tokens == alone), beside? == alone);
    eprintln!("again the same: {again}; beside another session the same: {beside}");
    let report = json!({"again": again, "beside": beside, "tokens": alone});
    Ok(Verdict { passed: again && beside, report })
}
