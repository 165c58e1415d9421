//! Every kernel against a reference, on this very machine.

use std::collections::BTreeMap;

use anyhow::Result;
use lily_checkpoint::Checkpoint;
use lily_device::compare::{Difference, Prepared, Start, compare_steps};
use lily_device::{Device, DeviceFacts, LoadedModel, NoProgress};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::ValidPlan;
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;
use serde_json::{Value, json};

/// Positions of the plans that are compared.
const CAPACITY: usize = 256;
/// Rows of the prefill plans: more than one tile, and ragged.
const ROWS: usize = 80;

/// What became of one kind of operation.
pub(super) struct Verdict {
    pub(super) op: &'static str,
    /// Which plans it was part of.
    phase: &'static str,
    steps: usize,
    worst: Difference,
    tolerance: f64,
    /// The kernel is one of the processor, so nothing else is left to run.
    on_processor: bool,
}

impl Verdict {
    pub(super) fn passed(&self) -> bool {
        self.worst.within(self.tolerance)
    }

    /// What can run instead where this kernel cannot be used.
    fn fallback(&self) -> Option<String> {
        match fusion_of(self.op) {
            Some(fusion) => Some(format!("the unfused steps (without `{fusion}`)")),
            None => (!self.on_processor).then(|| "the processor".to_owned()),
        }
    }

    pub(super) fn text(&self) -> String {
        let verdict = if self.passed() { "ok" } else { "FAILED" };
        format!(
            "{:<20} {:<8} {:>4} results, difference {:.1e} of {:.0e} allowed  {verdict}",
            self.op, self.phase, self.steps, self.worst.relative, self.tolerance
        ) + &match self.passed() {
            true => String::new(),
            false => {
                let instead = self.fallback().map(|f| format!(", falls back to {f}"));
                format!(" at {}{}", self.worst.step, instead.unwrap_or_default())
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "op": self.op,
            "phase": self.phase,
            "results": self.steps,
            "worst_step": self.worst.step,
            "worst_operand": self.worst.operand,
            "relative_difference": finite(self.worst.relative),
            "largest_difference": finite(self.worst.largest),
            "tolerance": self.tolerance,
            "passed": self.passed(),
            "falls_back_to": self.fallback().filter(|_| !self.passed()),
        })
    }
}

/// JSON has no infinity.
fn finite(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}

/// One plan to compare.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    phase: Phase,
    rows: usize,
    fusions: Fusions,
    kv: Elem,
    activations: Elem,
    start: (usize, usize),
}

/// Plans with the same kind of cache follow each other: they share a model.
fn cases(facts: &DeviceFacts) -> Vec<Case> {
    let decode = Case {
        name: "decode",
        phase: Phase::Decode,
        rows: 1,
        fusions: Fusions::all(),
        kv: Elem::F32,
        activations: Elem::F32,
        start: (100, 1),
    };
    let prefill = Case {
        name: "prefill",
        phase: Phase::Prefill,
        rows: ROWS,
        activations: Elem::F32,
        start: (37, ROWS - 3),
        ..decode
    };
    let mut cases = vec![
        decode,
        Case { name: "unfused", fusions: Fusions::none(), ..decode },
        prefill,
        Case { name: "bf16 kv", kv: Elem::Bf16, ..decode },
    ];
    if facts.activations == Elem::Bf16 {
        cases.push(Case { name: "bf16", activations: Elem::Bf16, kv: Elem::Bf16, ..prefill });
    }
    cases
}

/// How far results may be apart in the norm: exact products differ in the order of sums alone,
/// products of bf16 in the rounding of their operands.
fn tolerance(case: &Case, difference: &Difference) -> f64 {
    let rounded = difference.elem == Elem::Bf16 || case.activations == Elem::Bf16;
    if rounded || case.kv == Elem::Bf16 { 1e-2 } else { 2e-4 }
}

/// Runs the plans step by step on both devices; one verdict per kind of operation and plan.
pub(super) fn check(
    checkpoint: &Checkpoint,
    reference: &dyn Device,
    subject: &dyn Device,
) -> Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    let (config, manifest) = (checkpoint.config(), checkpoint.manifest());
    let load = |device: &dyn Device| device.load(checkpoint, &NoProgress);
    let mut held: Option<(Elem, [Box<dyn LoadedModel>; 2])> = None;
    let facts = subject.facts();
    let on_processor = facts.kind == "cpu";
    for case in cases(&facts) {
        let Case { phase, rows, fusions, kv, activations, .. } = case;
        let options = BuildOptions {
            kv,
            fusions,
            activations,
            token_slot: phase == Phase::Decode,
            ..BuildOptions::new(phase, rows, CAPACITY)
        };
        let valid = ValidPlan::new(build(config, manifest, &options)?)?;
        let plan = valid.plan().clone();
        // Plans of one model have one kind of cache, and two models at a time are enough.
        if held.as_ref().is_none_or(|&(elem, _)| elem != kv) {
            drop(held.take());
            held = Some((kv, [load(reference)?, load(subject)?]));
        }
        let (_, [reference, subject]) = held.as_mut().expect("loaded above");
        let on_reference = reference.prepare(valid.clone())?;
        let on_subject = subject.prepare(valid)?;
        let (position, rows) = case.start;
        let start = Start { position, rows, vocab: config.vocab_size, seed: 1 };
        let mut by_op: BTreeMap<&'static str, Verdict> = BTreeMap::new();
        compare_steps(
            &plan,
            Prepared { model: reference.as_ref(), plan: on_reference },
            Prepared { model: subject.as_ref(), plan: on_subject },
            start,
            &mut |difference| note(&mut by_op, &case, on_processor, difference),
        )?;
        verdicts.extend(by_op.into_values());
    }
    Ok(verdicts)
}

/// Keeps the worst result of each kind, measured against its tolerance.
fn note(
    by_op: &mut BTreeMap<&'static str, Verdict>,
    case: &Case,
    on_processor: bool,
    difference: Difference,
) {
    let tolerance = tolerance(case, &difference);
    match by_op.get_mut(difference.op) {
        Some(verdict) => {
            verdict.steps += 1;
            if difference.excess(tolerance) > verdict.worst.excess(verdict.tolerance) {
                (verdict.worst, verdict.tolerance) = (difference, tolerance);
            }
        }
        None => {
            let (op, phase) = (difference.op, case.name);
            let worst = difference;
            let verdict = Verdict { op, phase, steps: 1, worst, tolerance, on_processor };
            by_op.insert(op, verdict);
        }
    }
}

/// The fusion that a kind of operation belongs to, where switching it off avoids the operation.
pub(super) fn fusion_of(op: &str) -> Option<&'static str> {
    Some(match op {
        "delta_mix" => "delta",
        "attention_split" | "attention_merge" => "attention",
        "routed_gated_linear" | "routed_down" => "routing",
        "stacked_linear" => "stack",
        "gated_linear" | "expert_gated_linear" => "swiglu",
        _ => return None,
    })
}
