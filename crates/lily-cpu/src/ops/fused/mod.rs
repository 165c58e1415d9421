//! Fused operations as what they are made of: the reference for devices that do them in one step.
//!
//! A fused operation runs the kernels of its twin one after the other, as one task; what they hand
//! each other lies in memory of its own. It is not fast: plans for the CPU do not fuse these.

mod composite;
mod narrow;
mod parts;

use lily_device::DeviceError;
use lily_plan::buffer::Region;
use lily_plan::op::{self, FoldedNorm};

pub(super) use self::narrow::with_narrow_operands;

use self::composite::Composite;
use self::parts::{SharedWeight, WeightedSum};
use super::attention::{Attention, Split};
use super::conv::Conv;
use super::gated_delta::GatedDelta;
use super::linear::{ExpertGatedLinear, ExpertLinear, GatedLinear, Linear};
use super::moe::{GroupByExpert, Route};
use super::norm::{GatedRmsNorm, RmsNorm};
use super::rope::RopeAppend;
use super::{Kernel, compile_plain};
use crate::weights::Weights;

type Compiled = Result<Box<dyn Kernel>, DeviceError>;

/// `x`, or its norm in a temporary.
fn normed(
    steps: &mut Composite,
    norm: Option<FoldedNorm>,
    x: &Region,
    (rows, dim): (usize, usize),
    weights: &Weights<'_>,
) -> Result<Region, DeviceError> {
    let Some(FoldedNorm { weight, eps }) = norm else { return Ok(x.clone()) };
    let out = steps.temporary(rows * dim)?;
    let op = op::RmsNorm { x: x.clone(), weight, out: out.clone(), rows, dim, eps };
    steps.push(RmsNorm::new(op, weights));
    Ok(out)
}

pub(super) fn stacked_linear(op: op::StackedLinear, weights: &Weights<'_>) -> Compiled {
    let op::StackedLinear { x, norm, parts, rows, k } = op;
    let mut steps = Composite::new(weights);
    let x = normed(&mut steps, norm, &x, (rows, k), weights)?;
    for op::StackedPart { weight, out, n } in parts {
        let (x, accumulate) = (x.clone(), false);
        steps.push(Linear::new(op::Linear { x, weight, out, rows, n, k, accumulate }, weights));
    }
    Ok(Box::new(steps))
}

pub(super) fn normed_gated_linear(op: op::GatedLinear, weights: &Weights<'_>) -> Compiled {
    let mut steps = Composite::new(weights);
    let x = normed(&mut steps, op.norm, &op.x, (op.rows, op.k), weights)?;
    steps.push(GatedLinear::new(op::GatedLinear { x, norm: None, ..op }, weights));
    Ok(Box::new(steps))
}

pub(super) fn delta_mix(op: op::DeltaMix, weights: &Weights<'_>) -> Compiled {
    let op::DeltaMix { rows, key_heads, value_heads, key_dim, value_dim, width, .. } = op;
    let channels = 2 * key_heads * key_dim + value_heads * value_dim;
    let mut steps = Composite::new(weights);
    let conv = steps.temporary(rows * channels)?;
    steps.push(Conv::new(
        op::Conv {
            control: op.control,
            x: op.qkv,
            weight: op.conv,
            state: op.conv_state,
            out: conv.clone(),
            rows,
            channels,
            width,
        },
        weights,
    ));
    steps.push(GatedDelta::new(
        op::GatedDelta {
            qkv: conv,
            a: op.a,
            b: op.b,
            a_log: op.a_log,
            dt_bias: op.dt_bias,
            state: op.state,
            out: op.out.clone(),
            rows,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
        },
        weights,
    ));
    steps.push(GatedRmsNorm::new(
        op::GatedRmsNorm {
            x: op.out.clone(),
            gate: op.z,
            weight: op.norm,
            out: op.out,
            rows,
            heads: value_heads,
            dim: value_dim,
            eps: op.eps,
            sigmoid: op.sigmoid,
        },
        weights,
    ));
    Ok(Box::new(steps))
}

pub(super) fn attention_split(op: op::AttentionSplit, weights: &Weights<'_>) -> Compiled {
    let op::AttentionSplit { rows, n_heads, n_kv_heads, head_dim, capacity, .. } = op;
    let mut steps = Composite::new(weights);
    let q = steps.temporary(rows * n_heads * head_dim)?;
    steps.push(RopeAppend::new(
        op::RopeAppend {
            control: op.control.clone(),
            q_gate: op.q_gate,
            k: op.k,
            v: op.v,
            q_norm: op.q_norm,
            k_norm: op.k_norm,
            q: q.clone(),
            k_cache: op.k_cache.clone(),
            v_cache: op.v_cache.clone(),
            rows,
            n_heads,
            n_kv_heads,
            head_dim,
            capacity,
            inv_freq: op.inv_freq,
            rope_scale: op.rope_scale,
            eps: op.eps,
        },
        weights,
    ));
    let attention = Attention::new(op::Attention {
        control: op.control,
        q,
        k_cache: op.k_cache,
        v_cache: op.v_cache,
        q_gate: None,
        out: op.partial.clone(),
        rows,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        scale: op.scale,
    })?;
    let (partial, stats, n_splits) = (op.partial, op.stats, op.n_splits);
    steps.push(Split { attention, partial, stats, n_splits });
    Ok(Box::new(steps))
}

/// Slots by expert, in temporaries.
fn grouped(
    steps: &mut Composite,
    experts: &Region,
    (n_experts, top_k): (usize, usize),
) -> Result<(Region, Region), DeviceError> {
    let (offsets, order) = (steps.temporary(n_experts + 1)?, steps.temporary(top_k)?);
    steps.push(GroupByExpert(op::GroupByExpert {
        experts: experts.clone(),
        offsets: offsets.clone(),
        order: order.clone(),
        rows: 1,
        n_experts,
        top_k,
    }));
    Ok((offsets, order))
}

pub(super) fn routed_gated_linear(op: op::RoutedGatedLinear, weights: &Weights<'_>) -> Compiled {
    let op::RoutedGatedLinear { rows, n_experts, top_k, n, shared_n, k, .. } = op;
    let mut steps = Composite::new(weights);
    let x = normed(&mut steps, op.norm, &op.x, (rows, k), weights)?;
    let mut slots = op.weights.clone();
    slots.bytes.end = slots.bytes.start + 4 * top_k as u64;
    steps.push(Route(op::Route {
        logits: op.logits,
        experts: op.experts.clone(),
        weights: slots,
        rows,
        n_experts,
        top_k,
    }));
    steps.push(SharedWeight { gate: op.shared_gate, weights: op.weights, top_k });
    let (offsets, order) = grouped(&mut steps, &op.experts, (n_experts, top_k))?;
    steps.push(ExpertGatedLinear::new(
        op::ExpertGatedLinear {
            x: x.clone(),
            offsets,
            order,
            gate: op.gate,
            up: op.up,
            out: op.out,
            rows,
            n_experts,
            top_k,
            n,
            k,
        },
        weights,
    ));
    steps.push(GatedLinear::new(
        op::GatedLinear {
            x,
            norm: None,
            gate: op.shared_gate_proj,
            up: op.shared_up_proj,
            out: op.shared_out,
            rows,
            n: shared_n,
            k,
        },
        weights,
    ));
    Ok(Box::new(steps))
}

pub(super) fn routed_down(op: op::RoutedDown, weights: &Weights<'_>) -> Compiled {
    let op::RoutedDown { rows, n_experts, top_k, n, shared_n, dim, .. } = op;
    let mut steps = Composite::new(weights);
    let (offsets, order) = grouped(&mut steps, &op.experts, (n_experts, top_k))?;
    // The shared expert's output is one more slot.
    let outs = steps.temporary((top_k + 1) * dim)?;
    let shared_from = outs.bytes.start + 4 * (top_k * dim) as u64;
    let slots = Region { buffer: outs.buffer, bytes: outs.bytes.start..shared_from };
    let shared = Region { buffer: outs.buffer, bytes: shared_from..outs.bytes.end };
    steps.push(ExpertLinear::new(
        op::ExpertLinear {
            x: op.mid,
            offsets,
            order,
            weight: op.down,
            out: slots,
            rows,
            n_experts,
            top_k,
            n: dim,
            k: n,
            per_slot: true,
        },
        weights,
    ));
    let (x, weight, out) = (op.shared_mid, op.shared_down, shared);
    let (n, k, accumulate) = (dim, shared_n, false);
    steps.push(Linear::new(op::Linear { x, weight, out, rows, n, k, accumulate }, weights));
    steps.push(WeightedSum { outs, weights: op.weights, x: op.x, slots: top_k + 1, dim });
    Ok(Box::new(steps))
}
