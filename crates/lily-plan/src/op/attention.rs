//! Gated softmax attention between its projections.

use crate::buffer::{Region, WeightId};

/// Per-head RMSNorm of queries and keys, RoPE on the leading dimensions, append to the KV cache.
///
/// Pair `(i, i + rotary_dim / 2)` turns by `position · inv_freq[i]`; `position` is the control
/// block's first position plus the row.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeAppend {
    /// Control block.
    pub control: Region,
    /// `F32[T, n_heads, 2 * head_dim]`: per head query, then gate.
    pub q_gate: Region,
    /// `F32[T, n_kv_heads * head_dim]`.
    pub k: Region,
    /// `F32[T, n_kv_heads * head_dim]`.
    pub v: Region,
    /// Vector `[head_dim]`.
    pub q_norm: WeightId,
    /// Vector `[head_dim]`.
    pub k_norm: WeightId,
    /// `F32[T, n_heads * head_dim]`: normed, rotated, not yet scaled.
    pub q: Region,
    /// `[n_kv_heads, capacity, head_dim]`, `F32` or `Bf16`; rows at the run's positions are written.
    pub k_cache: Region,
    /// As `k_cache`.
    pub v_cache: Region,
    /// `T`.
    pub rows: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens the cache holds.
    pub capacity: usize,
    /// Turns per position, one per pair.
    pub inv_freq: Vec<f32>,
    /// Multiplies cosine and sine (YaRN's attention factor); 1 otherwise.
    pub rope_scale: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Causal softmax attention over the cache, GQA; optionally the fused output gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Control block.
    pub control: Region,
    /// `F32[T, n_heads * head_dim]`.
    pub q: Region,
    /// `[n_kv_heads, capacity, head_dim]`.
    pub k_cache: Region,
    /// As `k_cache`.
    pub v_cache: Region,
    /// `F32[T, n_heads, 2 * head_dim]`: when present, `out` is multiplied by `sigmoid` of the second
    /// half of each head. Twin: [`OutputGate`].
    pub q_gate: Option<Region>,
    /// `Act[T, n_heads * head_dim]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens the cache holds.
    pub capacity: usize,
    /// Multiplies `q · k`.
    pub scale: f32,
}

/// [`RopeAppend`] and the keys of [`Attention`] cut into splits, for one token; [`AttentionMerge`]
/// joins the splits. Twin: [`RopeAppend`] and [`Attention`].
///
/// Split `i` takes the positions `i * run .. min((i + 1) * run, position + 1)`, where
/// `run = ceil((position + 1) / n_splits)`. A split without positions leaves sums of zero and a
/// largest score of negative infinity.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSplit {
    /// Control block.
    pub control: Region,
    /// `F32[1, n_heads, 2 * head_dim]`: per head query, then gate.
    pub q_gate: Region,
    /// `F32[1, n_kv_heads * head_dim]`.
    pub k: Region,
    /// `F32[1, n_kv_heads * head_dim]`.
    pub v: Region,
    /// Vector `[head_dim]`.
    pub q_norm: WeightId,
    /// Vector `[head_dim]`.
    pub k_norm: WeightId,
    /// `[n_kv_heads, capacity, head_dim]`; the row at the run's position is written.
    pub k_cache: Region,
    /// As `k_cache`.
    pub v_cache: Region,
    /// `F32[n_splits, n_heads, head_dim]`: unnormalised sums of `exp(score - max) v`.
    pub partial: Region,
    /// `F32[n_splits, n_heads, 2]`: largest score (`q · k` times `scale`), and sum of
    /// `exp(score - max)`.
    pub stats: Region,
    /// 1.
    pub rows: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens the cache holds.
    pub capacity: usize,
    /// Splits of the positions.
    pub n_splits: usize,
    /// Turns per position, one per pair.
    pub inv_freq: Vec<f32>,
    /// Multiplies cosine and sine.
    pub rope_scale: f32,
    /// Added to the mean square.
    pub eps: f32,
    /// Multiplies `q · k`.
    pub scale: f32,
}

/// Joins the splits of [`AttentionSplit`]; optionally the fused output gate.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionMerge {
    /// `F32[n_splits, n_heads, head_dim]`.
    pub partial: Region,
    /// `F32[n_splits, n_heads, 2]`.
    pub stats: Region,
    /// As in [`Attention`].
    pub q_gate: Option<Region>,
    /// `F32[1, n_heads * head_dim]`.
    pub out: Region,
    /// 1.
    pub rows: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Splits of the positions.
    pub n_splits: usize,
}

/// `x *= sigmoid(gate)`, where the gate is the second half of each head of `q_gate`.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputGate {
    /// `Act[T, n_heads * head_dim]`, read and written.
    pub x: Region,
    /// `F32[T, n_heads, 2 * head_dim]`.
    pub q_gate: Region,
    /// `T`.
    pub rows: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}
