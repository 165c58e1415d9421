//! Norms and operations on one element at a time.

use crate::buffer::{Region, WeightId};

/// `out = x / sqrt(mean(x²) + eps) * weight`, statistics in `f32`.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// `F32[T, dim]`.
    pub x: Region,
    /// Vector `[dim]`.
    pub weight: WeightId,
    /// `Act[T, dim]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Width.
    pub dim: usize,
    /// Added to the mean square.
    pub eps: f32,
}

/// `out = silu(gate) * up`, element by element.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiGlu {
    /// `F32[rows, dim]`.
    pub gate: Region,
    /// `F32[rows, dim]`.
    pub up: Region,
    /// `Act[rows, dim]`.
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
