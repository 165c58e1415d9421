//! `lily plan`: the execution plan as data.

use anyhow::Result;
use lily_model::{BuildOptions, build, estimate_memory};
use lily_plan::access::Operand;
use lily_plan::buffer::BufferClass;
use lily_plan::plan::{Phase, Step};
use lily_plan::stats::Work;
use lily_plan::{ValidPlan, dump, stats};
use serde_json::{Value, json};

use super::output::{print, print_pretty};
use crate::args::{PlanArgs, PlanPhase};
use crate::failure::usage;
use crate::model::{self, Shapes};

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let shapes = model::shapes(&args.model)?;
    let (facts, options) = model::planned(&args.model, &args.planning, &shapes)?;
    let Shapes { config, manifest, .. } = shapes;
    let phase = match args.phase {
        PlanPhase::Prefill => Phase::Prefill,
        PlanPhase::Decode => Phase::Decode,
        PlanPhase::Score => Phase::Score,
    };
    let capacity = options.capacity;
    let chunk = args.planning.prefill_chunk(&facts).min(capacity);
    let default_rows = if phase == Phase::Decode { 1 } else { chunk };
    let rows = args.rows.unwrap_or(default_rows);
    check_rows(phase, rows, capacity)?;
    check_position(args.position, rows, capacity)?;
    let options = BuildOptions { phase, rows, ..options };
    let valid = ValidPlan::new(build(&config, &manifest, &options)?)?;
    if !args.json {
        let fusions = options.fusions;
        print(&format!("device       {}\nfusions      {fusions}\n{}", facts.kind, dump(&valid)))?;
        return Ok(());
    }
    let memory = estimate_memory(&config, &manifest, &BuildOptions { rows: chunk, ..options })?;
    let figures = stats(&valid, args.position);
    print_pretty(&json!({
        "device": facts.kind,
        "phase": format!("{phase:?}").to_lowercase(),
        "rows": rows,
        "context": capacity,
        "position": args.position,
        "fusions": options.fusions.to_string(),
        "steps": valid.plan().steps.len(),
        "stages": figures.stages,
        "dependencies": figures.dependencies,
        "weight_bytes": figures.total.weight_bytes,
        "state_bytes": figures.total.state_bytes,
        "kv_bytes": figures.total.kv_bytes,
        "kv_bytes_per_token": memory.kv_per_token,
        "flops": figures.total.flops,
        "arena_bytes": figures.arena_bytes,
        "memory": {
            "weights": memory.weights,
            "kv_cache": memory.kv(),
            "state": memory.state,
            "scratch": memory.scratch,
            "total": memory.total(),
        },
        "schedule": schedule(&valid),
        "work": work(&valid, &figures.steps),
    }))?;
    Ok(())
}

/// Rows come from `--rows` alone: the defaults fit.
fn check_rows(phase: Phase, rows: usize, context: usize) -> Result<()> {
    if phase == Phase::Decode && rows != 1 {
        return Err(usage(format!("--rows {rows} is not 1, which is what a decode plan has")));
    }
    if rows > context {
        return Err(usage(format!("--rows {rows} is more than the context of {context}")));
    }
    Ok(())
}

/// The position comes from `--position` alone: the default fits.
fn check_position(position: usize, rows: usize, context: usize) -> Result<()> {
    if position.checked_add(rows).is_none_or(|end| end > context) {
        return Err(usage(format!(
            "--position {position} and {rows} rows are more than the context of {context}"
        )));
    }
    Ok(())
}

/// The names of the steps of each stage.
fn schedule(valid: &ValidPlan) -> Vec<Vec<Value>> {
    let name = |&step: &usize| json!(valid.plan().steps[step].name);
    valid.stages().iter().map(|stage| stage.iter().map(name).collect()).collect()
}

/// What each step moves and computes, in program order.
fn work(valid: &ValidPlan, figures: &[Work]) -> Vec<Value> {
    let step = |(step, work): (&Step, &Work)| {
        let signature = step.op.signature();
        json!({
            "name": step.name,
            "kind": signature.kind,
            "weight_bytes": work.weight_bytes,
            "state_bytes": work.state_bytes,
            "kv_bytes": work.kv_bytes,
            "activation_bytes": activation_bytes(valid, &signature.operands),
            "flops": work.flops,
        })
    };
    valid.plan().steps.iter().zip(figures).map(step).collect()
}

/// Bytes of the operands that live no longer than a run; what is updated counts twice.
fn activation_bytes(valid: &ValidPlan, operands: &[Operand<'_>]) -> u64 {
    let touched = |operand: &Operand<'_>| {
        let bytes = operand.region.bytes.end - operand.region.bytes.start;
        let times = u64::from(operand.access.reads()) + u64::from(operand.access.writes());
        match valid.plan().buffer(operand.region.buffer).class {
            BufferClass::KvCache | BufferClass::State => 0,
            BufferClass::Input | BufferClass::Output | BufferClass::Scratch => bytes * times,
        }
    };
    operands.iter().map(touched).sum()
}
