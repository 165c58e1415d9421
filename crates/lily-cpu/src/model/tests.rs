use lily_checkpoint::Checkpoint;
use lily_device::NoProgress;
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::plan::Phase;

use super::*;
use crate::{CpuDevice, CpuOptions};

#[path = "../../tests/golden/reader.rs"]
mod reader;

/// A golden checkpoint, or `None` (and a note) where the shared folder is missing.
fn golden(name: &str) -> Option<Checkpoint> {
    reader::folder().map(|folder| Checkpoint::open(&folder.join(name)).unwrap())
}

fn plan(checkpoint: &Checkpoint, phase: Phase, rows: usize) -> ValidPlan {
    let fusions = Fusions::none();
    let options = BuildOptions { fusions, ..BuildOptions::new(phase, rows, 64) };
    let plan = build(checkpoint.config(), checkpoint.manifest(), &options).unwrap();
    ValidPlan::new(plan).unwrap()
}

fn model(checkpoint: &Checkpoint, threads: usize) -> CpuModel {
    let options = CpuOptions { threads: Some(threads), isa: None };
    CpuDevice::new(options).load_model(checkpoint, &NoProgress).unwrap()
}

/// One step per stage, in a random order that respects the plan's edges.
fn random_order(plan: &ValidPlan, mut seed: u64) -> Vec<Vec<usize>> {
    let n = plan.plan().steps.len();
    let mut edges: Vec<(usize, usize)> = plan.edges().iter().map(|e| (e.from, e.to)).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut waiting = vec![0; n];
    edges.iter().for_each(|&(_, to)| waiting[to] += 1);
    let mut ready: Vec<usize> = (0..n).filter(|&step| waiting[step] == 0).collect();
    let mut order = Vec::new();
    while !ready.is_empty() {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let step = ready.swap_remove(seed as usize % ready.len());
        order.push(vec![step]);
        for &(_, to) in edges.iter().filter(|&&(from, _)| from == step) {
            waiting[to] -= 1;
            if waiting[to] == 0 {
                ready.push(to);
            }
        }
    }
    assert_eq!(order.len(), n, "the edges have a cycle");
    order
}

#[test]
fn any_order_that_respects_the_edges_gives_the_same_bits() {
    for name in ["moe_hybrid_4bit_gs64", "dense_tied_4bit_gs64"] {
        let Some(checkpoint) = golden(name) else { return };
        let mut model = model(&checkpoint, 1);
        let plan = plan(&checkpoint, Phase::Prefill, 20);
        let id = model.prepare(plan.clone()).unwrap();
        let tokens: Vec<u32> = (0..20).map(|i| i * 7 + 3).collect();
        let logits = |stages: &[Vec<usize>]| {
            let mut sequence = model.new_sequence().unwrap();
            let (mut first, mut second) = (Vec::new(), Vec::new());
            model.run_stages(id, stages, &mut *sequence, (&tokens, 0), &mut first).unwrap();
            model.run_stages(id, stages, &mut *sequence, (&tokens[..9], 20), &mut second).unwrap();
            (first, second)
        };
        let want = logits(plan.stages());
        for seed in 1..8 {
            let order = random_order(&plan, seed * 0x9e37_79b9);
            assert!(order.concat() != plan.stages().concat(), "seed {seed} shuffles nothing");
            assert!(logits(&order) == want, "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_task_that_panics_is_a_lost_device_that_names_the_step() {
    let Some(checkpoint) = golden("dense_tied_4bit_gs64") else { return };
    let mut model = model(&checkpoint, 2);
    let id = model.prepare(plan(&checkpoint, Phase::Decode, 1)).unwrap();
    let mut sequence = model.new_sequence().unwrap();
    let error = model.run(id, &mut *sequence, &[u32::MAX], 0, &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, DeviceError::Lost { step, .. } if step.contains("embed")), "{error}");
    // The model itself lives on.
    let mut sequence = model.new_sequence().unwrap();
    model.run(id, &mut *sequence, &[1], 0, &mut Vec::new()).unwrap();
}

#[test]
fn profiling_counts_every_step_and_changes_no_bit() {
    let Some(checkpoint) = golden("moe_hybrid_4bit_gs64") else { return };
    let mut model = model(&checkpoint, 2);
    let plan = plan(&checkpoint, Phase::Decode, 1);
    let steps = plan.plan().steps.len() as u64;
    let id = model.prepare(plan).unwrap();
    let logits = || {
        let mut logits = Vec::new();
        model.run(id, &mut *model.new_sequence().unwrap(), &[1], 0, &mut logits).unwrap();
        logits
    };
    let plain = logits();
    model.set_profiling(true);
    assert!(logits() == plain);
    assert_eq!(model.profile().iter().map(|time| time.steps).sum::<u64>(), steps);
}
