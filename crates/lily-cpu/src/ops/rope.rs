//! Query and key norms, rotary embedding, and the append to the KV cache.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use lily_plan::buffer::Region;
use lily_plan::op;

use super::math::{Arithmetic, per_isa};
use super::norm::inverse_rms;
use super::{Kernel, Part, Run, Workspace, tasks_by_work};
use crate::weights::Weights;

pub(super) struct RopeAppend {
    op: op::RopeAppend,
    q_norm: Arc<[f32]>,
    k_norm: Arc<[f32]>,
}

impl RopeAppend {
    pub(super) fn new(op: op::RopeAppend, weights: &Weights<'_>) -> Self {
        let q_norm = weights.floats(op.q_norm, op.head_dim);
        let k_norm = weights.floats(op.k_norm, op.head_dim);
        RopeAppend { op, q_norm, k_norm }
    }
}

/// Whether a cache region holds `bf16` rather than `f32`, by its size.
pub(super) fn is_bf16(cache: &Region, elements: usize) -> bool {
    cache.bytes.end - cache.bytes.start == 2 * elements as u64
}

impl Kernel for RopeAppend {
    fn tasks(&self, run: &Run<'_>) -> usize {
        let op = &self.op;
        let heads = op.n_heads + 2 * op.n_kv_heads;
        // A double-precision sine and cosine cost about a hundred element operations.
        let work = 4 * heads * op.head_dim + 100 * op.inv_freq.len();
        tasks_by_work(run, run.rows(op.rows), work)
    }

    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace) {
        let op = &self.op;
        let (dim, pairs) = (op.head_dim, op.inv_freq.len());
        let (turns, head) = workspace.floats(2 * pairs + dim).split_at_mut(2 * pairs);
        let (cos, sin) = turns.split_at_mut(pairs);
        for row in part.of(run.rows(op.rows)) {
            let position = run.active.position + row;
            for (i, freq) in op.inv_freq.iter().enumerate() {
                let (s, c) = (position as f64 * f64::from(*freq)).sin_cos();
                (cos[i], sin[i]) = (c as f32 * op.rope_scale, s as f32 * op.rope_scale);
            }
            for h in 0..op.n_heads {
                let at = row * op.n_heads + h;
                // SAFETY: the plan's hazards exclude writers of `q_gate`; `q` has rows of its own
                // per task.
                let (x, out) = unsafe {
                    (
                        run.memory.read(&op.q_gate, 2 * at * dim..(2 * at + 1) * dim),
                        run.memory.write(&op.q, at * dim..(at + 1) * dim),
                    )
                };
                norm_and_rotate(run.isa, x, &self.q_norm, op.eps, cos, sin, out);
            }
            for h in 0..op.n_kv_heads {
                let at = row * op.n_kv_heads + h;
                // SAFETY: the plan's hazards exclude writers of `k` and `v`.
                let (k, v) = unsafe {
                    (
                        run.memory.read(&op.k, at * dim..(at + 1) * dim),
                        run.memory.read(&op.v, at * dim..(at + 1) * dim),
                    )
                };
                norm_and_rotate(run.isa, k, &self.k_norm, op.eps, cos, sin, head);
                let to = (h * op.capacity + position) * dim;
                self.append(run, &op.k_cache, to..to + dim, head);
                self.append(run, &op.v_cache, to..to + dim, v);
            }
        }
    }
}

impl RopeAppend {
    fn append(&self, run: &Run<'_>, cache: &Region, elements: Range<usize>, values: &[f32]) {
        let op = &self.op;
        if is_bf16(cache, op.n_kv_heads * op.capacity * op.head_dim) {
            // SAFETY: a task appends the cache rows of its own token rows.
            let out = unsafe { run.memory.write::<bf16>(cache, elements) };
            for (out, value) in out.iter_mut().zip(values) {
                *out = bf16::from_f32(*value);
            }
        } else {
            // SAFETY: as above.
            unsafe { run.memory.write::<f32>(cache, elements) }.copy_from_slice(values);
        }
    }
}

#[inline(always)]
fn norm_and_rotate_head<A: Arithmetic>(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    cos: &[f32],
    sin: &[f32],
    out: &mut [f32],
) {
    let scale = inverse_rms::<A>(x, eps);
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * w;
    }
    let pairs = cos.len();
    let (first, rest) = out.split_at_mut(pairs);
    for (((a, b), c), s) in first.iter_mut().zip(&mut rest[..pairs]).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
    }
}
per_isa! {
    fn norm_and_rotate(
        x: &[f32],
        weight: &[f32],
        eps: f32,
        cos: &[f32],
        sin: &[f32],
        out: &mut [f32],
    ) = norm_and_rotate_head
}

#[cfg(test)]
mod tests {
    use super::super::Active;
    use super::super::testing::Bench;
    use super::*;
    use crate::simd::Isa;
    use lily_plan::buffer::WeightId;

    fn wave(n: usize, step: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * step).sin() * 2.0).collect()
    }

    /// Norm, then rotation of pairs `(i, i + pairs)`, in double precision.
    fn reference(x: &[f32], weight: &[f32], position: usize, inv_freq: &[f32]) -> Vec<f64> {
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + 1e-6).sqrt();
        let mut y: Vec<f64> =
            x.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect();
        for (i, freq) in inv_freq.iter().enumerate() {
            let (s, c) = (position as f64 * f64::from(*freq)).sin_cos();
            let (a, b) = (y[i], y[i + inv_freq.len()]);
            (y[i], y[i + inv_freq.len()]) = (a * c - b * s, b * c + a * s);
        }
        y
    }

    #[test]
    fn queries_and_keys_are_normed_rotated_and_stored_at_their_positions() {
        let (rows, n_heads, n_kv_heads, capacity, position) = (3, 4, 2, 12, 7);
        for (dim, pairs) in [(64, 8), (256, 32)] {
            let inv_freq: Vec<f32> =
                (0..pairs).map(|i| 1e4f32.powf(-(i as f32) / pairs as f32)).collect();
            let q_gate = wave(rows * n_heads * 2 * dim, 0.3);
            let (k, v) = (wave(rows * n_kv_heads * dim, 0.7), wave(rows * n_kv_heads * dim, 0.5));
            let (q_norm, k_norm) = (wave(dim, 0.11), wave(dim, 0.13));
            for bytes in [2, 4] {
                let mut bench = Bench::default();
                let cache = vec![5.0; n_kv_heads * capacity * dim * bytes / 4];
                let op = op::RopeAppend {
                    control: bench.u32s(&[0, 0]),
                    q_gate: bench.f32s(&q_gate),
                    k: bench.f32s(&k),
                    v: bench.f32s(&v),
                    q_norm: WeightId(0),
                    k_norm: WeightId(1),
                    q: bench.f32s(&vec![0.0; rows * n_heads * dim]),
                    k_cache: bench.f32s(&cache),
                    v_cache: bench.f32s(&cache),
                    rows,
                    n_heads,
                    n_kv_heads,
                    head_dim: dim,
                    capacity,
                    inv_freq: inv_freq.clone(),
                    rope_scale: 1.0,
                    eps: 1e-6,
                };
                let kernel = RopeAppend {
                    op: op.clone(),
                    q_norm: q_norm.clone().into(),
                    k_norm: k_norm.clone().into(),
                };
                bench.run(&kernel, Isa::detect(), Active { position, rows });
                let got_q = bench.get_f32s(&op.q);
                for at in 0..rows * n_heads {
                    let x = &q_gate[2 * at * dim..][..dim];
                    let want = reference(x, &q_norm, position + at / n_heads, &inv_freq);
                    for (got, want) in got_q[at * dim..].iter().zip(want) {
                        assert!((f64::from(*got) - want).abs() < 1e-5);
                    }
                }
                let (k_cache, v_cache) =
                    (bench.get_cache(&op.k_cache, bytes), bench.get_cache(&op.v_cache, bytes));
                let tolerance = if bytes == 2 { 0.02 } else { 1e-5 };
                for row in 0..rows {
                    for h in 0..n_kv_heads {
                        let from = (row * n_kv_heads + h) * dim;
                        let to = (h * capacity + position + row) * dim;
                        let want =
                            reference(&k[from..from + dim], &k_norm, position + row, &inv_freq);
                        for i in 0..dim {
                            assert!((f64::from(k_cache[to + i]) - want[i]).abs() < tolerance);
                            assert!((v_cache[to + i] - v[from + i]).abs() < tolerance as f32);
                        }
                    }
                }
                let untouched = bench.get_cache(&op.k_cache, 4);
                assert_eq!(untouched[0], 5.0);
            }
        }
    }
}
