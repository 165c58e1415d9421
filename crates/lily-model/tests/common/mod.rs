//! Configurations and manifests for tests.
#![allow(dead_code, reason = "every test binary uses its own part")]

use lily_checkpoint::config::{
    GateActivation, LayerKind, MlpConfig, ModelConfig, RopeConfig, RopeScaling,
};
use lily_checkpoint::manifest::{
    Dtype, Manifest, MatrixFormat, MatrixShape, WeightInfo, WeightShape,
};

/// One DeltaNet layer and one attention layer.
pub(crate) fn tiny(mlp: MlpConfig) -> ModelConfig {
    let moe = matches!(mlp, MlpConfig::Moe { .. });
    ModelConfig {
        model_type: if moe { "qwen3_5_moe" } else { "qwen3_5" }.to_owned(),
        hidden_size: 64,
        vocab_size: 96,
        layers: vec![LayerKind::LinearAttention, LayerKind::FullAttention],
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        linear_key_heads: 2,
        linear_value_heads: 4,
        linear_key_head_dim: 16,
        linear_value_head_dim: 16,
        conv_width: 4,
        linear_gate: GateActivation::Silu,
        rms_norm_eps: 1e-6,
        rope: RopeConfig { theta: 1e7, rotary_dim: 4, scaling: RopeScaling::None },
        mlp,
        max_position_embeddings: 1024,
        tie_word_embeddings: !moe,
        eos_token_ids: vec![1],
    }
}

pub(crate) fn tiny_moe() -> ModelConfig {
    tiny(MlpConfig::Moe {
        n_experts: 8,
        top_k: 2,
        expert_intermediate_size: 32,
        shared_intermediate_size: 32,
    })
}

pub(crate) fn tiny_dense() -> ModelConfig {
    tiny(MlpConfig::Dense { intermediate_size: 128 })
}

/// All weights that the configuration asks for: 4-bit matrices of group 32, bf16 vectors.
pub(crate) fn manifest(config: &ModelConfig) -> Manifest {
    let mut weights = Weights::default();
    let hidden = config.hidden_size;
    weights.matrix("embed_tokens", 1, config.vocab_size, hidden);
    for (layer, kind) in config.layers.iter().enumerate() {
        let path = format!("layers.{layer}");
        weights.vector(&format!("{path}.input_layernorm"), hidden);
        match kind {
            LayerKind::LinearAttention => linear_attention(&mut weights, config, &path),
            LayerKind::FullAttention => full_attention(&mut weights, config, &path),
        }
        weights.vector(&format!("{path}.post_attention_layernorm"), hidden);
        mlp(&mut weights, config, &format!("{path}.mlp"));
    }
    weights.vector("norm", hidden);
    if !config.tie_word_embeddings {
        weights.matrix("lm_head", 1, config.vocab_size, hidden);
    }
    Manifest::new(weights.0)
}

fn linear_attention(weights: &mut Weights, config: &ModelConfig, path: &str) {
    let (hidden, heads) = (config.hidden_size, config.linear_value_heads);
    let path = format!("{path}.linear_attn");
    weights.matrix(&format!("{path}.in_proj_qkv"), 1, config.conv_dim(), hidden);
    weights.matrix(&format!("{path}.in_proj_z"), 1, config.linear_value_dim(), hidden);
    weights.matrix(&format!("{path}.in_proj_b"), 1, heads, hidden);
    weights.matrix(&format!("{path}.in_proj_a"), 1, heads, hidden);
    let (channels, width) = (config.conv_dim(), config.conv_width);
    let shape = WeightShape::Conv { channels, width, dtype: Dtype::Bf16 };
    weights.0.push(WeightInfo { name: format!("{path}.conv1d"), shape });
    weights.vector(&format!("{path}.dt_bias"), heads);
    weights.vector(&format!("{path}.A_log"), heads);
    weights.vector(&format!("{path}.norm"), config.linear_value_head_dim);
    weights.matrix(&format!("{path}.out_proj"), 1, hidden, config.linear_value_dim());
}

fn full_attention(weights: &mut Weights, config: &ModelConfig, path: &str) {
    let (hidden, head_dim) = (config.hidden_size, config.head_dim);
    let (q, kv) = (config.n_heads * head_dim, config.n_kv_heads * head_dim);
    let path = format!("{path}.self_attn");
    weights.matrix(&format!("{path}.q_proj"), 1, 2 * q, hidden);
    weights.matrix(&format!("{path}.k_proj"), 1, kv, hidden);
    weights.matrix(&format!("{path}.v_proj"), 1, kv, hidden);
    weights.vector(&format!("{path}.q_norm"), head_dim);
    weights.vector(&format!("{path}.k_norm"), head_dim);
    weights.matrix(&format!("{path}.o_proj"), 1, hidden, q);
}

fn mlp(weights: &mut Weights, config: &ModelConfig, path: &str) {
    let hidden = config.hidden_size;
    match config.mlp {
        MlpConfig::Dense { intermediate_size } => {
            weights.swiglu(path, 1, intermediate_size, hidden);
        }
        MlpConfig::Moe {
            n_experts, expert_intermediate_size, shared_intermediate_size, ..
        } => {
            weights.matrix(&format!("{path}.gate"), 1, n_experts, hidden);
            weights.matrix(&format!("{path}.shared_expert_gate"), 1, 1, hidden);
            let experts = format!("{path}.switch_mlp");
            weights.swiglu(&experts, n_experts, expert_intermediate_size, hidden);
            let shared = format!("{path}.shared_expert");
            weights.swiglu(&shared, 1, shared_intermediate_size, hidden);
        }
    }
}

#[derive(Default)]
struct Weights(Vec<WeightInfo>);

impl Weights {
    fn matrix(&mut self, name: &str, n_experts: usize, rows: usize, cols: usize) {
        let format = MatrixFormat::Affine { bits: 4, group_size: 32, scale: Dtype::Bf16 };
        let shape = WeightShape::Matrix(MatrixShape { n_experts, rows, cols, format });
        self.0.push(WeightInfo { name: name.to_owned(), shape });
    }
    fn vector(&mut self, name: &str, len: usize) {
        let shape = WeightShape::Vector { len, dtype: Dtype::Bf16 };
        self.0.push(WeightInfo { name: name.to_owned(), shape });
    }
    fn swiglu(&mut self, path: &str, n_experts: usize, width: usize, hidden: usize) {
        self.matrix(&format!("{path}.gate_proj"), n_experts, width, hidden);
        self.matrix(&format!("{path}.up_proj"), n_experts, width, hidden);
        self.matrix(&format!("{path}.down_proj"), n_experts, hidden, width);
    }
}
