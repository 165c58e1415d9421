//! What a checkpoint holds, under canonical names.
//!
//! Canonical names are the MLX ones without prefixes and without `.weight`:
//!
//! | name | shape |
//! |---|---|
//! | `embed_tokens`, `lm_head` (absent when tied) | matrix `[vocab_size, hidden_size]` |
//! | `norm` | vector `[hidden_size]` |
//! | `layers.N.input_layernorm`, `layers.N.post_attention_layernorm` | vector `[hidden_size]` |
//! | `layers.N.linear_attn.in_proj_qkv` / `in_proj_z` / `in_proj_b` / `in_proj_a` / `out_proj` | matrix |
//! | `layers.N.linear_attn.conv1d` | conv `[conv_dim, conv_width]`, tap `conv_width - 1` is the current token |
//! | `layers.N.linear_attn.dt_bias` / `A_log` / `norm` | vector |
//! | `layers.N.self_attn.q_proj` / `k_proj` / `v_proj` / `o_proj` | matrix; `q_proj` rows are per head `[query head_dim | gate head_dim]` |
//! | `layers.N.self_attn.q_norm` / `k_norm` | vector `[head_dim]` |
//! | `layers.N.mlp.gate_proj` / `up_proj` / `down_proj` (dense) | matrix |
//! | `layers.N.mlp.gate`, `layers.N.mlp.shared_expert_gate` (MoE) | matrix `[n_experts, hidden]`, `[1, hidden]` |
//! | `layers.N.mlp.switch_mlp.gate_proj` / `up_proj` / `down_proj` (MoE) | matrix per expert |
//! | `layers.N.mlp.shared_expert.gate_proj` / `up_proj` / `down_proj` (MoE) | matrix |
//!
//! Norm vectors carry the effective weight (the HF layout's `+ 1` is already added); `A_log` is the
//! stored value.

use std::collections::HashMap;

/// Element type of stored numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// 32-bit words of packed quantised values.
    U32,
}

impl Dtype {
    /// Size of one element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 | Dtype::U32 => 4,
        }
    }
}

/// How the elements of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixFormat {
    /// `scale * q + bias` per group of `group_size` consecutive inputs; `q` has `bits` bits, packed
    /// per row as one little-endian bit stream in `u32` words.
    Affine {
        /// 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// 32, 64 or 128 elements.
        group_size: usize,
        /// Type of scales and biases: `Bf16`, `F16` or `F32`.
        scale: Dtype,
    },
    /// Plain floats: `Bf16`, `F16` or `F32`.
    Float(Dtype),
}

impl MatrixFormat {
    /// Bytes of one row of `cols` elements, scales and biases included.
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            MatrixFormat::Affine { bits, group_size, scale } => {
                cols * bits as usize / 8 + 2 * (cols / group_size) * scale.bytes()
            }
            MatrixFormat::Float(dtype) => cols * dtype.bytes(),
        }
    }
}

/// A matrix, or one matrix per expert: `y = x Wᵀ` with `W` `[rows, cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Experts; 1 for an ordinary matrix.
    pub n_experts: usize,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Storage.
    pub format: MatrixFormat,
}

impl MatrixShape {
    /// Bytes of all experts together.
    pub fn bytes(&self) -> u64 {
        self.n_experts as u64 * self.rows as u64 * self.format.row_bytes(self.cols) as u64
    }
}

/// What one canonical name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightShape {
    /// A matrix.
    Matrix(MatrixShape),
    /// A small vector, widened to `f32` when read.
    Vector {
        /// Elements.
        len: usize,
        /// Stored type.
        dtype: Dtype,
    },
    /// Depthwise convolution, widened to `f32` when read.
    Conv {
        /// Channels.
        channels: usize,
        /// Taps.
        width: usize,
        /// Stored type.
        dtype: Dtype,
    },
}

impl WeightShape {
    /// Bytes in the checkpoint.
    pub fn bytes(&self) -> u64 {
        match *self {
            WeightShape::Matrix(m) => m.bytes(),
            WeightShape::Vector { len, dtype } => (len * dtype.bytes()) as u64,
            WeightShape::Conv { channels, width, dtype } => {
                (channels * width * dtype.bytes()) as u64
            }
        }
    }
}

/// One weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Canonical name, see the module documentation.
    pub name: String,
    /// Shape and format.
    pub shape: WeightShape,
}

/// All weights of a model in the order the forward pass uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    weights: Vec<WeightInfo>,
    positions: HashMap<String, usize>,
}

impl Manifest {
    /// Collects weights; names must be distinct.
    pub fn new(weights: Vec<WeightInfo>) -> Self {
        let positions =
            weights.iter().enumerate().map(|(position, w)| (w.name.clone(), position)).collect();
        Manifest { weights, positions }
    }
    /// Every weight.
    pub fn weights(&self) -> &[WeightInfo] {
        &self.weights
    }
    /// The weight of that canonical name.
    pub fn get(&self, name: &str) -> Option<&WeightInfo> {
        self.position(name).map(|position| &self.weights[position])
    }
    /// Index into [`Manifest::weights`] of that canonical name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }
    /// Sum of [`WeightShape::bytes`].
    pub fn bytes(&self) -> u64 {
        self.weights.iter().map(|w| w.shape.bytes()).sum()
    }
}
