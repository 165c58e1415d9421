//! The weights that a configuration calls for, in the order of the forward pass.

use crate::config::{LayerKind, MlpConfig, ModelConfig};

/// Shape of one weight before its storage is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedKind {
    /// One matrix, or one per expert.
    Matrix {
        n_experts: Option<usize>,
        rows: usize,
        cols: usize,
    },
    /// `shifted`: the HF layout stores the weight minus one.
    Vector {
        len: usize,
        shifted: bool,
    },
    Conv {
        channels: usize,
        width: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) name: String,
    pub(crate) kind: ExpectedKind,
}

pub(crate) const HEAD: &str = "lm_head";

/// All weights; `lm_head` last and always listed.
pub(crate) fn expected_weights(config: &ModelConfig) -> Vec<Expected> {
    let mut list = List { config, weights: Vec::new() };
    list.matrix("embed_tokens".into(), config.vocab_size, config.hidden_size);
    for (layer, kind) in config.layers.iter().enumerate() {
        let layer = format!("layers.{layer}");
        list.norm(format!("{layer}.input_layernorm"), config.hidden_size);
        match kind {
            LayerKind::LinearAttention => list.linear_attention(&layer),
            LayerKind::FullAttention => list.full_attention(&layer),
        }
        list.norm(format!("{layer}.post_attention_layernorm"), config.hidden_size);
        list.mlp(&layer);
    }
    list.norm("norm".into(), config.hidden_size);
    list.matrix(HEAD.into(), config.vocab_size, config.hidden_size);
    list.weights
}

struct List<'a> {
    config: &'a ModelConfig,
    weights: Vec<Expected>,
}

impl List<'_> {
    fn push(&mut self, name: String, kind: ExpectedKind) {
        self.weights.push(Expected { name, kind });
    }
    fn matrix(&mut self, name: String, rows: usize, cols: usize) {
        self.push(name, ExpectedKind::Matrix { n_experts: None, rows, cols });
    }
    fn experts(&mut self, name: String, n_experts: usize, rows: usize, cols: usize) {
        self.push(name, ExpectedKind::Matrix { n_experts: Some(n_experts), rows, cols });
    }
    fn norm(&mut self, name: String, len: usize) {
        self.push(name, ExpectedKind::Vector { len, shifted: true });
    }
    fn vector(&mut self, name: String, len: usize) {
        self.push(name, ExpectedKind::Vector { len, shifted: false });
    }

    fn linear_attention(&mut self, layer: &str) {
        let (config, part) = (self.config, format!("{layer}.linear_attn"));
        let (hidden, heads) = (config.hidden_size, config.linear_value_heads);
        self.matrix(format!("{part}.in_proj_qkv"), config.conv_dim(), hidden);
        self.matrix(format!("{part}.in_proj_z"), config.linear_value_dim(), hidden);
        self.matrix(format!("{part}.in_proj_b"), heads, hidden);
        self.matrix(format!("{part}.in_proj_a"), heads, hidden);
        let (channels, width) = (config.conv_dim(), config.conv_width);
        self.push(format!("{part}.conv1d"), ExpectedKind::Conv { channels, width });
        self.vector(format!("{part}.dt_bias"), heads);
        self.vector(format!("{part}.A_log"), heads);
        self.vector(format!("{part}.norm"), config.linear_value_head_dim);
        self.matrix(format!("{part}.out_proj"), hidden, config.linear_value_dim());
    }

    fn full_attention(&mut self, layer: &str) {
        let (config, part) = (self.config, format!("{layer}.self_attn"));
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let query_dim = config.n_heads * head_dim;
        let kv_dim = config.n_kv_heads * head_dim;
        self.matrix(format!("{part}.q_proj"), 2 * query_dim, hidden);
        self.matrix(format!("{part}.k_proj"), kv_dim, hidden);
        self.matrix(format!("{part}.v_proj"), kv_dim, hidden);
        self.norm(format!("{part}.q_norm"), head_dim);
        self.norm(format!("{part}.k_norm"), head_dim);
        self.matrix(format!("{part}.o_proj"), hidden, query_dim);
    }

    fn mlp(&mut self, layer: &str) {
        let (hidden, mlp) = (self.config.hidden_size, format!("{layer}.mlp"));
        match self.config.mlp {
            MlpConfig::Dense { intermediate_size } => self.swiglu(&mlp, intermediate_size),
            MlpConfig::Moe {
                n_experts,
                expert_intermediate_size,
                shared_intermediate_size,
                ..
            } => {
                self.matrix(format!("{mlp}.gate"), n_experts, hidden);
                self.matrix(format!("{mlp}.shared_expert_gate"), 1, hidden);
                let (part, width) = (format!("{mlp}.switch_mlp"), expert_intermediate_size);
                self.experts(format!("{part}.gate_proj"), n_experts, width, hidden);
                self.experts(format!("{part}.up_proj"), n_experts, width, hidden);
                self.experts(format!("{part}.down_proj"), n_experts, hidden, width);
                self.swiglu(&format!("{mlp}.shared_expert"), shared_intermediate_size);
            }
        }
    }

    fn swiglu(&mut self, part: &str, width: usize) {
        let hidden = self.config.hidden_size;
        self.matrix(format!("{part}.gate_proj"), width, hidden);
        self.matrix(format!("{part}.up_proj"), width, hidden);
        self.matrix(format!("{part}.down_proj"), hidden, width);
    }
}
