//! What each technique is worth: decode and prefill with one of them switched off at a time.
//!
//! Caches hold zeros up to the position that is measured: what a step costs depends on how much it
//! reads, not on what.

use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lily_checkpoint::Checkpoint;
use lily_cuda::{CudaModel, CudaOptions, Programmatic, Submission};
use lily_device::{LoadedModel, NoProgress};
use lily_model::Fusions;
use lily_plan::plan::Phase;
use serde_json::{Value, json};

use crate::Verdict;
use crate::models::{ModelArgs, prompt};

#[derive(Clone, Debug, Args)]
pub(crate) struct AblateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Positions at which decode steps and prefill chunks are measured
    #[arg(long, value_delimiter = ',', default_value = "512,4096,32768,131072")]
    positions: Vec<usize>,
    /// Decode steps of one measurement
    #[arg(long, default_value_t = 64)]
    steps: usize,
    /// Measurements, of which the middle one counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only variants whose name has this in it
    #[arg(long)]
    only: Option<String>,
    /// Stop before a variant when so many seconds have gone
    #[arg(long, default_value_t = 420.0)]
    seconds: f64,
}

struct Variant {
    name: String,
    fusions: Fusions,
    options: CudaOptions,
}

fn variants(args: &ModelArgs) -> Result<Vec<Variant>> {
    let base = args.options()?;
    let fusions = args.fusions()?;
    let mut variants = Vec::new();
    let mut add = |name: &str, fusions: Fusions, change: &dyn Fn(&mut CudaOptions)| {
        let mut options = base.clone();
        change(&mut options);
        variants.push(Variant { name: name.to_owned(), fusions, options });
    };
    add("all", fusions, &|_| {});
    for off in Fusions::names() {
        let kept = Fusions::names().into_iter().filter(|name| *name != off);
        let kept: Fusions = kept.collect::<Vec<_>>().join(",").parse()?;
        add(&format!("without {off}"), kept, &|_| {});
    }
    add("without fusions", Fusions::none(), &|_| {});
    add("without early starts", fusions, &|o| o.programmatic = Programmatic::Off);
    add("early starts in prefill too", fusions, &|o| o.programmatic = Programmatic::Chains);
    add("early starts at joins too", fusions, &|o| o.programmatic = Programmatic::All);
    add("one chain", fusions, &|o| o.submission = Submission::Chain);
    add("stream, no graph", fusions, &|o| o.submission = Submission::Stream);
    add("without GQA packing", fusions, &|o| o.tuning.gqa_packing = false);
    add("scan by blocks of four tokens", fusions, &|o| o.tuning.scan_chunks = false);
    add("scan token by token", fusions, &|o| {
        o.tuning.scan_chunks = false;
        o.tuning.scan_block = 1;
    });
    add("rows without tensor cores", fusions, &|o| o.tuning.row_tiles = false);
    add("one threadgroup per value head", fusions, &|o| o.tuning.delta_cluster = 1);
    add("cache and shared memory as the driver likes", fusions, &|o| o.carveout = None);
    add("blocks where they fit", fusions, &|o| o.spread = 0);
    add("the head staged anew for each share", fusions, &|o| {
        o.tuning.matvec_groups = usize::MAX;
    });
    add("one expert row per simdgroup, no tensor cores", fusions, &|o| o.tuning.routed_gated.0 = 1);
    for rows in [16, 32, 64] {
        if rows != base.tuning.expert_tile_rows {
            add(&format!("expert tiles of {rows} rows"), fusions, &|o| {
                o.tuning.expert_tile_rows = rows;
            });
        }
    }
    Ok(variants)
}

pub(crate) fn run(args: &AblateArgs) -> Result<Verdict> {
    let begin = Instant::now();
    let (checkpoint, _folder) = args.model.open()?;
    let furthest = args.positions.iter().max().copied().unwrap_or(0);
    let context = args.model.context.max(furthest + args.model.rows.max(args.steps + 8));
    let model_args = ModelArgs { context, ..args.model.clone() };
    let loaded = args.model.cuda()?.load_model(&checkpoint, &NoProgress)?;
    eprintln!("loaded after {:.1} s", begin.elapsed().as_secs_f64());
    eprintln!("decode tokens/s, then prefill tokens/s, at {:?}", args.positions);
    let mut report = Vec::new();
    for variant in variants(&args.model)? {
        if args.only.as_ref().is_some_and(|only| !variant.name.contains(only.as_str())) {
            continue;
        }
        if begin.elapsed().as_secs_f64() > args.seconds {
            eprintln!("{:<28} left out: time is up", variant.name);
            continue;
        }
        match measure(args, &model_args, &checkpoint, &loaded, &variant) {
            Ok(measured) => report.push(measured),
            Err(error) => {
                eprintln!("{:<28} failed: {error:#}", variant.name);
                report.push(json!({"variant": variant.name, "error": format!("{error:#}")}));
            }
        }
    }
    Ok(Verdict { passed: true, report: json!({"positions": args.positions, "rows": report}) })
}

fn measure(
    args: &AblateArgs,
    model_args: &ModelArgs,
    checkpoint: &Checkpoint,
    loaded: &CudaModel,
    variant: &Variant,
) -> Result<Value> {
    let mut model = loaded.with_options(variant.options.clone())?;
    let plan = |phase| model_args.plan(checkpoint, phase, variant.fusions);
    let decode = model.prepare(plan(Phase::Decode)?)?;
    let prefill = model.prepare(plan(Phase::Prefill)?)?;
    let facts = model.plan(decode);
    let mut sequence = model.new_sequence()?;
    let tokens = prompt(model_args.rows, checkpoint.config().vocab_size);
    let mut logits = Vec::new();
    let (mut decodes, mut prefills) = (Vec::new(), Vec::new());
    for &position in &args.positions {
        // The first round warms up.
        let mut times = Vec::new();
        for _ in 0..=args.rounds {
            sequence.reset();
            let start = Instant::now();
            let mut ignore = |_| true;
            model.run_ahead(decode, &mut *sequence, 1, position, args.steps, &mut ignore)?;
            times.push(start.elapsed().as_secs_f64());
        }
        decodes.push(args.steps as f64 / middle(&mut times[1..]));
        let mut times = Vec::new();
        for _ in 0..=args.rounds {
            sequence.reset();
            let start = Instant::now();
            model.run(prefill, &mut *sequence, &tokens, position, &mut logits)?;
            times.push(start.elapsed().as_secs_f64());
        }
        prefills.push(tokens.len() as f64 / middle(&mut times[1..]));
    }
    eprintln!(
        "{:<28} {} | {} | {} steps, {} stages, {} edges",
        variant.name,
        row(&decodes),
        row(&prefills),
        facts.steps,
        facts.stages,
        facts.edges
    );
    Ok(json!({
        "variant": variant.name, "decode": decodes, "prefill": prefills,
        "steps": facts.steps, "stages": facts.stages, "edges": facts.edges,
    }))
}

fn row(rates: &[f64]) -> String {
    rates.iter().map(|rate| format!("{rate:>8.0}")).collect::<Vec<_>>().join(" ")
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
