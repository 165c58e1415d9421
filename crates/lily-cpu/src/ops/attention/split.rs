//! Attention in splits that a later step merges, as GPUs do it for one token.

use lily_plan::buffer::Region;
use lily_plan::op;

use super::super::elementwise::gate_by_sigmoid;
use super::super::math::{Arithmetic, exp, per_isa};
use super::super::{Kernel, Part, Run, Workspace};
use super::{Attention, Share, layout};

/// The second half of [`op::AttentionSplit`], once the queries are there and the cache is filled.
pub(in super::super) struct Split {
    /// Its output is not used.
    pub(in super::super) attention: Attention,
    pub(in super::super) partial: Region,
    pub(in super::super) stats: Region,
    pub(in super::super) n_splits: usize,
}

impl Kernel for Split {
    fn tasks(&self, _: &Run<'_>) -> usize {
        self.n_splits
    }

    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace) {
        let (op, group) = (&self.attention.op, self.attention.group());
        let dim = op.head_dim;
        let end = run.active.position + 1;
        let per_split = end.div_ceil(self.n_splits);
        let keys = (part.index * per_split).min(end)..((part.index + 1) * per_split).min(end);
        let layout = layout(1, group, dim);
        for kv_head in 0..op.n_kv_heads {
            let floats = workspace.floats(layout.partial() + layout.len());
            let (result, work) = floats.split_at_mut(layout.partial());
            let share = Share { kv_head, rows: 0..1, keys: keys.clone() };
            self.attention.attend(run, &share, result, work);
            let (max, rest) = result.split_at(layout.queries);
            let (sum, values) = rest.split_at(layout.queries);
            for g in 0..group {
                let head = part.index * op.n_heads + kv_head * group + g;
                // SAFETY: each split has heads of its own in both outputs.
                let (partial, stats) = unsafe {
                    (
                        run.memory.write::<f32>(&self.partial, head * dim..(head + 1) * dim),
                        run.memory.write::<f32>(&self.stats, 2 * head..2 * head + 2),
                    )
                };
                partial.copy_from_slice(&values[g * dim..(g + 1) * dim]);
                stats.copy_from_slice(&[max[g], sum[g]]);
            }
        }
    }
}

pub(in super::super) struct Merge(pub(in super::super) op::AttentionMerge);

impl Kernel for Merge {
    fn tasks(&self, _: &Run<'_>) -> usize {
        self.0.n_heads
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let (op, head, dim) = (&self.0, part.index, self.0.head_dim);
        // SAFETY: the plan's hazards exclude writers of what is read; `out` has a head per task.
        let (partial, stats, out) = unsafe {
            (
                run.memory.read::<f32>(&op.partial, 0..op.n_splits * op.n_heads * dim),
                run.memory.read::<f32>(&op.stats, 0..op.n_splits * op.n_heads * 2),
                run.memory.write::<f32>(&op.out, head * dim..(head + 1) * dim),
            )
        };
        merge_head(run.isa, partial, stats, head, op.n_heads, out);
        if let Some(q_gate) = &op.q_gate {
            let gate = (2 * head + 1) * dim..(2 * head + 2) * dim;
            // SAFETY: the plan's hazards exclude writers of `q_gate`.
            gate_by_sigmoid(run.isa, unsafe { run.memory.read(q_gate, gate) }, out);
        }
    }
}

/// Splits in order.
#[inline(always)]
fn merge_splits<A: Arithmetic>(
    partial: &[f32],
    stats: &[f32],
    head: usize,
    n_heads: usize,
    out: &mut [f32],
) {
    let dim = out.len();
    let of_head = || stats.chunks_exact(2).skip(head).step_by(n_heads);
    let max = of_head().fold(f32::NEG_INFINITY, |max, s| if s[0] > max { s[0] } else { max });
    let mut sum = 0.0;
    out.fill(0.0);
    for (stats, values) in of_head().zip(partial.chunks_exact(dim).skip(head).step_by(n_heads)) {
        let weight = exp::<A>(stats[0] - max);
        sum = A::mul_add(stats[1], weight, sum);
        for (out, value) in out.iter_mut().zip(values) {
            *out = A::mul_add(*value, weight, *out);
        }
    }
    let scale = 1.0 / sum;
    out.iter_mut().for_each(|x| *x *= scale);
}
per_isa! {
    fn merge_head(
        partial: &[f32],
        stats: &[f32],
        head: usize,
        n_heads: usize,
        out: &mut [f32],
    ) = merge_splits
}
