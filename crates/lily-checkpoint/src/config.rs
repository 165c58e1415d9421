//! The model's configuration, as every other crate sees it.

/// How a layer mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated DeltaNet: a recurrent state of constant size.
    LinearAttention,
    /// Gated softmax attention with a KV cache.
    FullAttention,
}

/// The feed-forward part, the same in every layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MlpConfig {
    /// SwiGLU of one width (`qwen3_5`).
    Dense {
        /// Rows of `gate_proj` and `up_proj`.
        intermediate_size: usize,
    },
    /// Routed experts and one shared expert (`qwen3_5_moe`).
    Moe {
        /// Experts per layer.
        n_experts: usize,
        /// Experts per token.
        top_k: usize,
        /// Width of one routed expert.
        expert_intermediate_size: usize,
        /// Width of the shared expert.
        shared_intermediate_size: usize,
    },
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Leading dimensions of each head that are rotated; even.
    pub rotary_dim: usize,
    /// Context extension.
    pub scaling: RopeScaling,
}

/// Context extension of the rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// YaRN, as the model card documents it for contexts beyond 262,144.
    Yarn {
        /// Extension factor.
        factor: f64,
        /// Context the model was trained with, in tokens.
        original_max_position: usize,
        /// Fast-rotation bound in turns (`beta_fast`, default 32).
        beta_fast: f64,
        /// Slow-rotation bound in turns (`beta_slow`, default 1).
        beta_slow: f64,
    },
}

/// Activation of the gate in the gated RMSNorm of a DeltaNet layer (`output_gate_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateActivation {
    /// `z * sigmoid(z)`: the family's own.
    Silu,
    /// `sigmoid(z)`.
    Sigmoid,
}

/// Shapes and constants of one model; every field comes from the file or is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// `qwen3_5` or `qwen3_5_moe`.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding and of the head, padding rows included.
    pub vocab_size: usize,
    /// One entry per layer.
    pub layers: Vec<LayerKind>,
    /// Query heads of an attention layer.
    pub n_heads: usize,
    /// Key/value heads of an attention layer; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of an attention head.
    pub head_dim: usize,
    /// Key (and query) heads of a DeltaNet layer.
    pub linear_key_heads: usize,
    /// Value heads of a DeltaNet layer; a multiple of `linear_key_heads`.
    pub linear_value_heads: usize,
    /// Width of a DeltaNet key head.
    pub linear_key_head_dim: usize,
    /// Width of a DeltaNet value head.
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution.
    pub conv_width: usize,
    /// Gate of the DeltaNet read-out.
    pub linear_gate: GateActivation,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Rotary embedding of the attention layers.
    pub rope: RopeConfig,
    /// Feed-forward part.
    pub mlp: MlpConfig,
    /// Context the model is configured for, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the head shares the embedding; tensor presence has decided when a checkpoint is
    /// open, the flag when only `config.json` was read.
    pub tie_word_embeddings: bool,
    /// Stop tokens named by `config.json` (root first, then `text_config`).
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Channels of the DeltaNet convolution: `[q | k | v]`.
    pub fn conv_dim(&self) -> usize {
        2 * self.linear_key_dim() + self.linear_value_dim()
    }
    /// Width of all DeltaNet key heads.
    pub fn linear_key_dim(&self) -> usize {
        self.linear_key_heads * self.linear_key_head_dim
    }
    /// Width of all DeltaNet value heads.
    pub fn linear_value_dim(&self) -> usize {
        self.linear_value_heads * self.linear_value_head_dim
    }
}

/// `generation_config.json`; absent fields stay `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Stop tokens; they win over those of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// `false` means greedy.
    pub do_sample: Option<bool>,
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// Candidates kept by rank; 0 keeps all.
    pub top_k: Option<usize>,
    /// Candidates kept by cumulative probability.
    pub top_p: Option<f32>,
    /// Candidates kept by probability relative to the best.
    pub min_p: Option<f32>,
    /// Divides (positive) or multiplies (negative) logits of seen tokens.
    pub repetition_penalty: Option<f32>,
}
