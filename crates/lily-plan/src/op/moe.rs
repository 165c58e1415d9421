//! Routing, routed experts and their sum.

use super::FoldedNorm;
use crate::buffer::{Region, WeightId};

/// Softmax over all experts in `f32`, the `top_k` largest (ties: lower index), renormalised.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// `F32[T, n_experts]`.
    pub logits: Region,
    /// `U32[T, top_k]`: expert of each slot, most probable first.
    pub experts: Region,
    /// `F32[T, top_k]`: weights that sum to 1.
    pub weights: Region,
    /// `T`.
    pub rows: usize,
    /// Experts.
    pub n_experts: usize,
    /// Slots per token.
    pub top_k: usize,
}

/// Counting sort of slots by expert: histogram, prefix sum, scatter.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupByExpert {
    /// `U32[T, top_k]`.
    pub experts: Region,
    /// `U32[n_experts + 1]`: start of each expert's slots in `order`.
    pub offsets: Region,
    /// `U32[T * top_k]`: slot indices `row * top_k + j`, by expert, ascending within one.
    pub order: Region,
    /// `T`.
    pub rows: usize,
    /// Experts.
    pub n_experts: usize,
    /// Slots per token.
    pub top_k: usize,
}

/// One matrix per slot, chosen by routing: `out[slot] = x[row or slot] W[expert]ᵀ`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertLinear {
    /// `Act[T, k]`, or `Act[T * top_k, k]` when `per_slot`.
    pub x: Region,
    /// `U32[n_experts + 1]`.
    pub offsets: Region,
    /// `U32[T * top_k]`.
    pub order: Region,
    /// Matrix `[n_experts][n, k]`.
    pub weight: WeightId,
    /// `F32[T * top_k, n]`, by slot index.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Experts.
    pub n_experts: usize,
    /// Slots per token.
    pub top_k: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Whether `x` has one row per slot instead of one per token.
    pub per_slot: bool,
}

/// `out[slot] = silu(x Wg[expert]ᵀ) * (x Wu[expert]ᵀ)`; twin: two [`ExpertLinear`] and a
/// [`SwiGlu`](super::SwiGlu).
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGatedLinear {
    /// `Act[T, k]`.
    pub x: Region,
    /// `U32[n_experts + 1]`.
    pub offsets: Region,
    /// `U32[T * top_k]`.
    pub order: Region,
    /// Matrix `[n_experts][n, k]`.
    pub gate: WeightId,
    /// Matrix `[n_experts][n, k]`.
    pub up: WeightId,
    /// `Act[T * top_k, n]`, by slot index.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Experts.
    pub n_experts: usize,
    /// Slots per token.
    pub top_k: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

/// Routing, and the gate and up projections of the routed experts and the shared one, for one
/// token; twin: [`RmsNorm`](super::RmsNorm), [`Route`], [`GroupByExpert`], [`ExpertGatedLinear`],
/// [`GatedLinear`](super::GatedLinear).
///
/// With `h = norm(x)`: `out[j] = silu(h Wg[e_j]ᵀ) * (h Wu[e_j]ᵀ)` for the `top_k` experts `e_j` that
/// [`Route`] would choose, `shared_out` alike with the shared expert's matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedGatedLinear {
    /// `F32[1, k]`.
    pub x: Region,
    /// The norm to apply to `x` first; none when `x` is already normed.
    pub norm: Option<FoldedNorm>,
    /// `F32[1, n_experts]`.
    pub logits: Region,
    /// `F32[1, 1]`: logit of the shared expert.
    pub shared_gate: Region,
    /// Matrix `[n_experts][n, k]`.
    pub gate: WeightId,
    /// Matrix `[n_experts][n, k]`.
    pub up: WeightId,
    /// Matrix `[shared_n, k]`.
    pub shared_gate_proj: WeightId,
    /// Matrix `[shared_n, k]`.
    pub shared_up_proj: WeightId,
    /// `U32[1, top_k]`: the experts chosen, most probable first.
    pub experts: Region,
    /// `F32[1, top_k + 1]`: their weights, which sum to 1, and `sigmoid(shared_gate)`.
    pub weights: Region,
    /// `F32[1, top_k, n]`.
    pub out: Region,
    /// `F32[1, shared_n]`.
    pub shared_out: Region,
    /// 1.
    pub rows: usize,
    /// Experts.
    pub n_experts: usize,
    /// Slots per token.
    pub top_k: usize,
    /// Outputs of a routed expert.
    pub n: usize,
    /// Outputs of the shared expert.
    pub shared_n: usize,
    /// Inputs.
    pub k: usize,
}

/// Down projections of the experts that [`RoutedGatedLinear`] chose, weighted, onto the residual
/// stream: `x += Σ_j weights[j] · mid[j] Wd[e_j]ᵀ + weights[top_k] · shared_mid Wsᵀ`. Twin:
/// [`ExpertLinear`], [`Linear`](super::Linear) and [`MoeCombine`].
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedDown {
    /// `F32[1, top_k, n]`.
    pub mid: Region,
    /// `F32[1, shared_n]`.
    pub shared_mid: Region,
    /// `U32[1, top_k]`.
    pub experts: Region,
    /// `F32[1, top_k + 1]`.
    pub weights: Region,
    /// Matrix `[n_experts][dim, n]`.
    pub down: WeightId,
    /// Matrix `[dim, shared_n]`.
    pub shared_down: WeightId,
    /// `F32[1, dim]`: residual stream, read and written.
    pub x: Region,
    /// 1.
    pub rows: usize,
    /// Experts.
    pub n_experts: usize,
    /// Slots per token.
    pub top_k: usize,
    /// Inputs of a routed expert's matrix.
    pub n: usize,
    /// Inputs of the shared expert's matrix.
    pub shared_n: usize,
    /// Width of the residual stream.
    pub dim: usize,
}

/// `x += Σ_j weights[j] · expert_out[j] + sigmoid(shared_gate) · shared_out`, slots in order.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeCombine {
    /// `F32[T * top_k, dim]`.
    pub expert_out: Region,
    /// `F32[T, top_k]`.
    pub weights: Region,
    /// `F32[T, dim]`.
    pub shared_out: Region,
    /// `F32[T, 1]`: logit.
    pub shared_gate: Region,
    /// `F32[T, dim]`: residual stream, read and written.
    pub x: Region,
    /// `T`.
    pub rows: usize,
    /// Slots per token.
    pub top_k: usize,
    /// Width.
    pub dim: usize,
}
