//! What the plans became.

use anyhow::Result;
use lily_device::{LoadedModel, NoProgress};
use lily_plan::plan::Phase;
use serde_json::json;

use crate::Verdict;
use crate::models::ModelArgs;

pub(crate) fn run(args: &ModelArgs) -> Result<Verdict> {
    let (checkpoint, _folder) = args.open()?;
    let device = args.cuda()?;
    let start = std::time::Instant::now();
    let mut model = device.load_model(&checkpoint, &NoProgress)?;
    let load_s = start.elapsed().as_secs_f64();
    let fusions = args.fusions()?;
    let mut plans = Vec::new();
    for phase in [Phase::Decode, Phase::Prefill] {
        let start = std::time::Instant::now();
        let plan = model.prepare(args.plan(&checkpoint, phase, fusions)?)?;
        let facts = model.plan(plan);
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("{phase:?}: {facts:?}, prepared in {seconds:.2} s");
        plans.push(json!({
            "phase": format!("{phase:?}").to_lowercase(),
            "steps": facts.steps, "stages": facts.stages, "edges": facts.edges,
            "hazards": facts.hazards, "prepare_s": seconds,
        }));
    }
    let kernels = model.kernels();
    let spilled = kernels.iter().filter(|kernel| kernel.resources.spilled_bytes > 0).count();
    for kernel in &kernels {
        eprintln!(
            "{:>4} registers {:>5} stack {:>5} spilled {:>6} shared{}  {}",
            kernel.resources.registers,
            kernel.resources.stack_bytes,
            kernel.resources.spilled_bytes,
            kernel.shared_bytes,
            if kernel.waits { "  waits" } else { "       " },
            kernel.name
        );
    }
    let bytes = model.weight_bytes();
    eprintln!("loaded {bytes} bytes in {load_s:.2} s; {spilled} kernels spill registers");
    let kernels = kernels.iter().map(|k| {
        json!({
            "name": k.name, "registers": k.resources.registers,
            "stack_bytes": k.resources.stack_bytes, "spilled_bytes": k.resources.spilled_bytes,
            "shared_bytes": k.shared_bytes, "threads": k.threads, "waits": k.waits,
        })
    });
    let report = json!({
        "load_s": load_s,
        "weight_bytes": bytes,
        "plans": plans,
        "kernels_that_spill": spilled,
        "kernels": kernels.collect::<Vec<_>>(),
    });
    Ok(Verdict { passed: true, report })
}
