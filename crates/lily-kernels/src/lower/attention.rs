//! Softmax attention.

use lily_plan::buffer::{Elem, Region};
use lily_plan::op::{Attention, AttentionMerge, AttentionSplit, OutputGate, RopeAppend};

use super::{Context, LowerError};
use crate::launch::{Binding, Extent, Kernel, Launch, Module};
use crate::params::{AttentionParams, Params, RopeParams};

/// Heads of a threadgroup that norms and rotates.
const ROPE_SIMDGROUPS: usize = 4;

const GATE_THREADS: usize = 256;

/// Simdgroups that share the keys of a query head.
const DECODE_SIMDGROUPS: usize = 8;

/// Elements of a head that a threadgroup merges.
const MERGE_COLUMNS: usize = 64;

fn kernel(template: &'static str, args: Vec<String>) -> Kernel {
    Kernel { module: Module::Attention, template, args }
}

fn fixed(groups: usize) -> Extent {
    Extent::Fixed(groups as u32)
}

fn rope_params(
    cx: &Context<'_>,
    inv_freq: &[f32],
    rope_scale: f32,
    eps: f32,
    scale: f32,
) -> Result<Binding, LowerError> {
    let mut params =
        RopeParams { eps, rope_scale, scale, n_pairs: inv_freq.len() as u32, inv_freq: [0.0; 128] };
    let Some(room) = params.inv_freq.get_mut(..inv_freq.len()) else {
        return Err(cx.unsupported(format!("{} rotated pairs, more than 128", inv_freq.len())));
    };
    room.copy_from_slice(inv_freq);
    Ok(Binding::Params(params.bytes()))
}

pub(super) fn rope_append(cx: &Context<'_>, op: &RopeAppend) -> Result<Launch, LowerError> {
    refuse_head_dim(cx, op.head_dim)?;
    let mut args = vec![cx.elem_name(&op.k_cache)];
    let shape = [op.n_heads, op.n_kv_heads, op.head_dim, op.capacity, ROPE_SIMDGROUPS];
    args.extend(shape.map(|n| n.to_string()));
    args.push((op.rows == 1).to_string());
    let heads = Extent::Rows {
        units_per_row: (op.n_heads + 2 * op.n_kv_heads) as u32,
        per_group: ROPE_SIMDGROUPS as u32,
        extra: 0,
    };
    Ok(Launch {
        kernel: kernel("rope_append", args),
        grid: [heads, Extent::Fixed(1), Extent::Fixed(1)],
        threads: 32 * ROPE_SIMDGROUPS as u32,
        bindings: vec![
            Binding::Region(op.control.clone()),
            Binding::Region(op.q_gate.clone()),
            Binding::Region(op.k.clone()),
            Binding::Region(op.v.clone()),
            Binding::Weight(op.q_norm),
            Binding::Weight(op.k_norm),
            Binding::Region(op.q.clone()),
            Binding::Region(op.k_cache.clone()),
            Binding::Region(op.v_cache.clone()),
            rope_params(cx, &op.inv_freq, op.rope_scale, op.eps, 1.0)?,
        ],
    })
}

pub(super) fn attention(cx: &Context<'_>, op: &Attention) -> Result<Launch, LowerError> {
    refuse_head_dim(cx, op.head_dim)?;
    // Tiles multiply bf16.
    if op.rows > 1 && op.rows >= cx.tuning.gemm_rows && cx.elem(&op.k_cache) == Elem::Bf16 {
        Ok(attention_of_many_rows(cx, op))
    } else {
        attention_of_few_rows(cx, op)
    }
}

fn attention_of_many_rows(cx: &Context<'_>, op: &Attention) -> Launch {
    let tile = cx.tuning.attention_tile;
    let heads = if cx.tuning.gqa_packing { op.n_heads / op.n_kv_heads } else { 1 };
    let (rows, parts) = tile.simdgroups;
    let mut args = vec![cx.elem_name(&op.out)];
    let shape = [op.n_heads, op.n_kv_heads, op.head_dim, op.capacity, heads];
    args.extend(shape.map(|n| n.to_string()));
    args.extend([rows, parts, tile.keys, tile.buffers].map(|n| n.to_string()));
    args.push(op.q_gate.is_some().to_string());
    let queries =
        Extent::Rows { units_per_row: heads as u32, per_group: 16 * rows as u32, extra: 0 };
    Launch {
        kernel: kernel("attention_prefill", args),
        grid: [fixed(op.n_heads / heads), queries, Extent::Fixed(1)],
        threads: 32 * (rows * parts) as u32,
        bindings: attention_bindings(op),
    }
}

fn attention_of_few_rows(cx: &Context<'_>, op: &Attention) -> Result<Launch, LowerError> {
    let packing = Packing::of(cx, op.n_heads, op.n_kv_heads)?;
    let mut args = vec![cx.elem_name(&op.k_cache), cx.elem_name(&op.out)];
    args.extend([op.n_heads, op.n_kv_heads, op.head_dim, op.capacity].map(|n| n.to_string()));
    args.extend(packing.args());
    args.extend([op.q_gate.is_some().to_string(), (op.rows == 1).to_string()]);
    let rows = Extent::Rows { units_per_row: 1, per_group: 1, extra: 0 };
    Ok(Launch {
        kernel: kernel("attention_rows", args),
        grid: [fixed(op.n_heads / packing.heads), rows, Extent::Fixed(1)],
        threads: 32 * DECODE_SIMDGROUPS as u32,
        bindings: attention_bindings(op),
    })
}

fn attention_bindings(op: &Attention) -> Vec<Binding> {
    vec![
        Binding::Region(op.control.clone()),
        Binding::Region(op.q.clone()),
        Binding::Region(op.k_cache.clone()),
        Binding::Region(op.v_cache.clone()),
        gate(op.q_gate.as_ref(), &op.q),
        Binding::Region(op.out.clone()),
        Binding::Params(AttentionParams { scale: op.scale }.bytes()),
    ]
}

pub(super) fn output_gate(cx: &Context<'_>, op: &OutputGate) -> Result<Launch, LowerError> {
    refuse_head_dim(cx, op.head_dim)?;
    let mut args = vec![cx.elem_name(&op.x)];
    args.extend([op.n_heads, op.head_dim, GATE_THREADS].map(|n| n.to_string()));
    args.push((op.rows == 1).to_string());
    let elements = Extent::Rows {
        units_per_row: (op.n_heads * op.head_dim / 4) as u32,
        per_group: GATE_THREADS as u32,
        extra: 0,
    };
    Ok(Launch {
        kernel: kernel("output_gate", args),
        grid: [elements, Extent::Fixed(1), Extent::Fixed(1)],
        threads: GATE_THREADS as u32,
        bindings: vec![
            Binding::Region(op.x.clone()),
            Binding::Region(op.q_gate.clone()),
            cx.control(),
        ],
    })
}

pub(super) fn attention_split(cx: &Context<'_>, op: &AttentionSplit) -> Result<Launch, LowerError> {
    refuse_head_dim(cx, op.head_dim)?;
    let packing = Packing::of(cx, op.n_heads, op.n_kv_heads)?;
    let mut args = vec![cx.elem_name(&op.k_cache)];
    let shape = [op.n_heads, op.n_kv_heads, op.head_dim, op.capacity, op.n_splits];
    args.extend(shape.map(|n| n.to_string()));
    args.extend(packing.args());
    Ok(Launch {
        kernel: kernel("attention_split", args),
        grid: [fixed(op.n_heads / packing.heads), fixed(op.n_splits), Extent::Fixed(1)],
        threads: 32 * DECODE_SIMDGROUPS as u32,
        bindings: vec![
            Binding::Region(op.control.clone()),
            Binding::Region(op.q_gate.clone()),
            Binding::Region(op.k.clone()),
            Binding::Region(op.v.clone()),
            Binding::Weight(op.q_norm),
            Binding::Weight(op.k_norm),
            Binding::Region(op.k_cache.clone()),
            Binding::Region(op.v_cache.clone()),
            Binding::Region(op.partial.clone()),
            Binding::Region(op.stats.clone()),
            rope_params(cx, &op.inv_freq, op.rope_scale, op.eps, op.scale)?,
        ],
    })
}

pub(super) fn attention_merge(cx: &Context<'_>, op: &AttentionMerge) -> Result<Launch, LowerError> {
    refuse_head_dim(cx, op.head_dim)?;
    let mut args = [op.n_heads, op.head_dim, op.n_splits].map(|n| n.to_string()).to_vec();
    args.push(op.q_gate.is_some().to_string());
    Ok(Launch {
        kernel: kernel("attention_merge", args),
        grid: [fixed(op.n_heads), fixed(op.head_dim / MERGE_COLUMNS), Extent::Fixed(1)],
        threads: 256,
        bindings: vec![
            Binding::Region(op.partial.clone()),
            Binding::Region(op.stats.clone()),
            gate(op.q_gate.as_ref(), &op.partial),
            Binding::Region(op.out.clone()),
        ],
    })
}

/// How the query heads of one KV head share threadgroups and simdgroups.
struct Packing {
    /// Query heads of a threadgroup.
    heads: usize,
    /// Query heads of a simdgroup: each of its loads of keys and values serves them all.
    per_simdgroup: usize,
}

impl Packing {
    fn of(cx: &Context<'_>, n_heads: usize, n_kv_heads: usize) -> Result<Packing, LowerError> {
        let heads = if cx.tuning.gqa_packing { n_heads / n_kv_heads } else { 1 };
        let fits = |n: &usize| {
            heads % n == 0
                && DECODE_SIMDGROUPS.is_multiple_of(heads / n)
                && heads / n <= DECODE_SIMDGROUPS
        };
        match (1..=cx.tuning.attention_heads).rev().find(fits) {
            Some(per_simdgroup) => Ok(Packing { heads, per_simdgroup }),
            None => Err(cx.unsupported(format!("{heads} query heads for each KV head"))),
        }
    }

    fn args(&self) -> [String; 3] {
        [self.heads, self.per_simdgroup, DECODE_SIMDGROUPS].map(|n| n.to_string())
    }
}

/// The gate's buffer, or one that stands in where the kernel reads none.
fn gate(q_gate: Option<&Region>, unread: &Region) -> Binding {
    Binding::Region(q_gate.unwrap_or(unread).clone())
}

/// Lanes share a head in loads of 16 bytes.
fn refuse_head_dim(cx: &Context<'_>, head_dim: usize) -> Result<(), LowerError> {
    if [64, 128, 256].contains(&head_dim) {
        return Ok(());
    }
    Err(cx.unsupported(format!("heads of {head_dim}, neither 64, 128 nor 256")))
}
