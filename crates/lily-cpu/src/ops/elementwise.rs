//! Operations on one element, or one row, at a time.

use lily_plan::op;

use super::math::{Arithmetic, per_isa, sigmoid, silu};
use super::{Kernel, Part, Run, Workspace, tasks_by_work};

#[inline(always)]
fn swiglu_elements<A: Arithmetic>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
        *out = silu::<A>(*g) * u;
    }
}
per_isa!(fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) = swiglu_elements);

pub(super) struct SwiGlu(pub(super) op::SwiGlu);

impl SwiGlu {
    fn rows(&self, run: &Run<'_>) -> usize {
        self.0.rows.min(run.active.rows * self.0.rows_per_token)
    }
}

impl Kernel for SwiGlu {
    fn tasks(&self, run: &Run<'_>) -> usize {
        tasks_by_work(run, self.rows(run), 4 * self.0.dim)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.0;
        let rows = part.of(self.rows(run));
        let elements = rows.start * op.dim..rows.end * op.dim;
        // SAFETY: the plan's hazards exclude writers of `gate` and `up`; `out` has rows of its own
        // per task.
        let (gate, up, out) = unsafe {
            (
                run.memory.read(&op.gate, elements.clone()),
                run.memory.read(&op.up, elements.clone()),
                run.memory.write(&op.out, elements),
            )
        };
        swiglu(run.isa, gate, up, out);
    }
}

pub(super) struct Add(pub(super) op::Add);

impl Kernel for Add {
    fn tasks(&self, run: &Run<'_>) -> usize {
        tasks_by_work(run, run.rows(self.0.rows), self.0.dim)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.0;
        let rows = part.of(run.rows(op.rows));
        let elements = rows.start * op.dim..rows.end * op.dim;
        // SAFETY: the plan's hazards exclude writers of `y`; `x` has rows of its own per task.
        let (x, y) = unsafe {
            (
                run.memory.write::<f32>(&op.x, elements.clone()),
                run.memory.read::<f32>(&op.y, elements),
            )
        };
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

#[inline(always)]
fn gate_elements<A: Arithmetic>(gate: &[f32], x: &mut [f32]) {
    for (x, g) in x.iter_mut().zip(gate) {
        *x *= sigmoid::<A>(*g);
    }
}
per_isa! {
    /// `x *= sigmoid(gate)`.
    pub(super) fn gate_by_sigmoid(gate: &[f32], x: &mut [f32]) = gate_elements
}

pub(super) struct OutputGate(pub(super) op::OutputGate);

impl Kernel for OutputGate {
    fn tasks(&self, run: &Run<'_>) -> usize {
        tasks_by_work(run, run.rows(self.0.rows) * self.0.n_heads, 4 * self.0.head_dim)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.0;
        let dim = op.head_dim;
        for head in part.of(run.rows(op.rows) * op.n_heads) {
            let gate = (2 * head + 1) * dim..(2 * head + 2) * dim;
            // SAFETY: the plan's hazards exclude writers of `q_gate`; `x` has heads of its own per
            // task.
            let (gate, x) = unsafe {
                (
                    run.memory.read(&op.q_gate, gate),
                    run.memory.write(&op.x, head * dim..(head + 1) * dim),
                )
            };
            gate_by_sigmoid(run.isa, gate, x);
        }
    }
}

pub(super) struct LastRow(pub(super) op::LastRow);

impl Kernel for LastRow {
    fn tasks(&self, _: &Run<'_>) -> usize {
        1
    }

    fn task(&self, run: &Run<'_>, _: Part, _: &mut Workspace) {
        let op = &self.0;
        let last = run.active.rows - 1;
        // SAFETY: the plan's hazards exclude writers of `x`; this is the step's only task.
        let (x, out) = unsafe {
            (
                run.memory.read::<f32>(&op.x, last * op.dim..(last + 1) * op.dim),
                run.memory.write(&op.out, 0..op.dim),
            )
        };
        out.copy_from_slice(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    #[test]
    fn swiglu_and_the_output_gate_agree_with_their_definitions() {
        let gate: Vec<f32> = (-50..50).map(|i| i as f32 * 0.3).collect();
        let up: Vec<f32> = (0..100).map(|i| (i as f32).sin()).collect();
        for isa in Isa::available() {
            let mut out = vec![0.0; 100];
            swiglu(isa, &gate, &up, &mut out);
            let mut gated = up.clone();
            gate_by_sigmoid(isa, &gate, &mut gated);
            for i in 0..100 {
                let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
                let sigmoid = 1.0 / (1.0 + (-g).exp());
                assert!((f64::from(out[i]) - g * sigmoid * u).abs() < 1e-5);
                assert!((f64::from(gated[i]) - sigmoid * u).abs() < 1e-6);
            }
        }
    }
}
