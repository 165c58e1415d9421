//! Routing to experts and the weighted sum of what they return.

use lily_plan::op;

use super::math::{Arithmetic, exp, per_isa, sigmoid};
use super::{Kernel, Part, Run, Workspace, tasks_by_work};

pub(super) struct Route(pub(super) op::Route);

impl Kernel for Route {
    fn tasks(&self, run: &Run<'_>) -> usize {
        tasks_by_work(run, run.rows(self.0.rows), 4 * self.0.n_experts)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.0;
        let rows = part.of(run.rows(op.rows));
        let slots = rows.start * op.top_k..rows.end * op.top_k;
        // SAFETY: the plan's hazards exclude writers of the logits; outputs have rows of their own
        // per task.
        let (logits, experts, weights) = unsafe {
            (
                run.memory.read(&op.logits, rows.start * op.n_experts..rows.end * op.n_experts),
                run.memory.write(&op.experts, slots.clone()),
                run.memory.write(&op.weights, slots),
            )
        };
        route(run.isa, logits, op.n_experts, op.top_k, experts, weights);
    }
}

#[inline(always)]
fn route_rows<A: Arithmetic>(
    logits: &[f32],
    n_experts: usize,
    top_k: usize,
    experts: &mut [u32],
    weights: &mut [f32],
) {
    let slots = experts.chunks_exact_mut(top_k).zip(weights.chunks_exact_mut(top_k));
    for (logits, (experts, weights)) in logits.chunks_exact(n_experts).zip(slots) {
        // Softmax keeps the order, so the largest logits are the most probable experts.
        largest(logits, experts, weights);
        let max = weights[0];
        // The whole sum is taken so that a logit that is not finite shows in the weights, chosen or
        // not.
        let mut sums = [0.0f32; 8];
        let chunks = logits.chunks_exact(8);
        let tail: f32 = chunks.remainder().iter().map(|x| exp::<A>(x - max)).sum();
        for chunk in chunks {
            for (sum, x) in sums.iter_mut().zip(chunk) {
                *sum += exp::<A>(x - max);
            }
        }
        let all: f32 = sums.iter().sum::<f32>() + tail;
        let mut chosen = 0.0;
        for weight in weights.iter_mut() {
            *weight = exp::<A>(*weight - max) / all;
            chosen += *weight;
        }
        for weight in weights {
            *weight /= chosen;
        }
    }
}
per_isa! {
    fn route(
        logits: &[f32],
        n_experts: usize,
        top_k: usize,
        experts: &mut [u32],
        weights: &mut [f32],
    ) = route_rows
}

/// The `experts.len()` largest logits in falling order, equal ones by index.
#[inline(always)]
fn largest(logits: &[f32], experts: &mut [u32], values: &mut [f32]) {
    let k = experts.len();
    for (i, &logit) in logits.iter().enumerate() {
        let held = i.min(k);
        if held == k && (logit <= values[k - 1] || logit.is_nan()) {
            continue;
        }
        // Behind everything at least as large, which came earlier.
        let mut at = held.min(k - 1);
        while at > 0 && logit > values[at - 1] {
            values[at] = values[at - 1];
            experts[at] = experts[at - 1];
            at -= 1;
        }
        values[at] = logit;
        experts[at] = i as u32;
    }
}

pub(super) struct GroupByExpert(pub(super) op::GroupByExpert);

impl Kernel for GroupByExpert {
    fn tasks(&self, _: &Run<'_>) -> usize {
        1
    }

    fn task(&self, run: &Run<'_>, _: Part, _: &mut Workspace) {
        let op = &self.0;
        let slots = run.rows(op.rows) * op.top_k;
        // SAFETY: the plan's hazards exclude writers of `experts`; this is the step's only task.
        let (experts, offsets, order) = unsafe {
            (
                run.memory.read::<u32>(&op.experts, 0..slots),
                run.memory.write::<u32>(&op.offsets, 0..op.n_experts + 1),
                run.memory.write::<u32>(&op.order, 0..slots),
            )
        };
        // Counts one place further on; after the prefix sum `offsets[e]` is the start of expert `e`
        // and serves as its cursor, which leaves each start one place too early.
        offsets.fill(0);
        for &expert in experts {
            offsets[expert as usize + 1] += 1;
        }
        for e in 1..offsets.len() {
            offsets[e] += offsets[e - 1];
        }
        for (slot, &expert) in experts.iter().enumerate() {
            let cursor = &mut offsets[expert as usize];
            order[*cursor as usize] = slot as u32;
            *cursor += 1;
        }
        offsets.copy_within(0..op.n_experts, 1);
        offsets[0] = 0;
    }
}

pub(super) struct MoeCombine(pub(super) op::MoeCombine);

impl Kernel for MoeCombine {
    fn tasks(&self, run: &Run<'_>) -> usize {
        let op = &self.0;
        tasks_by_work(run, run.rows(op.rows), (op.top_k + 2) * op.dim)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.0;
        let (dim, top_k) = (op.dim, op.top_k);
        for row in part.of(run.rows(op.rows)) {
            let slots = row * top_k..(row + 1) * top_k;
            // SAFETY: the plan's hazards exclude writers of everything read; `x` has rows of its
            // own per task.
            let (expert_out, weights, shared_out, shared_gate, x) = unsafe {
                (
                    run.memory.read::<f32>(&op.expert_out, slots.start * dim..slots.end * dim),
                    run.memory.read::<f32>(&op.weights, slots),
                    run.memory.read::<f32>(&op.shared_out, row * dim..(row + 1) * dim),
                    run.memory.read::<f32>(&op.shared_gate, row..row + 1)[0],
                    run.memory.write::<f32>(&op.x, row * dim..(row + 1) * dim),
                )
            };
            combine(run.isa, expert_out, weights, shared_out, shared_gate, x);
        }
    }
}

#[inline(always)]
fn combine_row<A: Arithmetic>(
    expert_out: &[f32],
    weights: &[f32],
    shared_out: &[f32],
    shared_gate: f32,
    x: &mut [f32],
) {
    let dim = x.len();
    let gate = sigmoid::<A>(shared_gate);
    // In short pieces, so that the sums stay in registers over all experts.
    for start in (0..dim).step_by(64) {
        let end = (start + 64).min(dim);
        let mut sums = [0.0f32; 64];
        let sums = &mut sums[..end - start];
        for (weight, out) in weights.iter().zip(expert_out.chunks_exact(dim)) {
            for (sum, out) in sums.iter_mut().zip(&out[start..end]) {
                *sum = A::mul_add(*weight, *out, *sum);
            }
        }
        let rest = x[start..end].iter_mut().zip(&shared_out[start..end]);
        for (sum, (x, shared)) in sums.iter().zip(rest) {
            *x += A::mul_add(gate, *shared, *sum);
        }
    }
}
per_isa! {
    fn combine(
        expert_out: &[f32],
        weights: &[f32],
        shared_out: &[f32],
        shared_gate: f32,
        x: &mut [f32],
    ) = combine_row
}

#[cfg(test)]
mod tests {
    use super::super::Active;
    use super::super::testing::Bench;
    use super::*;
    use crate::simd::Isa;

    fn route_one(logits: &[f32], top_k: usize) -> (Vec<u32>, Vec<f32>) {
        let (mut experts, mut weights) = (vec![0; top_k], vec![0.0; top_k]);
        route(Isa::detect(), logits, logits.len(), top_k, &mut experts, &mut weights);
        (experts, weights)
    }

    #[test]
    fn the_most_probable_experts_come_first_with_weights_that_sum_to_one() {
        let logits: Vec<f32> = (0..37).map(|i| ((i * 7919) % 37) as f32 * 0.2).collect();
        let (experts, weights) = route_one(&logits, 5);
        let mut order: Vec<u32> = (0..37).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        assert_eq!(experts, order[..5]);
        let exps: Vec<f64> = experts.iter().map(|&e| f64::from(logits[e as usize]).exp()).collect();
        let sum: f64 = exps.iter().sum();
        for (weight, exp) in weights.iter().zip(&exps) {
            assert!((f64::from(*weight) - exp / sum).abs() < 1e-6);
        }
    }

    #[test]
    fn equal_logits_are_chosen_by_the_lower_index() {
        assert_eq!(route_one(&[1.0; 16], 4).0, [0, 1, 2, 3]);
        assert_eq!(route_one(&[0.0, 2.0, 1.0, 2.0, 1.0, 1.0], 4).0, [1, 3, 2, 4]);
    }

    #[test]
    fn a_logit_that_is_not_finite_shows_in_the_weights_and_names_real_experts() {
        for at in [0, 3, 9] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut logits: Vec<f32> = (0..10).map(|i| i as f32).collect();
                logits[at] = bad;
                let (experts, weights) = route_one(&logits, 3);
                assert!(weights.iter().any(|w| w.is_nan()), "{bad} at {at}: {weights:?}");
                assert!(experts.iter().all(|&e| e < 10));
            }
        }
    }

    #[test]
    fn slots_are_sorted_by_expert_and_ascend_within_one() {
        let mut bench = Bench::default();
        let chosen = [3u32, 0, 3, 1, 0, 3, 9, 9];
        let op = op::GroupByExpert {
            experts: bench.u32s(&chosen),
            offsets: bench.u32s(&[7; 6]),
            order: bench.u32s(&[99; 8]),
            rows: 4,
            n_experts: 5,
            top_k: 2,
        };
        let kernel = GroupByExpert(op.clone());
        // Three of four rows: the last two slots must not be looked at.
        bench.run(&kernel, Isa::Portable, Active { position: 0, rows: 3 });
        assert_eq!(bench.get_u32s(&op.offsets), [0, 2, 3, 3, 6, 6]);
        assert_eq!(bench.get_u32s(&op.order), [1, 4, 3, 0, 2, 5, 99, 99]);
    }

    #[test]
    fn the_combination_adds_experts_and_the_gated_shared_expert_to_the_residual() {
        let (rows, top_k, dim) = (5, 3, 100);
        let wave =
            |n: usize, step: f32| (0..n).map(|i| (i as f32 * step).sin()).collect::<Vec<_>>();
        for isa in Isa::available() {
            let mut bench = Bench::default();
            let (expert_out, weights) = (wave(rows * top_k * dim, 0.3), wave(rows * top_k, 0.9));
            let (shared_out, shared_gate) = (wave(rows * dim, 0.21), wave(rows, 1.7));
            let x = wave(rows * dim, 0.11);
            let op = op::MoeCombine {
                expert_out: bench.f32s(&expert_out),
                weights: bench.f32s(&weights),
                shared_out: bench.f32s(&shared_out),
                shared_gate: bench.f32s(&shared_gate),
                x: bench.f32s(&x),
                rows,
                top_k,
                dim,
            };
            bench.run(&MoeCombine(op.clone()), isa, Active { position: 0, rows: rows - 1 });
            let got = bench.get_f32s(&op.x);
            for r in 0..rows - 1 {
                let gate = 1.0 / (1.0 + (-f64::from(shared_gate[r])).exp());
                for i in 0..dim {
                    let mut want =
                        f64::from(x[r * dim + i]) + gate * f64::from(shared_out[r * dim + i]);
                    for j in 0..top_k {
                        let slot = r * top_k + j;
                        want += f64::from(weights[slot]) * f64::from(expert_out[slot * dim + i]);
                    }
                    assert!((f64::from(got[r * dim + i]) - want).abs() < 1e-5);
                }
            }
            assert_eq!(got[(rows - 1) * dim..], x[(rows - 1) * dim..]);
        }
    }
}
