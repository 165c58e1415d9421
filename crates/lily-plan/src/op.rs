//! The closed set of operations a plan is made of.
//!
//! Every operand is a [`Region`]; matrices are row-major and start at the region's first byte.
//! `rows` is the number of token rows a plan was built for; a run may use fewer (control block), and
//! a device then touches only the leading rows. Devices match [`Op`] without a wildcard.
//!
//! Notation: `T` rows, `H` hidden size, all activations `f32` unless said otherwise. Operands that
//! feed a matrix product of several rows may be `bf16` instead (`Act` below): the outputs of
//! [`RmsNorm`], [`GatedRmsNorm`], [`SwiGlu`], [`GatedLinear`], [`ExpertGatedLinear`], [`Attention`]
//! and [`OutputGate`], and the inputs `x` of [`Linear`], [`GatedLinear`], [`ExpertLinear`] and
//! [`ExpertGatedLinear`]. A region's type is its buffer's.

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

/// `out = x / sqrt(mean(x²) + eps) * weight`, statistics in `f32`.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// `F32[T, dim]`.
    pub x: Region,
    /// Vector `[dim]`.
    pub weight: WeightId,
    /// `F32[T, dim]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Width.
    pub dim: usize,
    /// Added to the mean square.
    pub eps: f32,
}

/// `out = x Wᵀ`, or `out += x Wᵀ` when `accumulate` (the fused residual).
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// `F32[T, k]`.
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

/// `out_i = norm(x) W_iᵀ` for several matrices over one input; twin: [`RmsNorm`] and one [`Linear`]
/// per part.
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

/// `out = silu(h Wgᵀ) * (h Wuᵀ)` with `h = norm(x)`; twin: [`RmsNorm`], two [`Linear`] and a
/// [`SwiGlu`].
#[derive(Clone, Debug, PartialEq)]
pub struct GatedLinear {
    /// `F32[T, k]`.
    pub x: Region,
    /// The norm to apply to `x` first; none when `x` is already normed.
    pub norm: Option<FoldedNorm>,
    /// Matrix `[n, k]`.
    pub gate: WeightId,
    /// Matrix `[n, k]`.
    pub up: WeightId,
    /// `F32[T, n]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

/// `out = silu(gate) * up`, element by element.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiGlu {
    /// `F32[rows, dim]`.
    pub gate: Region,
    /// `F32[rows, dim]`.
    pub up: Region,
    /// `F32[rows, dim]`.
    pub out: Region,
    /// Rows; `T` or `T * top_k`.
    pub rows: usize,
    /// Rows per token row: 1, or `top_k` for routed experts.
    pub rows_per_token: usize,
    /// Width.
    pub dim: usize,
}

/// `x += y`, element by element; the unfused residual.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// `F32[T, dim]`, read and written.
    pub x: Region,
    /// `F32[T, dim]`.
    pub y: Region,
    /// `T`.
    pub rows: usize,
    /// Width.
    pub dim: usize,
}

/// Depthwise causal convolution over time, then SiLU; keeps the last `width` raw rows.
///
/// `c[t, ch] = Σ_j w[ch, j] · x[t - (width - 1) + j, ch]`, rows before the chunk come from `state`.
/// The state is a ring: the row of position `p` lies in slot `p mod width`, so that a step which
/// writes the current row touches no slot that it reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Control block.
    pub control: Region,
    /// `F32[T, channels]`: raw projection.
    pub x: Region,
    /// Conv `[channels, width]`.
    pub weight: WeightId,
    /// `F32[width, channels]`, row of position `p` in slot `p mod width`; read and written.
    pub state: Region,
    /// `F32[T, channels]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Channels.
    pub channels: usize,
    /// Taps.
    pub width: usize,
}

/// The gated delta rule over a chunk, heads independent.
///
/// Per value head `h` with key head `h / (value_heads / key_heads)`: `q, k` are l2-normalised
/// (epsilon 1e-6 on the sum), `q` scaled by `key_dim^-0.5`, `β = sigmoid(b)`,
/// `g = -exp(A_log) · softplus(a + dt_bias)`; then per token
/// `S ← e^g S; d = β (v − S k); S ← S + d kᵀ; out = S q`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// `F32[T, conv_dim]`, `[q | k | v]`, each head-major, after [`Conv`].
    pub qkv: Region,
    /// `F32[T, value_heads]`.
    pub a: Region,
    /// `F32[T, value_heads]`.
    pub b: Region,
    /// Vector `[value_heads]`.
    pub a_log: WeightId,
    /// Vector `[value_heads]`.
    pub dt_bias: WeightId,
    /// `F32[value_heads, value_dim, key_dim]`, read and written.
    pub state: Region,
    /// `F32[T, value_heads * value_dim]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Key and query heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
}

/// `out = rmsnorm(x; weight) * act(gate)` per head, where `act` is SiLU or sigmoid.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedRmsNorm {
    /// `F32[T, heads * dim]`; may be the same region as `out`.
    pub x: Region,
    /// `F32[T, heads * dim]`.
    pub gate: Region,
    /// Vector `[dim]`.
    pub weight: WeightId,
    /// `F32[T, heads * dim]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub dim: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// `true`: sigmoid gate; `false`: SiLU.
    pub sigmoid: bool,
}

/// Everything between the projections of a Gated DeltaNet layer, for one token; twin: [`Conv`],
/// [`GatedDelta`] and [`GatedRmsNorm`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaMix {
    /// Control block.
    pub control: Region,
    /// `F32[1, channels]`, `[q | k | v]`: raw projection, `channels = 2 * key_heads * key_dim +
    /// value_heads * value_dim`.
    pub qkv: Region,
    /// `F32[1, value_heads * value_dim]`: gate of the norm.
    pub z: Region,
    /// `F32[1, value_heads]`.
    pub a: Region,
    /// `F32[1, value_heads]`.
    pub b: Region,
    /// Conv `[channels, width]`.
    pub conv: WeightId,
    /// `F32[width, channels]`, as in [`Conv`].
    pub conv_state: Region,
    /// Vector `[value_heads]`.
    pub a_log: WeightId,
    /// Vector `[value_heads]`.
    pub dt_bias: WeightId,
    /// Vector `[value_dim]`.
    pub norm: WeightId,
    /// `F32[value_heads, value_dim, key_dim]`, read and written.
    pub state: Region,
    /// `F32[1, value_heads * value_dim]`.
    pub out: Region,
    /// 1.
    pub rows: usize,
    /// Key and query heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub width: usize,
    /// Added to the mean square of the norm.
    pub eps: f32,
    /// `true`: sigmoid gate; `false`: SiLU.
    pub sigmoid: bool,
}

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
    /// `F32[T, n_heads * head_dim]`.
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
/// Positions `0 ..= position` are dealt out in contiguous runs that depend on the position alone;
/// a split without positions leaves zeros and a sum of 0.
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
    /// `F32[n_splits, n_heads, 2]`: largest score, and sum of `exp(score - max)`.
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
    /// `F32[T, n_heads * head_dim]`, read and written.
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
    /// `F32[T, k]`, or `F32[T * top_k, k]` when `per_slot`.
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

/// `out[slot] = silu(x Wg[expert]ᵀ) * (x Wu[expert]ᵀ)`; twin: two [`ExpertLinear`] and a [`SwiGlu`].
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGatedLinear {
    /// `F32[T, k]`.
    pub x: Region,
    /// `U32[n_experts + 1]`.
    pub offsets: Region,
    /// `U32[T * top_k]`.
    pub order: Region,
    /// Matrix `[n_experts][n, k]`.
    pub gate: WeightId,
    /// Matrix `[n_experts][n, k]`.
    pub up: WeightId,
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
}

/// Routing, and the gate and up projections of the routed experts and the shared one, for one
/// token; twin: [`RmsNorm`], [`Route`], [`GroupByExpert`], [`ExpertGatedLinear`], [`GatedLinear`].
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
/// [`ExpertLinear`], [`Linear`] and [`MoeCombine`].
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

/// `out[0] = x[active rows - 1]`: only the last row of a prefill chunk goes to the head.
#[derive(Clone, Debug, PartialEq)]
pub struct LastRow {
    /// Control block.
    pub control: Region,
    /// `F32[T, dim]`.
    pub x: Region,
    /// `F32[1, dim]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Width.
    pub dim: usize,
}

/// The largest logit of each of `parts` runs of the vocabulary (ties: lower id).
#[derive(Clone, Debug, PartialEq)]
pub struct ArgmaxParts {
    /// `F32[1, vocab]`.
    pub logits: Region,
    /// `F32[parts]`: largest logit of run `i`, ids `i * ceil(vocab / parts) ..`; negative infinity
    /// for an empty run.
    pub values: Region,
    /// `U32[parts]`: its id.
    pub ids: Region,
    /// 1.
    pub rows: usize,
    /// Logits.
    pub vocab: usize,
    /// Runs.
    pub parts: usize,
}

/// Ends a decode step on the device: the most probable token becomes the input of the next step.
///
/// `tokens[0]` = id of the largest of `values` (ties: lower id); `ring[position mod ring_len]` = the
/// same id; then the control block's position grows by 1. So steps can follow each other without the
/// host.
#[derive(Clone, Debug, PartialEq)]
pub struct Advance {
    /// Control block, read and written.
    pub control: Region,
    /// `F32[parts]`.
    pub values: Region,
    /// `U32[parts]`.
    pub ids: Region,
    /// `U32[1]`: the plan's token input.
    pub tokens: Region,
    /// `U32[ring_len]`, by position of the step that chose the token.
    pub ring: Region,
    /// 1.
    pub rows: usize,
    /// Runs of the vocabulary.
    pub parts: usize,
    /// Slots of the ring.
    pub ring_len: usize,
}

/// One operation with its operands.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is documented at its struct")]
pub enum Op {
    Embed(Embed),
    RmsNorm(RmsNorm),
    Linear(Linear),
    StackedLinear(StackedLinear),
    GatedLinear(GatedLinear),
    SwiGlu(SwiGlu),
    Add(Add),
    Conv(Conv),
    GatedDelta(GatedDelta),
    GatedRmsNorm(GatedRmsNorm),
    DeltaMix(DeltaMix),
    RopeAppend(RopeAppend),
    Attention(Attention),
    OutputGate(OutputGate),
    AttentionSplit(AttentionSplit),
    AttentionMerge(AttentionMerge),
    Route(Route),
    GroupByExpert(GroupByExpert),
    ExpertLinear(ExpertLinear),
    ExpertGatedLinear(ExpertGatedLinear),
    RoutedGatedLinear(RoutedGatedLinear),
    RoutedDown(RoutedDown),
    MoeCombine(MoeCombine),
    LastRow(LastRow),
    ArgmaxParts(ArgmaxParts),
    Advance(Advance),
}
