//! A timeline of a decode step as the graph runs it, block by block; `scripts/gpu/trace.py` reads it.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use lily_device::{LoadedModel, NoProgress};
use lily_plan::plan::Phase;
use serde_json::json;

use crate::Verdict;
use crate::models::ModelArgs;

#[derive(Clone, Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Position of the first step
    #[arg(long, default_value_t = 512)]
    position: usize,
    /// Decode steps, of which the last is reported
    #[arg(long, default_value_t = 32)]
    steps: usize,
}

pub(crate) fn run(args: &TraceArgs) -> Result<Verdict> {
    let (checkpoint, _folder) = args.model.open()?;
    let loaded = args.model.cuda()?.load_model(&checkpoint, &NoProgress)?;
    let mut options = args.model.options()?;
    options.trace = true;
    let mut model = loaded.with_options(options)?;
    let plan = args.model.plan(&checkpoint, Phase::Decode, args.model.fusions()?)?;
    let decode = model.prepare(plan)?;
    let mut sequence = model.new_sequence()?;
    let start = Instant::now();
    model.run_ahead(decode, &mut *sequence, 1, args.position, args.steps, &mut |_| true)?;
    let per_step = start.elapsed().as_secs_f64() * 1e6 / args.steps as f64;
    let steps = model.trace(decode)?;
    ensure!(!steps.is_empty(), "the device has no trace");
    eprintln!("{} steps, {per_step:.0} us per token with the trace", steps.len());
    let steps = steps
        .iter()
        .map(|step| json!({"step": step.step, "kernel": step.kernel, "blocks": step.blocks}));
    let steps: Vec<_> = steps.collect();
    Ok(Verdict { passed: true, report: json!({"us_per_token": per_step, "steps": steps}) })
}
