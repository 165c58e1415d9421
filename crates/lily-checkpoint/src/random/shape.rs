//! Configuration and tensors of a random checkpoint.

use serde_json::{Map, Value, json};

use super::RandomSpec;
use crate::config::ModelConfig;
use crate::error::CheckpointError;
use crate::expected::{ExpectedKind, expected_weights};

/// Dimensions of a random model; the default is Qwen3.6-35B-A3B.
///
/// Inputs of matrices must be multiples of 64, the group size: `hidden_size`, both intermediate
/// sizes, `n_heads * head_dim` and `linear_value_heads * linear_head_dim`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomShape {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of an attention head.
    pub head_dim: usize,
    /// DeltaNet key heads.
    pub linear_key_heads: usize,
    /// DeltaNet value heads.
    pub linear_value_heads: usize,
    /// Width of DeltaNet key and value heads.
    pub linear_head_dim: usize,
    /// Experts per layer.
    pub n_experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Width of a routed expert.
    pub expert_intermediate_size: usize,
    /// Width of the shared expert.
    pub shared_intermediate_size: usize,
}

impl Default for RandomShape {
    fn default() -> Self {
        RandomShape {
            hidden_size: 2048,
            vocab_size: 248_320,
            n_heads: 16,
            n_kv_heads: 2,
            head_dim: 256,
            linear_key_heads: 16,
            linear_value_heads: 32,
            linear_head_dim: 128,
            n_experts: 256,
            top_k: 8,
            expert_intermediate_size: 512,
            shared_intermediate_size: 512,
        }
    }
}

impl RandomShape {
    /// A model of a few hundred kilobytes.
    pub fn tiny() -> Self {
        RandomShape {
            hidden_size: 128,
            vocab_size: 512,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            linear_key_heads: 2,
            linear_value_heads: 4,
            linear_head_dim: 32,
            n_experts: 8,
            top_k: 2,
            expert_intermediate_size: 64,
            shared_intermediate_size: 64,
        }
    }
}

pub(super) const GROUP_SIZE: usize = 64;
const BITS: u32 = 4;
const GATE_BITS: u32 = 8;
const INTERVAL: usize = 4;

/// The published file's keys that matter, with this shape.
pub(super) fn config_json(spec: &RandomSpec) -> Result<String, CheckpointError> {
    let RandomSpec { layers, shape, .. } = spec;
    let inputs = [
        ("hidden_size", Some(shape.hidden_size)),
        ("n_heads * head_dim", shape.n_heads.checked_mul(shape.head_dim)),
        (
            "linear_value_heads * linear_head_dim",
            shape.linear_value_heads.checked_mul(shape.linear_head_dim),
        ),
        ("expert_intermediate_size", Some(shape.expert_intermediate_size)),
        ("shared_intermediate_size", Some(shape.shared_intermediate_size)),
    ];
    for (field, value) in inputs {
        if !value.is_some_and(|inputs| inputs.is_multiple_of(GROUP_SIZE)) {
            let expected = format!("a multiple of {GROUP_SIZE}");
            let found = value.unwrap_or(usize::MAX);
            return Err(CheckpointError::Specification { field, expected, found });
        }
    }
    let quantization = quantization(*layers);
    let eos = shape.vocab_size.saturating_sub(1);
    let config = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "eos_token_id": eos,
        "model_type": "qwen3_5_moe",
        "quantization": quantization,
        "quantization_config": quantization,
        "text_config": {
            "attention_bias": false,
            "attn_output_gate": true,
            "dtype": "bfloat16",
            "eos_token_id": eos,
            "full_attention_interval": INTERVAL,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "hidden_size": shape.hidden_size,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": shape.linear_head_dim,
            "linear_num_key_heads": shape.linear_key_heads,
            "linear_num_value_heads": shape.linear_value_heads,
            "linear_value_head_dim": shape.linear_head_dim,
            "max_position_embeddings": 262_144,
            "model_type": "qwen3_5_moe_text",
            "moe_intermediate_size": shape.expert_intermediate_size,
            "num_attention_heads": shape.n_heads,
            "num_experts": shape.n_experts,
            "num_experts_per_tok": shape.top_k,
            "num_hidden_layers": layers,
            "num_key_value_heads": shape.n_kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "mrope_interleaved": true,
                "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10_000_000,
                "rope_type": "default"
            },
            "shared_expert_intermediate_size": shape.shared_intermediate_size,
            "tie_word_embeddings": false,
            "vocab_size": shape.vocab_size
        },
        "tie_word_embeddings": false
    });
    Ok(format!("{config:#}\n"))
}

fn quantization(layers: usize) -> Value {
    let mut block = Map::new();
    block.insert("group_size".into(), GROUP_SIZE.into());
    block.insert("bits".into(), BITS.into());
    block.insert("mode".into(), "affine".into());
    // A number of layers that no model has is refused when the configuration is parsed.
    for layer in 0..layers.min(1 << 12) {
        for gate in ["gate", "shared_expert_gate"] {
            let module = format!("language_model.model.layers.{layer}.mlp.{gate}");
            block.insert(module, json!({"group_size": GROUP_SIZE, "bits": GATE_BITS}));
        }
    }
    Value::Object(block)
}

/// How the elements of a tensor are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Draw {
    /// Packed words: every bit pattern is as likely.
    Bits,
    /// bf16 scales about `mean`, which the biases of the same matrix repeat.
    Scale { mean: f32 },
    /// bf16 biases: minus half the range of the packed values times the scale.
    Bias { mean: f32, half_range: f32 },
    /// bf16, uniform.
    Uniform { low: f32, high: f32 },
}

/// One tensor to write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RandomTensor {
    pub(super) name: String,
    /// What the random stream is keyed with: scales and biases of one matrix share it.
    pub(super) key: String,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: u64,
    pub(super) draw: Draw,
}

/// All tensors under MLX names.
pub(super) fn tensors(config: &ModelConfig) -> Vec<RandomTensor> {
    let mut list = Vec::new();
    for weight in expected_weights(config) {
        let module = match weight.name.as_str() {
            "lm_head" => "language_model.lm_head".to_owned(),
            name => format!("language_model.model.{name}"),
        };
        match weight.kind {
            ExpectedKind::Matrix { n_experts, rows, cols } => {
                matrix(&mut list, &module, n_experts, rows, cols);
            }
            ExpectedKind::Vector { len, .. } => {
                let bare = module.ends_with("A_log") || module.ends_with("dt_bias");
                let name = if bare { module } else { format!("{module}.weight") };
                let draw = if name.ends_with("A_log") {
                    // Decay rates from 1/2 to 8, evenly by ratio.
                    Draw::Uniform { low: -0.69, high: 2.08 }
                } else if name.ends_with("dt_bias") {
                    // Steps of about 0.002 to 0.1, as state-space layers are initialised.
                    Draw::Uniform { low: -6.0, high: -2.25 }
                } else {
                    Draw::Uniform { low: 0.9, high: 1.1 }
                };
                float(&mut list, name, vec![len], draw);
            }
            ExpectedKind::Conv { channels, width } => {
                let bound = 1.5 / (width as f32).sqrt();
                let draw = Draw::Uniform { low: -bound, high: bound };
                float(&mut list, format!("{module}.weight"), vec![channels, width, 1], draw);
            }
        }
    }
    list
}

fn float(list: &mut Vec<RandomTensor>, name: String, shape: Vec<usize>, draw: Draw) {
    let bytes = 2 * shape.iter().product::<usize>() as u64;
    list.push(RandomTensor { key: name.clone(), name, dtype: "BF16", shape, bytes, draw });
}

fn matrix(
    list: &mut Vec<RandomTensor>,
    module: &str,
    n_experts: Option<usize>,
    rows: usize,
    cols: usize,
) {
    let gate = module.ends_with("mlp.gate") || module.ends_with("mlp.shared_expert_gate");
    let bits = if gate { GATE_BITS } else { BITS };
    let shape = |last: usize| n_experts.into_iter().chain([rows, last]).collect::<Vec<_>>();
    let elements = |shape: &[usize]| shape.iter().product::<usize>() as u64;

    // Uniform integers 0..=top have this deviation; the weights get `gain / sqrt(cols)`.
    let top = ((1_u32 << bits) - 1) as f32;
    let deviation = ((top + 1.0) * (top + 1.0) - 1.0).sqrt() / 12.0_f32.sqrt();
    let target = if module.ends_with("embed_tokens") {
        // Rows are looked up, not multiplied: their elements should be near 1.
        1.0
    } else {
        gain(module) / (cols as f32).sqrt()
    };
    let mean = target / deviation;

    let words = shape(cols / 32 * bits as usize);
    list.push(RandomTensor {
        name: format!("{module}.weight"),
        key: format!("{module}.weight"),
        dtype: "U32",
        bytes: 4 * elements(&words),
        shape: words,
        draw: Draw::Bits,
    });
    let groups = shape(cols / GROUP_SIZE);
    let draws =
        [("scales", Draw::Scale { mean }), ("biases", Draw::Bias { mean, half_range: top / 2.0 })];
    for (part, draw) in draws {
        list.push(RandomTensor {
            name: format!("{module}.{part}"),
            key: format!("{module}.scales"),
            dtype: "BF16",
            bytes: 2 * elements(&groups),
            shape: groups.clone(),
            draw,
        });
    }
}

/// Deviation of an output of unit inputs: wide logits and routing, a residual stream that neither
/// explodes nor vanishes.
fn gain(module: &str) -> f32 {
    if module.ends_with("lm_head") {
        return 3.0;
    }
    if module.ends_with("mlp.gate") {
        return 2.0;
    }
    1.0
}
