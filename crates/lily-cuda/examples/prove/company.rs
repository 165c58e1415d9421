//! Whole models: tokens against the CPU's, and runs against each other.

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
        prompt_logprobs: false,
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
