//! Gated DeltaNet between its projections.

use crate::buffer::{Region, WeightId};

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
    /// `Act[T, heads * dim]`.
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
