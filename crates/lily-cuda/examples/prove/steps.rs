//! Every step of every kind of plan against the CPU.

use anyhow::{Context, Result};
use clap::Args;
use lily_cpu::{CpuDevice, CpuOptions};
use lily_device::compare::{Difference, Prepared, Start, compare_steps};
use lily_device::{Device, NoProgress};
use lily_model::Fusions;
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;
use serde_json::{Value, json};

use crate::Verdict;
use crate::models::ModelArgs;

#[derive(Clone, Debug, Args)]
pub(crate) struct StepsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Position of the first row
    #[arg(long, default_value_t = 100)]
    position: usize,
    /// Active rows of plans with several; all but one where not given
    #[arg(long)]
    active: Option<usize>,
}

pub(crate) fn run(args: &StepsArgs) -> Result<Verdict> {
    let (checkpoint, _folder) = args.model.open()?;
    let cuda = args.model.cuda()?;
    let cpu = CpuDevice::new(CpuOptions::default());
    let mut subject = cuda.load(&checkpoint, &NoProgress)?;
    let mut reference = cpu.load(&checkpoint, &NoProgress)?;
    let mut report = Vec::new();
    let mut wrong = 0;
    for fusions in [Fusions::all(), Fusions::none()] {
        for phase in [Phase::Decode, Phase::Prefill, Phase::Score] {
            let plan = args.model.plan(&checkpoint, phase, fusions)?;
            let rows = plan.plan().rows;
            let active = args.active.unwrap_or(rows - 1).clamp(1, rows);
            let start = Start {
                position: args.position,
                rows: active,
                vocab: checkpoint.config().vocab_size,
                seed: 1,
            };
            let on_reference = reference.prepare(plan.clone())?;
            let on_subject = subject.prepare(plan.clone()).context("preparing for CUDA")?;
            let mut differences = Vec::new();
            let compared = compare_steps(
                plan.plan(),
                Prepared { model: &*reference, plan: on_reference },
                Prepared { model: &*subject, plan: on_subject },
                start,
                &mut |difference| differences.push(difference),
            );
            eprintln!("{phase:?}, fuse {fusions}, {active} of {rows} rows");
            wrong += show(&differences, active);
            if let Err(error) = &compared {
                eprintln!("  {error}");
                wrong += 1;
            }
            report.push(json!({
                "phase": format!("{phase:?}").to_lowercase(),
                "fuse": fusions.to_string(),
                "rows": active,
                "error": compared.err().map(|error| error.to_string()),
                "worst": worst(&differences).iter().map(|d| entry(d, active)).collect::<Vec<_>>(),
            }));
        }
    }
    Ok(Verdict { passed: wrong == 0, report: json!({"wrong": wrong, "plans": report}) })
}

/// The most that a result may be off: several rows go through tensor cores, whose operands are
/// bfloat16, one row does not; integers must be equal.
fn tolerance(difference: &Difference, rows: usize) -> f64 {
    match difference.elem {
        Elem::F32 if rows == 1 => 1e-3,
        Elem::F32 | Elem::Bf16 | Elem::U32 => 1e-2,
    }
}

/// The largest difference of each operation's operand.
fn worst(differences: &[Difference]) -> Vec<&Difference> {
    let mut worst: Vec<&Difference> = Vec::new();
    for difference in differences {
        let same = |known: &&mut &Difference| {
            (known.op, known.operand) == (difference.op, difference.operand)
        };
        match worst.iter_mut().find(same) {
            Some(known) if known.relative >= difference.relative => {}
            Some(known) => *known = difference,
            None => worst.push(difference),
        }
    }
    worst
}

fn entry(d: &Difference, rows: usize) -> Value {
    json!({
        "op": d.op, "operand": d.operand, "step": d.step, "elements": d.elements,
        "unequal": d.unequal,
        "relative": if d.relative.is_finite() { json!(d.relative) } else { json!("infinite") },
        "tolerance": tolerance(d, rows),
    })
}

/// Prints the worst of each operation; returns how many steps are wrong.
fn show(differences: &[Difference], rows: usize) -> usize {
    for d in worst(differences) {
        let verdict = if d.within(tolerance(d, rows)) { "" } else { "  WRONG" };
        eprintln!(
            "  {:<20} {:<12} relative {:.1e} largest {:.1e} ({} of {} unequal) {}{verdict}",
            d.op, d.operand, d.relative, d.largest, d.unequal, d.elements, d.step
        );
    }
    let is_wrong = |d: &&Difference| !d.within(tolerance(d, rows));
    let wrong: Vec<&Difference> = differences.iter().filter(is_wrong).collect();
    eprintln!("  {} results compared, {} wrong", differences.len(), wrong.len());
    wrong.len()
}
