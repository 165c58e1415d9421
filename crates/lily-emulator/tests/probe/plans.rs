//! Which plans are probed, and what their buffers hold at first.

use std::fmt;

use lily_checkpoint::Checkpoint;
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::buffer::{Buffer, BufferId, Elem};
use lily_plan::plan::{Phase, Plan};
use lily_plan::valid::ValidPlan;

/// Whether an operation without a kernel is a failure.
pub(crate) const COMPLETE: bool = true;

/// Positions of the KV cache.
const CAPACITY: usize = 320;

/// How a plan is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    phase: Phase,
    rows: usize,
    fused: bool,
    kv: Elem,
    activations: Elem,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Variant { phase, rows, fused, kv, activations } = self;
        let fused = if *fused { "fused" } else { "unfused" };
        write!(f, "{phase:?} of {rows}, {fused}, KV {kv:?}, activations {activations:?}")
    }
}

/// Where a run starts and how many rows it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) position: usize,
    pub(crate) rows: usize,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows at {}", self.rows, self.position)
    }
}

/// Every kind of plan that can share session buffers.
pub(crate) fn variants(kv: Elem) -> Vec<Variant> {
    let shapes =
        [(Phase::Decode, 1), (Phase::Prefill, 1), (Phase::Prefill, 7), (Phase::Prefill, 33)];
    let mut variants = Vec::new();
    for (phase, rows) in shapes {
        let activations: &[Elem] = if rows == 1 { &[Elem::F32] } else { &[Elem::F32, Elem::Bf16] };
        for &activations in activations {
            for fused in [true, false] {
                variants.push(Variant { phase, rows, fused, kv, activations });
            }
        }
    }
    variants
}

impl Variant {
    /// Whether it is the unfused plan of this shape.
    pub(crate) fn is(&self, phase: Phase, rows: usize) -> bool {
        !self.fused && self.phase == phase && self.rows == rows
    }

    pub(crate) fn plan(&self, checkpoint: &Checkpoint) -> ValidPlan {
        let options = BuildOptions {
            kv: self.kv,
            fusions: if self.fused { Fusions::all() } else { Fusions::none() },
            activations: self.activations,
            token_slot: self.phase == Phase::Decode,
            ..BuildOptions::new(self.phase, self.rows, CAPACITY)
        };
        let plan = build(checkpoint.config(), checkpoint.manifest(), &options).unwrap();
        ValidPlan::new(plan).unwrap()
    }

    /// Full and partly filled, at the start and late.
    pub(crate) fn scenarios(&self) -> Vec<Scenario> {
        let at = |position, rows| Scenario { position, rows };
        match self.rows {
            1 => vec![at(0, 1), at(201, 1)],
            7 => vec![at(0, 7), at(130, 5)],
            _ => vec![at(0, 33), at(131, 20)],
        }
    }
}

/// Numbers that look random, between -1 and 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// The bytes of all buffers of a plan before its first step.
pub(crate) fn random_buffers(plan: &Plan, scenario: &Scenario) -> Vec<Vec<u8>> {
    let mut noise = Noise(scenario.position as u64 + 1);
    let fill = |(index, buffer): (usize, &Buffer)| -> Vec<u8> {
        let id = BufferId(index as u32);
        let numbers = 0..buffer.len;
        if id == plan.ports.control {
            let control = [scenario.position as u32, scenario.rows as u32];
            return control.iter().flat_map(|word| word.to_ne_bytes()).collect();
        }
        match buffer.elem {
            Elem::F32 => numbers.flat_map(|_| noise.next().to_ne_bytes()).collect(),
            Elem::Bf16 => {
                numbers.flat_map(|_| half::bf16::from_f32(noise.next()).to_ne_bytes()).collect()
            }
            // Tokens; other indices are written before they are read.
            Elem::U32 => numbers.flat_map(|i| ((i * 37 + 11) as u32 % 200).to_ne_bytes()).collect(),
        }
    };
    plan.buffers.iter().enumerate().map(fill).collect()
}
