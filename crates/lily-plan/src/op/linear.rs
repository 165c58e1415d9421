//! Embedding and dense projections.

use crate::buffer::{Region, WeightId};

/// `out[t] = table[tokens[t]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// `U32[T]`.
    pub tokens: Region,
    /// Matrix `[vocab, H]`.
    pub table: WeightId,
    /// `F32[T, H]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// `H`.
    pub dim: usize,
}

/// `out = x Wᵀ`, or `out += x Wᵀ` when `accumulate` (the fused residual).
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// `Act[T, k]`.
    pub x: Region,
    /// Matrix `[n, k]`.
    pub weight: WeightId,
    /// `F32[T, n]`; also read when `accumulate`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Add to `out` instead of overwriting it.
    pub accumulate: bool,
}

/// An RMSNorm of the input that a projection does itself: `x / sqrt(mean(x²) + eps) * weight`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoldedNorm {
    /// Vector `[k]`.
    pub weight: WeightId,
    /// Added to the mean square.
    pub eps: f32,
}

/// One projection of a [`StackedLinear`].
#[derive(Clone, Debug, PartialEq)]
pub struct StackedPart {
    /// Matrix `[n, k]`.
    pub weight: WeightId,
    /// `F32[T, n]`.
    pub out: Region,
    /// Outputs.
    pub n: usize,
}

/// `out_i = norm(x) W_iᵀ` for several matrices over one input; twin:
/// [`RmsNorm`](super::RmsNorm) and one [`Linear`] per part.
#[derive(Clone, Debug, PartialEq)]
pub struct StackedLinear {
    /// `F32[T, k]`.
    pub x: Region,
    /// The norm to apply to `x` first; none when `x` is already normed.
    pub norm: Option<FoldedNorm>,
    /// One to [`StackedLinear::MOST_PARTS`] projections.
    pub parts: Vec<StackedPart>,
    /// `T`.
    pub rows: usize,
    /// Inputs.
    pub k: usize,
}

impl StackedLinear {
    /// Most projections of one step.
    pub const MOST_PARTS: usize = 4;
}

/// `out = silu(h Wgᵀ) * (h Wuᵀ)` with `h = norm(x)`; twin: [`RmsNorm`](super::RmsNorm), two
/// [`Linear`] and a [`SwiGlu`](super::SwiGlu).
#[derive(Clone, Debug, PartialEq)]
pub struct GatedLinear {
    /// `Act[T, k]`.
    pub x: Region,
    /// The norm to apply to `x` first; none when `x` is already normed.
    pub norm: Option<FoldedNorm>,
    /// Matrix `[n, k]`.
    pub gate: WeightId,
    /// Matrix `[n, k]`.
    pub up: WeightId,
    /// `Act[T, n]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}
