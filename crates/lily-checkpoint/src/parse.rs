//! `config.json` and `generation_config.json`.
//!
//! No dimension has a default: the libraries' defaults differ from each other and from the models.
//! Caps on the numbers keep every product of dimensions far inside 64 bits.

use serde_json::{Map, Value};

use crate::config::{GateActivation, GenerationConfig, LayerKind, MlpConfig, ModelConfig};
use crate::error::CheckpointError;
use crate::fields::{CONFIG, Fields};
use crate::json::parse_object;
use crate::rope;

const MAX_LAYERS: usize = 1 << 10;
const MAX_WIDTH: usize = 1 << 17;
const MAX_VOCAB: usize = 1 << 22;
const MAX_HEADS: usize = 1 << 10;
const MAX_HEAD_DIM: usize = 1 << 11;
const MAX_CONV_WIDTH: usize = 16;
const MAX_EXPERTS: usize = 1 << 12;
const MAX_POSITIONS: usize = 1 << 30;

/// A configuration and what only tensors can settle.
#[derive(Debug)]
pub(crate) struct ParsedConfig {
    /// `tie_word_embeddings` holds the flag.
    pub(crate) model: ModelConfig,
    pub(crate) root: Map<String, Value>,
}

/// Parses `config.json`.
pub(crate) fn parse_config(bytes: &[u8]) -> Result<ParsedConfig, CheckpointError> {
    let root_map = parse_object(CONFIG, bytes)?;
    let root = Fields::new("", &root_map);
    let nested = root.optional_object("text_config")?;
    let text = nested.map_or(root, |map| Fields::new("text_config", map));

    let model_type = model_type(root, text, nested.is_some())?;
    check_fixed_choices(text)?;
    let hidden_size = text.integer("hidden_size", 1, MAX_WIDTH)?;
    let n_heads = text.integer("num_attention_heads", 1, MAX_HEADS)?;
    let n_kv_heads = text.integer("num_key_value_heads", 1, MAX_HEADS)?;
    divides(text, "num_attention_heads", n_heads, "num_key_value_heads", n_kv_heads)?;
    let head_dim = text.integer("head_dim", 2, MAX_HEAD_DIM)?;
    let linear_key_heads = text.integer("linear_num_key_heads", 1, MAX_HEADS)?;
    let linear_value_heads = text.integer("linear_num_value_heads", 1, MAX_HEADS)?;
    divides(
        text,
        "linear_num_value_heads",
        linear_value_heads,
        "linear_num_key_heads",
        linear_key_heads,
    )?;
    let eps = text
        .optional_number("rms_norm_eps", "a number above 0 and at most 1", |eps| {
            eps as f32 > 0.0 && eps <= 1.0
        })?
        .ok_or_else(|| text.missing("rms_norm_eps"))?;
    let model = ModelConfig {
        hidden_size,
        vocab_size: text.integer("vocab_size", 1, MAX_VOCAB)?,
        layers: layers(text)?,
        n_heads,
        n_kv_heads,
        head_dim,
        linear_key_heads,
        linear_value_heads,
        linear_key_head_dim: text.integer("linear_key_head_dim", 1, MAX_HEAD_DIM)?,
        linear_value_head_dim: text.integer("linear_value_head_dim", 1, MAX_HEAD_DIM)?,
        conv_width: text.integer("linear_conv_kernel_dim", 2, MAX_CONV_WIDTH)?,
        linear_gate: gate_activation(text)?,
        rms_norm_eps: eps as f32,
        rope: rope::parse(root, text, head_dim)?,
        mlp: mlp(text, &model_type)?,
        max_position_embeddings: text.integer("max_position_embeddings", 1, MAX_POSITIONS)?,
        tie_word_embeddings: root.optional_bool("tie_word_embeddings")?.unwrap_or(false)
            || text.optional_bool("tie_word_embeddings")?.unwrap_or(false),
        eos_token_ids: match root.token_ids("eos_token_id")? {
            Some(ids) => ids,
            None => text.token_ids("eos_token_id")?.unwrap_or_default(),
        },
        model_type,
    };
    Ok(ParsedConfig { model, root: root_map })
}

/// `qwen3_5` or `qwen3_5_moe`, from the root or from the text part.
fn model_type(root: Fields<'_>, text: Fields<'_>, nested: bool) -> Result<String, CheckpointError> {
    let family = |fields: Fields<'_>| -> Result<Option<&'static str>, CheckpointError> {
        match fields.optional_string("model_type")? {
            None => Ok(None),
            Some("qwen3_5" | "qwen3_5_text") => Ok(Some("qwen3_5")),
            Some("qwen3_5_moe" | "qwen3_5_moe_text") => Ok(Some("qwen3_5_moe")),
            Some(other) => {
                Err(CheckpointError::UnsupportedModel { found: crate::json::shorten(other) })
            }
        }
    };
    let outer = family(root)?;
    let inner = if nested { family(text)? } else { None };
    if let (Some(outer), Some(inner)) = (outer, inner)
        && outer != inner
    {
        return Err(CheckpointError::Contradiction {
            file: CONFIG.to_owned(),
            first: root.path("model_type"),
            first_value: outer.to_owned(),
            second: text.path("model_type"),
            second_value: inner.to_owned(),
        });
    }
    outer.or(inner).map(str::to_owned).ok_or_else(|| root.missing("model_type"))
}

/// Refuses values of switches for which only one choice is implemented.
fn check_fixed_choices(text: Fields<'_>) -> Result<(), CheckpointError> {
    let flags = [
        ("attention_bias", false, "false"),
        ("attn_output_gate", true, "true"),
        ("norm_topk_prob", true, "true"),
        ("use_sliding_window", false, "false"),
    ];
    for (key, only, expected) in flags {
        if text.optional_bool(key)?.is_some_and(|found| found != only) {
            return Err(text.unsupported(key, expected, &Value::Bool(!only)));
        }
    }
    if let Some(found) = text.get("hidden_act").filter(|act| !matches!(act.as_str(), Some("silu")))
    {
        return Err(text.unsupported("hidden_act", "silu", found));
    }
    if let Some(found) = text.get("decoder_sparse_step").filter(|step| step.as_f64() != Some(1.0)) {
        return Err(text.unsupported("decoder_sparse_step", "1", found));
    }
    match text.optional_array("mlp_only_layers")? {
        None | Some([]) => Ok(()),
        Some(_) => {
            Err(text.unsupported("mlp_only_layers", "[]", &text_value(text, "mlp_only_layers")))
        }
    }
}

fn text_value(text: Fields<'_>, key: &str) -> Value {
    text.get(key).cloned().unwrap_or(Value::Null)
}

fn divides(
    fields: Fields<'_>,
    key: &str,
    value: usize,
    divisor_key: &str,
    divisor: usize,
) -> Result<(), CheckpointError> {
    if value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(fields.out_of_range(key, format!("a multiple of {divisor_key} ({divisor})"), value))
}

fn layers(text: Fields<'_>) -> Result<Vec<LayerKind>, CheckpointError> {
    let n_layers = text.integer("num_hidden_layers", 1, MAX_LAYERS)?;
    let Some(types) = text.optional_array("layer_types")? else {
        let interval = text.integer("full_attention_interval", 1, MAX_LAYERS)?;
        let kind = |layer: usize| match (layer + 1).is_multiple_of(interval) {
            true => LayerKind::FullAttention,
            false => LayerKind::LinearAttention,
        };
        return Ok((0..n_layers).map(kind).collect());
    };
    if types.len() != n_layers {
        let expected = format!("num_hidden_layers ({n_layers}) entries");
        return Err(text.out_of_range("layer_types", expected, format!("{} entries", types.len())));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            Some("linear_attention") => Ok(LayerKind::LinearAttention),
            Some("full_attention") => Ok(LayerKind::FullAttention),
            _ => Err(text.unsupported("layer_types", "linear_attention or full_attention", kind)),
        })
        .collect()
}

fn gate_activation(text: Fields<'_>) -> Result<GateActivation, CheckpointError> {
    match text.optional_string("output_gate_type")? {
        None | Some("silu" | "swish") => Ok(GateActivation::Silu),
        Some("sigmoid") => Ok(GateActivation::Sigmoid),
        Some(_) => Err(text.unsupported(
            "output_gate_type",
            "silu, swish or sigmoid",
            &text_value(text, "output_gate_type"),
        )),
    }
}

fn mlp(text: Fields<'_>, model_type: &str) -> Result<MlpConfig, CheckpointError> {
    if model_type == "qwen3_5" {
        let intermediate_size = text.integer("intermediate_size", 1, MAX_WIDTH)?;
        return Ok(MlpConfig::Dense { intermediate_size });
    }
    let n_experts = text.integer("num_experts", 1, MAX_EXPERTS)?;
    let top_k = text.integer("num_experts_per_tok", 1, MAX_EXPERTS)?;
    if top_k > n_experts {
        let expected = format!("at most num_experts ({n_experts})");
        return Err(text.out_of_range("num_experts_per_tok", expected, top_k));
    }
    Ok(MlpConfig::Moe {
        n_experts,
        top_k,
        expert_intermediate_size: text.integer("moe_intermediate_size", 1, MAX_WIDTH)?,
        shared_intermediate_size: text.integer("shared_expert_intermediate_size", 1, MAX_WIDTH)?,
    })
}

pub(crate) const GENERATION: &str = "generation_config.json";

/// Parses `generation_config.json`.
pub(crate) fn parse_generation(bytes: &[u8]) -> Result<GenerationConfig, CheckpointError> {
    let map = parse_object(GENERATION, bytes)?;
    let fields = Fields::of_file(GENERATION, &map);
    let number = |key, expected, accept: fn(f64) -> bool| {
        fields.optional_number(key, expected, accept).map(|value| value.map(|v| v as f32))
    };
    let share = |value: f64| (0.0..=1.0).contains(&value);
    Ok(GenerationConfig {
        eos_token_ids: fields.token_ids("eos_token_id")?.unwrap_or_default(),
        do_sample: fields.optional_bool("do_sample")?,
        temperature: number("temperature", "0 to 100", |t| (0.0..=100.0).contains(&t))?,
        top_k: fields.optional_integer("top_k", 0, MAX_VOCAB)?,
        top_p: number("top_p", "0 to 1", share)?,
        min_p: number("min_p", "0 to 1", share)?,
        repetition_penalty: number("repetition_penalty", "above 0 and at most 100", |p| {
            p as f32 > 0.0 && p <= 100.0
        })?,
    })
}
