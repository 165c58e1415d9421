//! What fused experts need beside the kernels of their twins.

use lily_plan::buffer::Region;

use super::super::math::{Arithmetic, per_isa, sigmoid};
use super::super::{Kernel, Part, Run, Workspace};

/// `weights[top_k] = sigmoid(gate)`.
pub(super) struct SharedWeight {
    pub(super) gate: Region,
    pub(super) weights: Region,
    pub(super) top_k: usize,
}

impl Kernel for SharedWeight {
    fn tasks(&self, _: &Run<'_>) -> usize {
        1
    }

    fn task(&self, run: &Run<'_>, _: Part, _: &mut Workspace) {
        // SAFETY: the plan's hazards exclude writers of the gate; this is the step's only task.
        let (gate, weight) = unsafe {
            (
                run.memory.read::<f32>(&self.gate, 0..1),
                run.memory.write::<f32>(&self.weights, self.top_k..self.top_k + 1),
            )
        };
        sigmoid_of(run.isa, gate, weight);
    }
}

#[inline(always)]
fn sigmoids<A: Arithmetic>(x: &[f32], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = sigmoid::<A>(*x);
    }
}
per_isa!(fn sigmoid_of(x: &[f32], out: &mut [f32]) = sigmoids);

/// `x += Σ_j weights[j] · outs[j]`, slots in order.
pub(super) struct WeightedSum {
    pub(super) outs: Region,
    pub(super) weights: Region,
    pub(super) x: Region,
    pub(super) slots: usize,
    pub(super) dim: usize,
}

impl Kernel for WeightedSum {
    fn tasks(&self, _: &Run<'_>) -> usize {
        1
    }

    fn task(&self, run: &Run<'_>, _: Part, workspace: &mut Workspace) {
        // SAFETY: the plan's hazards exclude writers of what is read; this is the step's only task.
        let (outs, weights, x) = unsafe {
            (
                run.memory.read::<f32>(&self.outs, 0..self.slots * self.dim),
                run.memory.read::<f32>(&self.weights, 0..self.slots),
                run.memory.write::<f32>(&self.x, 0..self.dim),
            )
        };
        let sums = workspace.floats(self.dim);
        add_weighted(run.isa, outs, weights, sums, x);
    }
}

#[inline(always)]
fn add_weighted_rows<A: Arithmetic>(
    outs: &[f32],
    weights: &[f32],
    sums: &mut [f32],
    x: &mut [f32],
) {
    sums.fill(0.0);
    for (weight, out) in weights.iter().zip(outs.chunks_exact(x.len())) {
        for (sum, out) in sums.iter_mut().zip(out) {
            *sum = A::mul_add(*weight, *out, *sum);
        }
    }
    for (x, sum) in x.iter_mut().zip(sums) {
        *x += *sum;
    }
}
per_isa! {
    fn add_weighted(outs: &[f32], weights: &[f32], sums: &mut [f32], x: &mut [f32])
        = add_weighted_rows
}
