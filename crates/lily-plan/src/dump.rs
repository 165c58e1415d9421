//! A plan as text: for people, and for snapshots in tests.

use std::fmt::Write as _;

use crate::access::{Access, Operand, Signature};
use crate::plan::{Phase, Plan};
use crate::stats::{PlanStats, Work, stats};
use crate::valid::ValidPlan;

/// Header figures, then one line per step under its stage.
///
/// A line holds the step's name, the operation with its dimensions, and its operands:
/// `operand<buffer[bytes]` is read, `operand>…` written, `operand<>…` updated, `operand=weight` a
/// weight. KV bytes are those of a run at position 0.
pub fn dump(valid: &ValidPlan) -> String {
    let plan = valid.plan();
    let figures = stats(valid, 0);
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = header(&mut out, plan, &figures);
    for (stage, steps) in valid.stages().iter().enumerate() {
        let _ = writeln!(out, "\nstage {stage}");
        for &step in steps {
            let recorded = &plan.steps[step];
            let signature = recorded.op.signature();
            let _ = line(&mut out, plan, &recorded.name, &signature, figures.steps[step]);
        }
    }
    out
}

fn header(out: &mut String, plan: &Plan, figures: &PlanStats) -> std::fmt::Result {
    let phase = match plan.phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
        Phase::Score => "score",
    };
    let total = figures.total;
    writeln!(out, "phase        {phase}")?;
    writeln!(out, "rows         {}", plan.rows)?;
    writeln!(out, "capacity     {} tokens", plan.capacity)?;
    writeln!(out, "steps        {}", plan.steps.len())?;
    writeln!(out, "stages       {}", figures.stages)?;
    writeln!(out, "dependencies {}", figures.dependencies)?;
    writeln!(out, "weights      {} bytes read per run", total.weight_bytes)?;
    writeln!(out, "state        {} bytes", total.state_bytes)?;
    writeln!(out, "kv cache     {} bytes", figures.kv_capacity_bytes)?;
    let (arena, unshared) = (figures.arena_bytes, figures.unshared_scratch_bytes);
    writeln!(out, "scratch      {arena} bytes, {unshared} without sharing")?;
    writeln!(out, "flops        {} per run", total.flops)
}

fn line(
    out: &mut String,
    plan: &Plan,
    name: &str,
    signature: &Signature<'_>,
    work: Work,
) -> std::fmt::Result {
    write!(out, "  {name}: {}", signature.kind)?;
    for (dimension, value) in &signature.dims {
        write!(out, " {dimension}={value}")?;
    }
    write!(out, " |")?;
    for operand in &signature.operands {
        write!(out, " ")?;
        self::operand(out, plan, operand)?;
    }
    for weight in &signature.weights {
        write!(out, " {}={}", weight.name, plan.weight(weight.id).name)?;
    }
    if work.weight_bytes > 0 {
        write!(out, " | {} weight bytes", work.weight_bytes)?;
    }
    writeln!(out)
}

fn operand(out: &mut String, plan: &Plan, operand: &Operand<'_>) -> std::fmt::Result {
    let arrow = match operand.access {
        Access::Read => "<",
        Access::Write => ">",
        Access::Update => "<>",
    };
    let buffer = &plan.buffer(operand.region.buffer).name;
    let bytes = &operand.region.bytes;
    write!(out, "{}{arrow}{buffer}[{}..{}]", operand.name, bytes.start, bytes.end)
}
