//! Signatures of gated softmax attention between its projections.

use super::{Access, Signature, divides};
use crate::op::{Attention, AttentionMerge, AttentionSplit, OutputGate, RopeAppend};

impl Signature<'_> {
    fn heads(self, n_heads: usize, n_kv_heads: usize, head_dim: usize, capacity: usize) -> Self {
        self.dims(&[
            ("n_heads", n_heads),
            ("n_kv_heads", n_kv_heads),
            ("head_dim", head_dim),
            ("capacity", capacity),
        ])
        .rule(
            "n_heads",
            n_heads,
            divides(n_kv_heads, n_heads),
            "a multiple of n_kv_heads",
        )
    }

    fn rotary(self, pairs: usize, head_dim: usize) -> Self {
        self.rule("inv_freq", pairs, pairs <= head_dim / 2, "at most head_dim / 2 pairs")
    }
}

pub(super) fn rope_append(o: &RopeAppend) -> Signature<'_> {
    let cache = [o.n_kv_heads, o.capacity, o.head_dim];
    Signature::new("rope_append", o.rows)
        .heads(o.n_heads, o.n_kv_heads, o.head_dim, o.capacity)
        .rotary(o.inv_freq.len(), o.head_dim)
        .control(&o.control)
        .read("q_gate", &o.q_gate, &[o.rows, o.n_heads, 2, o.head_dim])
        .read("k", &o.k, &[o.rows, o.n_kv_heads, o.head_dim])
        .read("v", &o.v, &[o.rows, o.n_kv_heads, o.head_dim])
        .vector("q_norm", o.q_norm, o.head_dim)
        .vector("k_norm", o.k_norm, o.head_dim)
        .write("q", &o.q, &[o.rows, o.n_heads, o.head_dim])
        .cache("k_cache", &o.k_cache, Access::Update, &cache)
        .cache("v_cache", &o.v_cache, Access::Update, &cache)
}

pub(super) fn attention(o: &Attention) -> Signature<'_> {
    let cache = [o.n_kv_heads, o.capacity, o.head_dim];
    let signature = Signature::new("attention", o.rows)
        .heads(o.n_heads, o.n_kv_heads, o.head_dim, o.capacity)
        .control(&o.control)
        .read("q", &o.q, &[o.rows, o.n_heads, o.head_dim])
        .cache("k_cache", &o.k_cache, Access::Read, &cache)
        .cache("v_cache", &o.v_cache, Access::Read, &cache);
    let signature = match &o.q_gate {
        Some(gate) => signature.read("q_gate", gate, &[o.rows, o.n_heads, 2, o.head_dim]),
        None => signature,
    };
    signature.write_act("out", &o.out, &[o.rows, o.n_heads, o.head_dim])
}

pub(super) fn output_gate(o: &OutputGate) -> Signature<'_> {
    Signature::new("output_gate", o.rows)
        .dims(&[("n_heads", o.n_heads), ("head_dim", o.head_dim)])
        .operand("x", &o.x, Access::Update, super::ACT, &[o.rows, o.n_heads, o.head_dim])
        .read("q_gate", &o.q_gate, &[o.rows, o.n_heads, 2, o.head_dim])
}

pub(super) fn attention_split(o: &AttentionSplit) -> Signature<'_> {
    let cache = [o.n_kv_heads, o.capacity, o.head_dim];
    Signature::new("attention_split", o.rows)
        .heads(o.n_heads, o.n_kv_heads, o.head_dim, o.capacity)
        .dims(&[("n_splits", o.n_splits)])
        .one_row()
        .rotary(o.inv_freq.len(), o.head_dim)
        .control(&o.control)
        .read("q_gate", &o.q_gate, &[o.rows, o.n_heads, 2, o.head_dim])
        .read("k", &o.k, &[o.rows, o.n_kv_heads, o.head_dim])
        .read("v", &o.v, &[o.rows, o.n_kv_heads, o.head_dim])
        .vector("q_norm", o.q_norm, o.head_dim)
        .vector("k_norm", o.k_norm, o.head_dim)
        .cache("k_cache", &o.k_cache, Access::Update, &cache)
        .cache("v_cache", &o.v_cache, Access::Update, &cache)
        .write("partial", &o.partial, &[o.n_splits, o.n_heads, o.head_dim])
        .write("stats", &o.stats, &[o.n_splits, o.n_heads, 2])
}

pub(super) fn attention_merge(o: &AttentionMerge) -> Signature<'_> {
    let signature = Signature::new("attention_merge", o.rows)
        .dims(&[("n_heads", o.n_heads), ("head_dim", o.head_dim), ("n_splits", o.n_splits)])
        .one_row()
        .read("partial", &o.partial, &[o.n_splits, o.n_heads, o.head_dim])
        .read("stats", &o.stats, &[o.n_splits, o.n_heads, 2]);
    let signature = match &o.q_gate {
        Some(gate) => signature.read("q_gate", gate, &[o.rows, o.n_heads, 2, o.head_dim]),
        None => signature,
    };
    signature.write("out", &o.out, &[o.rows, o.n_heads, o.head_dim])
}
