//! RMSNorm, plain and gated.

use std::sync::Arc;

use lily_plan::op;

use super::math::{Arithmetic, dot, per_isa, sigmoid, silu};
use super::{Kernel, Part, Run, Workspace, tasks_by_work};
use crate::weights::Weights;

/// `1 / sqrt(mean(x²) + eps)`.
#[inline(always)]
pub(super) fn inverse_rms<A: Arithmetic>(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot::<A>(x, x) / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn norm_rows<A: Arithmetic>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let dim = weight.len();
    for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
        let scale = inverse_rms::<A>(x, eps);
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * w;
        }
    }
}
per_isa! {
    /// Norms each row of `weight.len()` elements.
    fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = norm_rows
}

pub(super) struct RmsNorm {
    op: op::RmsNorm,
    weight: Arc<[f32]>,
}

impl RmsNorm {
    pub(super) fn new(op: op::RmsNorm, weights: &Weights<'_>) -> Self {
        let weight = weights.floats(op.weight, op.dim);
        RmsNorm { op, weight }
    }
}

impl Kernel for RmsNorm {
    fn tasks(&self, run: &Run<'_>) -> usize {
        tasks_by_work(run, run.rows(self.op.rows), self.op.dim)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.op;
        let rows = part.of(run.rows(op.rows));
        let elements = rows.start * op.dim..rows.end * op.dim;
        // SAFETY: the plan's hazards exclude writers of `x`, and `out` has rows of its own per task.
        let (x, out) = unsafe {
            (run.memory.read(&op.x, elements.clone()), run.memory.write(&op.out, elements))
        };
        rms_norm(run.isa, x, &self.weight, op.eps, out);
    }
}

#[inline(always)]
fn gated_norm_rows<A: Arithmetic>(
    gate: &[f32],
    weight: &[f32],
    eps: f32,
    sigmoid_gate: bool,
    out: &mut [f32],
) {
    let dim = weight.len();
    for (out, gate) in out.chunks_exact_mut(dim).zip(gate.chunks_exact(dim)) {
        let scale = inverse_rms::<A>(out, eps);
        let normed = out.iter_mut().zip(gate).zip(weight);
        if sigmoid_gate {
            normed.for_each(|((x, g), w)| *x = *x * scale * w * sigmoid::<A>(*g));
        } else {
            normed.for_each(|((x, g), w)| *x = *x * scale * w * silu::<A>(*g));
        }
    }
}
per_isa! {
    /// Norms each row of `weight.len()` elements in place and multiplies it by its activated gate.
    fn gated_rms_norm(gate: &[f32], weight: &[f32], eps: f32, sigmoid_gate: bool, out: &mut [f32])
        = gated_norm_rows
}

pub(super) struct GatedRmsNorm {
    op: op::GatedRmsNorm,
    weight: Arc<[f32]>,
}

impl GatedRmsNorm {
    pub(super) fn new(op: op::GatedRmsNorm, weights: &Weights<'_>) -> Self {
        let weight = weights.floats(op.weight, op.dim);
        GatedRmsNorm { op, weight }
    }
}

impl Kernel for GatedRmsNorm {
    fn tasks(&self, run: &Run<'_>) -> usize {
        tasks_by_work(run, run.rows(self.op.rows) * self.op.heads, 2 * self.op.dim)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.op;
        let heads = part.of(run.rows(op.rows) * op.heads);
        let elements = heads.start * op.dim..heads.end * op.dim;
        // SAFETY: the plan's hazards exclude writers of `gate`, and `out` has heads of its own per
        // task.
        let (gate, out) = unsafe {
            (
                run.memory.read(&op.gate, elements.clone()),
                run.memory.write(&op.out, elements.clone()),
            )
        };
        if op.x != op.out {
            // SAFETY: the plan's hazards exclude writers of `x`, which is not `out` here.
            out.copy_from_slice(unsafe { run.memory.read(&op.x, elements) });
        }
        gated_rms_norm(run.isa, gate, &self.weight, op.eps, op.sigmoid, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    fn wave(n: usize, step: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * step).sin() * 3.0).collect()
    }

    #[test]
    fn a_norm_agrees_with_the_definition_in_double_precision() {
        for isa in Isa::available() {
            for (rows, dim) in [(1, 64), (3, 100), (2, 2048)] {
                let (x, weight) = (wave(rows * dim, 0.31), wave(dim, 0.17));
                let mut out = vec![0.0; rows * dim];
                rms_norm(isa, &x, &weight, 1e-6, &mut out);
                for (x, out) in x.chunks(dim).zip(out.chunks(dim)) {
                    let mean: f64 =
                        x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / dim as f64;
                    for ((x, w), out) in x.iter().zip(&weight).zip(out) {
                        let want = f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*w);
                        assert!((f64::from(*out) - want).abs() < 1e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn a_gated_norm_norms_first_and_gates_then() {
        for isa in Isa::available() {
            for sigmoid_gate in [false, true] {
                let (rows, dim) = (5, 128);
                let (x, gate, weight) =
                    (wave(rows * dim, 0.31), wave(rows * dim, 0.7), wave(dim, 0.17));
                let mut out = x.clone();
                gated_rms_norm(isa, &gate, &weight, 1e-6, sigmoid_gate, &mut out);
                for r in 0..rows {
                    let row = &x[r * dim..][..dim];
                    let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / dim as f64;
                    for i in 0..dim {
                        let g = f64::from(gate[r * dim + i]);
                        let act = if sigmoid_gate { 1.0 } else { g } / (1.0 + (-g).exp());
                        let want =
                            f64::from(row[i]) / (mean + 1e-6).sqrt() * f64::from(weight[i]) * act;
                        assert!((f64::from(out[r * dim + i]) - want).abs() < 2e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn a_value_that_is_not_finite_stays_visible() {
        let mut x = wave(64, 0.3);
        x[7] = f32::NAN;
        let mut out = vec![0.0; 64];
        rms_norm(Isa::detect(), &x, &[1.0; 64], 1e-6, &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
    }
}
