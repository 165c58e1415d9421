//! `lily plan`: the execution plan as data.

use anyhow::Result;
use lily_model::{BuildOptions, build, estimate_memory};
use lily_plan::plan::Phase;
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
    let chunk = args.planning.prefill_chunk.min(capacity);
    let default_rows = if phase == Phase::Decode { 1 } else { chunk };
    let rows = args.rows.unwrap_or(default_rows);
    check_rows(phase, rows, capacity)?;
    let options = BuildOptions { phase, rows, ..options };
    let valid = ValidPlan::new(build(&config, &manifest, &options)?)?;
    if !args.json {
        let fusions = options.fusions;
        print(&format!("device       {}\nfusions      {fusions}\n{}", facts.kind, dump(&valid)))?;
        return Ok(());
    }
    let memory = estimate_memory(&config, &manifest, &BuildOptions { rows: chunk, ..options })?;
    let figures = stats(&valid, 0);
    print_pretty(&json!({
        "device": facts.kind,
        "phase": format!("{phase:?}").to_lowercase(),
        "rows": rows,
        "context": capacity,
        "fusions": options.fusions.to_string(),
        "steps": valid.plan().steps.len(),
        "stages": figures.stages,
        "dependencies": figures.dependencies,
        "weight_bytes": figures.total.weight_bytes,
        "state_bytes": figures.total.state_bytes,
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

/// The names of the steps of each stage.
fn schedule(valid: &ValidPlan) -> Vec<Vec<Value>> {
    let name = |&step: &usize| json!(valid.plan().steps[step].name);
    valid.stages().iter().map(|stage| stage.iter().map(name).collect()).collect()
}
