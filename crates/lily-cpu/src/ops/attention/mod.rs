//! Causal softmax attention over the KV cache.
//!
//! The query heads that share a key/value head, over a block of token rows, are one set of query
//! rows. Queries lie transposed, so one key element meets all query rows in vector lanes, the
//! softmax runs along lanes without horizontal sums, and both products have the cache as a
//! row-major operand.
//!
//! Prefill: one task per key/value head and block of rows walks all its keys. A few rows (decode):
//! the keys are cut at fixed positions, each task leaves a partial softmax, and the task that ends
//! last merges them in order, so the result does not depend on who was last. There the cache's bytes
//! take the time, and queries lie as they come ([`few_rows`]).

mod few_rows;
mod split;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;
use lily_device::DeviceError;
use lily_plan::buffer::{BufferId, Region};
use lily_plan::op;

use super::elementwise::gate_by_sigmoid;
use super::math::{Arithmetic, exp, per_isa};
use super::product::{Dims, Strided, product};
use super::rope::is_bf16;
use super::{Kernel, Part, Run, Workspace};
use crate::matrix::{Bf16, F32, Stored};
use crate::memory::{AlignedBytes, Element, Memory, Span};

/// Keys per step of the running softmax.
const KEY_BLOCK: usize = 64;
/// Keys per task when few rows attend; a multiple of [`KEY_BLOCK`].
const SPLIT: usize = 256;
/// Rows up to which keys are split.
const SPLIT_ROWS: usize = 4;
/// Query rows (token rows × heads that share a key head) of one task in prefill.
const QUERY_ROWS: usize = 64;

pub(super) use self::split::{Merge, Split};

pub(super) struct Attention {
    op: op::Attention,
    bf16_cache: bool,
    /// Per key/value head, how many splits have left their partial result.
    finished: Vec<AtomicUsize>,
    partials: AlignedBytes,
}

/// One set of query rows against one range of keys.
struct Share {
    kv_head: usize,
    rows: Range<usize>,
    keys: Range<usize>,
}

/// Layout of a task's working memory, in floats.
struct Layout {
    /// Query rows, padded to a multiple of 8.
    queries: usize,
    dim: usize,
}

impl Layout {
    fn len(&self) -> usize {
        self.queries * self.dim + KEY_BLOCK * (2 * self.dim + self.queries)
    }
    /// Of a partial result: maximum and sum per query row, then the unnormalised outputs.
    fn partial(&self) -> usize {
        self.queries * (self.dim + 2)
    }
}

impl Attention {
    pub(super) fn new(op: op::Attention) -> Result<Self, DeviceError> {
        let bf16_cache = is_bf16(&op.k_cache, op.n_kv_heads * op.capacity * op.head_dim);
        let group = op.n_heads / op.n_kv_heads;
        let layout = layout(op.rows.min(SPLIT_ROWS), group, op.head_dim);
        let splits = op.capacity.div_ceil(SPLIT);
        let floats = op.n_kv_heads * splits * layout.partial();
        Ok(Attention {
            finished: (0..op.n_kv_heads).map(|_| AtomicUsize::new(0)).collect(),
            partials: AlignedBytes::zeroed("attention partials", 4 * floats as u64)?,
            bf16_cache,
            op,
        })
    }

    fn group(&self) -> usize {
        self.op.n_heads / self.op.n_kv_heads
    }

    fn splits(&self, run: &Run<'_>) -> usize {
        (run.active.position + run.rows(self.op.rows)).div_ceil(SPLIT)
    }

    fn rows_per_task(&self) -> usize {
        (QUERY_ROWS / self.group()).max(1)
    }
}

/// Layout for `rows` token rows.
fn layout(rows: usize, group: usize, dim: usize) -> Layout {
    Layout { queries: (rows * group).next_multiple_of(8), dim }
}

impl Kernel for Attention {
    fn tasks(&self, run: &Run<'_>) -> usize {
        let rows = run.rows(self.op.rows);
        if rows <= SPLIT_ROWS {
            // A run that failed half-way may have left counts behind.
            self.finished.iter().for_each(|finished| finished.store(0, Ordering::Relaxed));
            self.op.n_kv_heads * self.splits(run)
        } else {
            self.op.n_kv_heads * rows.div_ceil(self.rows_per_task())
        }
    }

    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace) {
        let (op, rows) = (&self.op, run.rows(self.op.rows));
        let end = run.active.position + rows;
        if rows > SPLIT_ROWS {
            let per_task = self.rows_per_task();
            // The last rows have the most keys and go first.
            let block = rows.div_ceil(per_task) - 1 - part.index / op.n_kv_heads;
            let rows = block * per_task..((block + 1) * per_task).min(rows);
            let keys = 0..run.active.position + rows.end;
            let share = Share { kv_head: part.index % op.n_kv_heads, rows, keys };
            return self.attend_and_write(run, &share, workspace);
        }
        let splits = self.splits(run);
        let (kv_head, split) = (part.index / splits, part.index % splits);
        let keys = split * SPLIT..((split + 1) * SPLIT).min(end);
        let share = Share { kv_head, rows: 0..rows, keys };
        if splits == 1 {
            return self.attend_and_write(run, &share, workspace);
        }
        let layout = layout(rows, self.group(), op.head_dim);
        let n = layout.partial();
        let first = kv_head * op.capacity.div_ceil(SPLIT) * n;
        let memory = [Span { base: self.partials.base(), bytes: self.partials.len() as u64 }];
        // SAFETY: the allocation lives as long as `self` and is used by this step's tasks only.
        let memory = unsafe { Memory::new(&memory) };
        let region = Region { buffer: BufferId(0), bytes: 0..self.partials.len() as u64 };
        let at = first + split * n;
        // SAFETY: each split of each head has its own partial result, read only after all splits of
        // that head are counted as finished.
        let partial = unsafe { memory.write::<f32>(&region, at..at + n) };
        self.attend(run, &share, partial, workspace.floats(layout.len()));
        // Release publishes this partial; the last one acquires those of all others.
        if self.finished[kv_head].fetch_add(1, Ordering::AcqRel) + 1 == splits {
            // SAFETY: all splits of this head have ended, and this task alone goes on.
            let partials = unsafe { memory.read::<f32>(&region, first..first + splits * n) };
            let result = workspace.floats(n);
            merge(run.isa, partials, layout.queries, result);
            self.write(run, &share, &layout, result);
        }
    }
}

impl Attention {
    /// Attends over all of the share's keys and writes the outputs.
    fn attend_and_write(&self, run: &Run<'_>, share: &Share, workspace: &mut Workspace) {
        let layout = layout(share.rows.len(), self.group(), self.op.head_dim);
        let floats = workspace.floats(layout.partial() + layout.len());
        let (result, work) = floats.split_at_mut(layout.partial());
        self.attend(run, share, result, work);
        self.write(run, share, &layout, result);
    }

    /// Leaves the unnormalised result of the share's keys in `partial`; `work` is working memory.
    fn attend(&self, run: &Run<'_>, share: &Share, partial: &mut [f32], work: &mut [f32]) {
        let op = &self.op;
        let (dim, group) = (op.head_dim, self.group());
        if share.rows.len() <= SPLIT_ROWS && dim.is_multiple_of(few_rows::ELEMENTS) {
            return if self.bf16_cache {
                self.attend_few::<Bf16>(run, share, partial, work)
            } else {
                self.attend_few::<F32>(run, share, partial, work)
            };
        }
        let layout = layout(share.rows.len(), group, dim);
        let (q_transposed, rest) = work.split_at_mut(layout.queries * dim);
        q_transposed.fill(0.0);
        for (r, row) in share.rows.clone().enumerate() {
            for g in 0..group {
                let at = (row * op.n_heads + share.kv_head * group + g) * dim;
                // SAFETY: the plan's hazards exclude writers of `q`.
                let q = unsafe { run.memory.read::<f32>(&op.q, at..at + dim) };
                for (d, q) in q.iter().enumerate() {
                    q_transposed[d * layout.queries + r * group + g] = q * op.scale;
                }
            }
        }
        let (state, out) = partial.split_at_mut(2 * layout.queries);
        let (max, sum) = state.split_at_mut(layout.queries);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        out.fill(0.0);
        let (scores, rest) = rest.split_at_mut(KEY_BLOCK * layout.queries);
        let (k_block, rest) = rest.split_at_mut(KEY_BLOCK * dim);
        let v_block = &mut rest[..KEY_BLOCK * dim];
        let first_position = run.active.position + share.rows.start;
        for start in share.keys.clone().step_by(KEY_BLOCK) {
            let keys = start..(start + KEY_BLOCK).min(share.keys.end);
            let k = self.cache_rows(run, &op.k_cache, share.kv_head, keys.clone(), k_block);
            let v = self.cache_rows(run, &op.v_cache, share.kv_head, keys.clone(), v_block);
            // Key `first_position + r` is hidden from the rows before `r`.
            let hidden = Hidden { start, first_position, group };
            block(run.isa, q_transposed, k, v, hidden, scores, max, sum, out);
        }
    }

    /// As [`Attention::attend`], for few rows.
    fn attend_few<D: Stored<Bits: Element>>(
        &self,
        run: &Run<'_>,
        share: &Share,
        partial: &mut [f32],
        work: &mut [f32],
    ) {
        let op = &self.op;
        let (dim, group) = (op.head_dim, self.group());
        let layout = layout(share.rows.len(), group, dim);
        let (queries, work) = work.split_at_mut(layout.queries * dim);
        let (row, rest) = queries.split_at_mut(share.rows.len() * group * dim);
        for (row, out) in share.rows.clone().zip(row.chunks_exact_mut(group * dim)) {
            let at = (row * op.n_heads + share.kv_head * group) * dim;
            // SAFETY: the plan's hazards exclude writers of `q`.
            let q = unsafe { run.memory.read::<f32>(&op.q, at..at + group * dim) };
            for (out, q) in out.iter_mut().zip(q) {
                *out = q * op.scale;
            }
        }
        rest.fill(0.0);
        let (state, out) = partial.split_at_mut(2 * layout.queries);
        let (max, sum) = state.split_at_mut(layout.queries);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        out.fill(0.0);
        let mut carried = few_rows::Carried { max, sum, out };
        let rows = |cache: &Region, keys: Range<usize>| {
            let first = share.kv_head * op.capacity;
            let elements = (first + keys.start) * dim..(first + keys.end) * dim;
            // SAFETY: an earlier stage appended; the plan's hazards exclude writers in this one.
            unsafe { run.memory.read::<D::Bits>(cache, elements) }
        };
        let first_position = run.active.position + share.rows.start;
        let block = |start: usize| start..(start + KEY_BLOCK).min(share.keys.end);
        for start in share.keys.clone().step_by(KEY_BLOCK) {
            let keys = block(start);
            let cache = few_rows::Cache::<D> {
                k: rows(&op.k_cache, keys.clone()),
                v: rows(&op.v_cache, keys.clone()),
                next_k: rows(&op.k_cache, block(keys.end)),
            };
            // A row sees the keys up to its own position.
            let visible = |query: usize| (first_position + query / group + 1).saturating_sub(start);
            let work = &mut work[..few_rows::work(layout.queries)];
            few_rows::attend(run.isa, queries, &cache, visible, work, &mut carried);
        }
    }

    /// Cache rows as `f32`, converted into `block` where the cache is narrower.
    fn cache_rows<'a>(
        &self,
        run: &Run<'a>,
        cache: &Region,
        kv_head: usize,
        keys: Range<usize>,
        block: &'a mut [f32],
    ) -> &'a [f32] {
        let (capacity, dim) = (self.op.capacity, self.op.head_dim);
        let elements =
            (kv_head * capacity + keys.start) * dim..(kv_head * capacity + keys.end) * dim;
        if !self.bf16_cache {
            // SAFETY: an earlier stage appended; the plan's hazards exclude writers in this one.
            return unsafe { run.memory.read::<f32>(cache, elements) };
        }
        // SAFETY: as above.
        let rows = unsafe { run.memory.read::<bf16>(cache, elements) };
        let block = &mut block[..rows.len()];
        widen(run.isa, rows, block);
        block
    }

    fn write(&self, run: &Run<'_>, share: &Share, layout: &Layout, result: &[f32]) {
        let op = &self.op;
        let (dim, group) = (op.head_dim, self.group());
        let (state, values) = result.split_at(2 * layout.queries);
        let sums = &state[layout.queries..];
        for (r, row) in share.rows.clone().enumerate() {
            for g in 0..group {
                let query = r * group + g;
                let at = row * op.n_heads + share.kv_head * group + g;
                // SAFETY: `out` has rows and heads of its own per share, and one task per share
                // writes.
                let out = unsafe { run.memory.write::<f32>(&op.out, at * dim..(at + 1) * dim) };
                let scale = 1.0 / sums[query];
                for (out, value) in out.iter_mut().zip(&values[query * dim..]) {
                    *out = value * scale;
                }
                if let Some(q_gate) = &op.q_gate {
                    let gate = (2 * at + 1) * dim..(2 * at + 2) * dim;
                    // SAFETY: the plan's hazards exclude writers of `q_gate`.
                    gate_by_sigmoid(run.isa, unsafe { run.memory.read(q_gate, gate) }, out);
                }
            }
        }
    }
}

#[inline(always)]
fn widen_rows<A: Arithmetic>(from: &[bf16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(u32::from(from.to_bits()) << 16);
    }
}
per_isa! {
    pub(super) fn widen(from: &[bf16], to: &mut [f32]) = widen_rows
}

/// Which query rows a key block is hidden from.
#[derive(Clone, Copy)]
struct Hidden {
    /// Position of the block's first key.
    start: usize,
    /// Position of the first query row.
    first_position: usize,
    /// Query rows per position.
    group: usize,
}

/// One step of the running softmax: `scores[key][query]`, `out[query][dim]`.
#[allow(clippy::too_many_arguments, reason = "operands of a kernel")]
#[inline(always)]
fn attend_block<A: Arithmetic>(
    q_transposed: &[f32],
    k: &[f32],
    v: &[f32],
    hidden: Hidden,
    scores: &mut [f32],
    max: &mut [f32],
    sum: &mut [f32],
    out: &mut [f32],
) {
    let queries = max.len();
    let dim = q_transposed.len() / queries;
    let keys = k.len() / dim;
    let scores = &mut scores[..keys * queries];
    let dims = Dims { m: keys, n: queries, k: dim };
    let k = Strided { data: k, row: dim, col: 1 };
    product::<A, false>(dims, k, (q_transposed, queries), (scores, queries));
    for (j, scores) in scores.chunks_exact_mut(queries).enumerate() {
        let behind = (hidden.start + j).saturating_sub(hidden.first_position) * hidden.group;
        scores[..behind.min(queries)].fill(f32::NEG_INFINITY);
    }
    // Lanes in fixed groups of eight: maxima, corrections and sums stay in registers.
    for lane in (0..queries).step_by(8) {
        let mut block_max: [f32; 8] = max[lane..lane + 8].try_into().expect("eight lanes");
        for scores in scores.chunks_exact(queries) {
            for (m, s) in block_max.iter_mut().zip(&scores[lane..lane + 8]) {
                *m = if *s > *m { *s } else { *m };
            }
        }
        let mut correction = [0.0f32; 8];
        let mut base = [0.0f32; 8];
        for i in 0..8 {
            // A row that has not seen a key yet has nothing to correct.
            base[i] = if block_max[i] == f32::NEG_INFINITY { 0.0 } else { block_max[i] };
            correction[i] = exp::<A>(max[lane + i] - base[i]);
        }
        let mut block_sum = [0.0f32; 8];
        for scores in scores.chunks_exact_mut(queries) {
            for ((s, base), sum) in scores[lane..lane + 8].iter_mut().zip(&base).zip(&mut block_sum)
            {
                *s = exp::<A>(*s - base);
                *sum += *s;
            }
        }
        for i in 0..8 {
            max[lane + i] = block_max[i];
            sum[lane + i] = A::mul_add(sum[lane + i], correction[i], block_sum[i]);
            if correction[i] != 1.0 {
                out[(lane + i) * dim..(lane + i + 1) * dim]
                    .iter_mut()
                    .for_each(|x| *x *= correction[i]);
            }
        }
    }
    let dims = Dims { m: queries, n: dim, k: keys };
    let p = Strided { data: scores, row: 1, col: queries };
    product::<A, true>(dims, p, (v, dim), (out, dim));
}
per_isa! {
    fn block(
        q_transposed: &[f32],
        k: &[f32],
        v: &[f32],
        hidden: Hidden,
        scores: &mut [f32],
        max: &mut [f32],
        sum: &mut [f32],
        out: &mut [f32],
    ) = attend_block
}

#[inline(always)]
fn merge_partials<A: Arithmetic>(partials: &[f32], queries: usize, result: &mut [f32]) {
    let n = result.len();
    let dim = n / queries - 2;
    let (state, out) = result.split_at_mut(2 * queries);
    let (max, sum) = state.split_at_mut(queries);
    max.fill(f32::NEG_INFINITY);
    for partial in partials.chunks_exact(n) {
        for (max, m) in max.iter_mut().zip(partial) {
            *max = if *m > *max { *m } else { *max };
        }
    }
    sum.fill(0.0);
    out.fill(0.0);
    for partial in partials.chunks_exact(n) {
        let (partial_state, values) = partial.split_at(2 * queries);
        for query in 0..queries {
            let weight = exp::<A>(partial_state[query] - max[query]);
            sum[query] = A::mul_add(partial_state[queries + query], weight, sum[query]);
            let values = &values[query * dim..(query + 1) * dim];
            for (out, value) in out[query * dim..(query + 1) * dim].iter_mut().zip(values) {
                *out = A::mul_add(*value, weight, *out);
            }
        }
    }
}
per_isa! {
    /// Merges partial results `[splits][max | sum | out]` in order.
    fn merge(partials: &[f32], queries: usize, result: &mut [f32]) = merge_partials
}

#[cfg(test)]
mod tests;
