//! One prefill chunk and a few decode steps, so small that a checker ends in time.

use anyhow::Result;
use clap::Args;
use lily_device::{LoadedModel, NoProgress};
use lily_plan::plan::Phase;
use serde_json::json;

use crate::Verdict;
use crate::models::{ModelArgs, prompt};

#[derive(Clone, Debug, Args)]
pub(crate) struct OnceArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Decode steps
    #[arg(long, default_value_t = 2)]
    steps: usize,
}

pub(crate) fn run(args: &OnceArgs) -> Result<Verdict> {
    let (checkpoint, _folder) = args.model.open()?;
    let mut model = args.model.cuda()?.load_model(&checkpoint, &NoProgress)?;
    let fusions = args.model.fusions()?;
    let prefill = model.prepare(args.model.plan(&checkpoint, Phase::Prefill, fusions)?)?;
    let decode = model.prepare(args.model.plan(&checkpoint, Phase::Decode, fusions)?)?;
    let mut sequence = model.new_sequence()?;
    // Not all rows, so that the last tiles are ragged.
    let rows = (args.model.rows - 1).max(1);
    let tokens = prompt(rows, checkpoint.config().vocab_size);
    let mut logits = Vec::new();
    model.run(prefill, &mut *sequence, &tokens, 0, &mut logits)?;
    let finite = logits.iter().all(|logit| logit.is_finite());
    let mut chosen = Vec::new();
    model.run_ahead(decode, &mut *sequence, tokens[0], rows, args.steps, &mut |token| {
        chosen.push(token);
        true
    })?;
    eprintln!("{rows} rows and {} steps ran, logits finite: {finite}", args.steps);
    Ok(Verdict { passed: finite, report: json!({"finite": finite, "tokens": chosen}) })
}
