//! What a run of a plan moves and computes, from its facts alone.

use crate::access::WeightUse;
use crate::buffer::BufferClass;
use crate::op::Op;
use crate::plan::Plan;
use crate::valid::ValidPlan;

/// Work of one step, or the sum over steps, when all rows of the plan are active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights read, as stored in the checkpoint. Of routed experts, the most that can be
    /// chosen: `min(rows * top_k, n_experts)`; of an embedding, one row per token.
    pub weight_bytes: u64,
    /// Bytes of recurrent and convolution state; each is read once and written once.
    pub state_bytes: u64,
    /// Bytes of KV cache read and appended.
    pub kv_bytes: u64,
    /// Floating-point operations of matrices, attention, convolution and delta rule, two per
    /// multiply-add; norms and activations are not counted.
    pub flops: u64,
}

impl Work {
    fn add(&mut self, other: Work) {
        self.weight_bytes = self.weight_bytes.saturating_add(other.weight_bytes);
        self.state_bytes = self.state_bytes.saturating_add(other.state_bytes);
        self.kv_bytes = self.kv_bytes.saturating_add(other.kv_bytes);
        self.flops = self.flops.saturating_add(other.flops);
    }
}

/// Figures of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStats {
    /// By step, in program order.
    pub steps: Vec<Work>,
    /// Sum over all steps.
    pub total: Work,
    /// Number of stages.
    pub stages: usize,
    /// Distinct pairs of steps that a graph of the plan has to order.
    pub dependencies: usize,
    /// KV cache that the session holds, in bytes.
    pub kv_capacity_bytes: u64,
    /// Scratch arena in bytes.
    pub arena_bytes: u64,
    /// Scratch in bytes if no two buffers shared any.
    pub unshared_scratch_bytes: u64,
}

/// Figures of a run whose first row is at `position`.
pub fn stats(valid: &ValidPlan, position: usize) -> PlanStats {
    let plan = valid.plan();
    let steps: Vec<Work> = plan.steps.iter().map(|s| work(plan, &s.op, position)).collect();
    let mut total = Work::default();
    steps.iter().for_each(|&step| total.add(step));
    let bytes_of = |class| {
        let buffers = plan.buffers.iter().filter(|b| b.class == class);
        buffers.fold(0u64, |sum, b| sum.saturating_add(b.bytes()))
    };
    let mut pairs: Vec<(usize, usize)> = valid.edges().iter().map(|e| (e.from, e.to)).collect();
    pairs.dedup();
    PlanStats {
        steps,
        total,
        stages: valid.stages().len(),
        dependencies: pairs.len(),
        kv_capacity_bytes: bytes_of(BufferClass::KvCache),
        arena_bytes: valid.arena_bytes(),
        unshared_scratch_bytes: bytes_of(BufferClass::Scratch),
    }
}

fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1u64, |n, &f| n.saturating_mul(f as u64))
}

fn work(plan: &Plan, op: &Op, position: usize) -> Work {
    let signature = op.signature();
    let state_bytes = signature
        .operands
        .iter()
        .filter(|o| plan.buffer(o.region.buffer).class == BufferClass::State)
        .map(|o| o.region.bytes.end - o.region.bytes.start)
        .sum();
    let weight_bytes = match op {
        Op::Embed(o) => {
            let table = plan.weight(o.table);
            share(table.bytes, o.rows, table.rows)
        }
        _ => {
            let slots = slots(op);
            let used = |w: &WeightUse| share(plan.weight(w.id).bytes, slots, w.n_experts);
            signature.weights.iter().fold(0u64, |sum, w| sum.saturating_add(used(w)))
        }
    };
    Work {
        weight_bytes,
        state_bytes,
        kv_bytes: kv_bytes(plan, op, position),
        flops: flops(op, position),
    }
}

/// Rows that are dealt out to experts: the most of a routed weight's matrices that a run can read.
fn slots(op: &Op) -> usize {
    match op {
        Op::ExpertLinear(o) => o.rows.saturating_mul(o.top_k),
        Op::ExpertGatedLinear(o) => o.rows.saturating_mul(o.top_k),
        Op::RoutedGatedLinear(o) => o.top_k,
        Op::RoutedDown(o) => o.top_k,
        // No routed weights: all of each weight is read.
        _ => usize::MAX,
    }
}

/// The part of `bytes` that `wanted` of `present` equal pieces are.
fn share(bytes: u64, wanted: usize, present: usize) -> u64 {
    (bytes / present.max(1) as u64).saturating_mul(wanted.min(present) as u64)
}

/// Tokens in the cache once the rows are appended.
fn context(capacity: usize, position: usize, rows: usize) -> usize {
    position.saturating_add(rows).min(capacity)
}

fn kv_bytes(plan: &Plan, op: &Op, position: usize) -> u64 {
    let (region, tokens, shape) = match op {
        Op::RopeAppend(o) => (&o.k_cache, o.rows, [2, o.n_kv_heads, o.head_dim]),
        Op::Attention(o) => {
            let tokens = context(o.capacity, position, o.rows);
            (&o.k_cache, tokens, [2, o.n_kv_heads, o.head_dim])
        }
        Op::AttentionSplit(o) => {
            // Appends one token, then reads all.
            let tokens = 1 + context(o.capacity, position, 1);
            (&o.k_cache, tokens, [2, o.n_kv_heads, o.head_dim])
        }
        _ => return 0,
    };
    let elem = plan.buffer(region.buffer).elem.bytes();
    product(&shape).saturating_mul(tokens as u64).saturating_mul(elem)
}

fn flops(op: &Op, position: usize) -> u64 {
    match op {
        Op::Linear(o) => product(&[2, o.rows, o.n, o.k]),
        Op::GatedLinear(o) => product(&[4, o.rows, o.n, o.k]),
        Op::StackedLinear(o) => {
            let n = o.parts.iter().fold(0usize, |n, part| n.saturating_add(part.n));
            product(&[2, o.rows, n, o.k])
        }
        Op::ExpertLinear(o) => product(&[2, o.rows, o.top_k, o.n, o.k]),
        Op::ExpertGatedLinear(o) => product(&[4, o.rows, o.top_k, o.n, o.k]),
        Op::Conv(o) => product(&[2, o.rows, o.channels, o.width]),
        // Decay, S k, the rank-one update and S q: 1 + 2 + 2 + 2 per element of the state.
        Op::GatedDelta(o) => product(&[7, o.rows, o.value_heads, o.value_dim, o.key_dim]),
        Op::DeltaMix(o) => {
            let (keys, values) = (product(&[o.key_heads, o.key_dim]), [o.value_heads, o.value_dim]);
            let channels = keys.saturating_mul(2).saturating_add(product(&values));
            let conv = channels.saturating_mul(product(&[2, o.width]));
            conv.saturating_add(product(&[7, o.value_heads, o.value_dim, o.key_dim]))
        }
        Op::AttentionSplit(o) => {
            product(&[4, o.n_heads, o.head_dim, context(o.capacity, position, 1)])
        }
        Op::AttentionMerge(o) => product(&[2, o.n_splits, o.n_heads, o.head_dim]),
        Op::RoutedGatedLinear(o) => {
            let routed = product(&[4, o.top_k, o.n, o.k]);
            routed.saturating_add(product(&[4, o.shared_n, o.k]))
        }
        Op::RoutedDown(o) => {
            let routed = product(&[2, o.top_k, o.dim, o.n + 1]);
            routed.saturating_add(product(&[2, o.dim, o.shared_n + 1]))
        }
        Op::Attention(o) => {
            // Row i sees the rows up to itself: the mean of the first and the last context.
            let last = context(o.capacity, position, o.rows);
            let first = context(o.capacity, position, 1);
            product(&[2, o.rows, o.n_heads, o.head_dim]).saturating_mul((first + last) as u64)
        }
        Op::MoeCombine(o) => product(&[2, o.rows, o.top_k + 1, o.dim]),
        Op::Embed(_)
        | Op::RmsNorm(_)
        | Op::SwiGlu(_)
        | Op::Add(_)
        | Op::GatedRmsNorm(_)
        | Op::RopeAppend(_)
        | Op::OutputGate(_)
        | Op::Route(_)
        | Op::GroupByExpert(_)
        | Op::LastRow(_)
        | Op::ArgmaxParts(_)
        | Op::Advance(_) => 0,
    }
}
