//! A tiny checkpoint that tests build, break and open.

use std::collections::BTreeMap;
use std::path::Path;

use lily_checkpoint::write::{TensorData, header};
use lily_checkpoint::{Checkpoint, CheckpointError};
use serde_json::{Value, json};

pub(crate) const HIDDEN: usize = 128;
pub(crate) const VOCAB: usize = 16;
pub(crate) const EXPERTS: usize = 4;
pub(crate) const WIDTH: usize = 128;
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// How matrices are stored.
#[derive(Clone, Copy)]
pub(crate) enum Storage {
    Affine { bits: usize, group: usize, scale: &'static str },
    Float(&'static str),
}

/// Files of a checkpoint before they are written.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) config: Value,
    /// Safetensors by file name.
    pub(crate) shards: BTreeMap<String, Vec<TensorData>>,
    /// All other files.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

/// Bytes that differ from tensor to tensor.
pub(crate) fn pattern(name: &str, len: usize) -> Vec<u8> {
    let seed = name.bytes().fold(7_u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) ^ seed).to_le_bytes()[2]).collect()
}

fn size(dtype: &str) -> usize {
    match dtype {
        "U8" | "F8_E4M3" => 1,
        "BF16" | "F16" => 2,
        _ => 4,
    }
}

pub(crate) fn tensor(name: &str, dtype: &'static str, shape: &[usize]) -> TensorData {
    let bytes = pattern(name, shape.iter().product::<usize>() * size(dtype));
    TensorData { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

pub(crate) fn bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()
}

fn text_config(moe: bool) -> Value {
    let mut text = json!({
        "hidden_size": HIDDEN, "num_hidden_layers": 4, "vocab_size": VOCAB,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
        "linear_num_key_heads": 1, "linear_num_value_heads": 2,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "max_position_embeddings": 4096, "tie_word_embeddings": false,
        "rope_parameters": {
            "rope_theta": 10_000_000, "partial_rotary_factor": 0.25, "rope_type": "default"
        },
        "layer_types": [
            "linear_attention", "linear_attention", "linear_attention", "full_attention"
        ],
    });
    if moe {
        text["model_type"] = json!("qwen3_5_moe_text");
        text["num_experts"] = json!(EXPERTS);
        text["num_experts_per_tok"] = json!(2);
        text["moe_intermediate_size"] = json!(WIDTH);
        text["shared_expert_intermediate_size"] = json!(WIDTH);
    } else {
        text["model_type"] = json!("qwen3_5_text");
        text["intermediate_size"] = json!(WIDTH);
    }
    text
}

impl Model {
    /// MLX MoE model of 4 layers, one of them full attention.
    pub(crate) fn mlx(storage: Storage) -> Model {
        let mut model = Model::empty(true);
        if let Storage::Affine { bits, group, .. } = storage {
            model.config["quantization"] = json!({"bits": bits, "group_size": group});
        }
        let text = "language_model.model.";
        model.layers(text, storage, true, false);
        model.matrix("language_model.lm_head", storage, &[], VOCAB, HIDDEN);
        model
    }

    /// The usual one: 4 bits, group 64, bf16 scales.
    pub(crate) fn usual() -> Model {
        Model::mlx(Storage::Affine { bits: 4, group: 64, scale: "BF16" })
    }

    /// MLX dense model with tied embeddings.
    pub(crate) fn dense_tied() -> Model {
        let storage = Storage::Affine { bits: 4, group: 64, scale: "BF16" };
        let mut model = Model::empty(false);
        model.config["quantization"] = json!({"bits": 4, "group_size": 64});
        model.config["text_config"]["tie_word_embeddings"] = json!(true);
        model.layers("language_model.model.", storage, false, false);
        model
    }

    /// HF MoE model with fused experts.
    pub(crate) fn hf(dtype: &'static str) -> Model {
        let mut model = Model::empty(true);
        model.layers("model.language_model.", Storage::Float(dtype), true, true);
        model.matrix("lm_head", Storage::Float(dtype), &[], VOCAB, HIDDEN);
        model
    }

    fn empty(moe: bool) -> Model {
        let config = json!({
            "model_type": if moe { "qwen3_5_moe" } else { "qwen3_5" },
            "eos_token_id": [3, 5],
            "text_config": text_config(moe),
        });
        Model {
            config,
            shards: BTreeMap::from([(SINGLE.to_owned(), Vec::new())]),
            files: BTreeMap::new(),
        }
    }

    fn push(&mut self, tensor: TensorData) {
        self.shards.get_mut(SINGLE).unwrap().push(tensor);
    }

    pub(crate) fn float(&mut self, name: &str, dtype: &'static str, shape: &[usize]) {
        self.push(tensor(name, dtype, shape));
    }

    pub(crate) fn matrix(
        &mut self,
        module: &str,
        storage: Storage,
        experts: &[usize],
        rows: usize,
        cols: usize,
    ) {
        let shape = |last: usize| [experts, &[rows, last]].concat();
        match storage {
            Storage::Float(dtype) => self.float(&format!("{module}.weight"), dtype, &shape(cols)),
            Storage::Affine { bits, group, scale } => {
                self.float(&format!("{module}.weight"), "U32", &shape(cols * bits / 32));
                self.float(&format!("{module}.scales"), scale, &shape(cols / group));
                self.float(&format!("{module}.biases"), scale, &shape(cols / group));
            }
        }
    }

    fn norm(&mut self, name: &str, len: usize) {
        let mut norm = tensor(&format!("{name}.weight"), "BF16", &[len]);
        norm.bytes = bf16(&vec![0.5; len]);
        self.push(norm);
    }

    fn layers(&mut self, text: &str, storage: Storage, moe: bool, hf: bool) {
        self.matrix(&format!("{text}embed_tokens"), storage, &[], VOCAB, HIDDEN);
        self.norm(&format!("{text}norm"), HIDDEN);
        for layer in 0..4 {
            let part = format!("{text}layers.{layer}");
            self.norm(&format!("{part}.input_layernorm"), HIDDEN);
            self.norm(&format!("{part}.post_attention_layernorm"), HIDDEN);
            if layer == 3 {
                for (name, rows, cols) in [
                    ("q_proj", 256, HIDDEN),
                    ("k_proj", 64, HIDDEN),
                    ("v_proj", 64, HIDDEN),
                    ("o_proj", HIDDEN, 128),
                ] {
                    self.matrix(&format!("{part}.self_attn.{name}"), storage, &[], rows, cols);
                }
                self.norm(&format!("{part}.self_attn.q_norm"), 64);
                self.norm(&format!("{part}.self_attn.k_norm"), 64);
            } else {
                for (name, rows, cols) in [
                    ("in_proj_qkv", 256, HIDDEN),
                    ("in_proj_z", 128, HIDDEN),
                    ("in_proj_b", 2, HIDDEN),
                    ("in_proj_a", 2, HIDDEN),
                    ("out_proj", HIDDEN, 128),
                ] {
                    self.matrix(&format!("{part}.linear_attn.{name}"), storage, &[], rows, cols);
                }
                let part = format!("{part}.linear_attn");
                let conv = if hf { [256, 1, 4] } else { [256, 4, 1] };
                let values: Vec<f32> = (0..1024).map(|i| i as f32).collect();
                let mut conv = tensor(&format!("{part}.conv1d.weight"), "BF16", &conv);
                conv.bytes = bf16(&values);
                self.push(conv);
                self.norm(&format!("{part}.norm"), 64);
                self.float(&format!("{part}.dt_bias"), "BF16", &[2]);
                self.float(&format!("{part}.A_log"), "BF16", &[2]);
            }
            self.mlp(&format!("{part}.mlp"), storage, moe, hf);
        }
    }

    fn mlp(&mut self, part: &str, storage: Storage, moe: bool, hf: bool) {
        let swiglu = |model: &mut Model, part: &str, experts: &[usize]| {
            for (name, rows, cols) in [
                ("gate_proj", WIDTH, HIDDEN),
                ("up_proj", WIDTH, HIDDEN),
                ("down_proj", HIDDEN, WIDTH),
            ] {
                model.matrix(&format!("{part}.{name}"), storage, experts, rows, cols);
            }
        };
        if !moe {
            return swiglu(self, part, &[]);
        }
        self.matrix(&format!("{part}.gate"), storage, &[], EXPERTS, HIDDEN);
        self.matrix(&format!("{part}.shared_expert_gate"), storage, &[], 1, HIDDEN);
        swiglu(self, &format!("{part}.shared_expert"), &[]);
        match storage {
            Storage::Float(dtype) if hf => {
                let fused = [EXPERTS, 2 * WIDTH, HIDDEN];
                self.float(&format!("{part}.experts.gate_up_proj"), dtype, &fused);
                self.float(&format!("{part}.experts.down_proj"), dtype, &[EXPERTS, HIDDEN, WIDTH]);
            }
            _ => swiglu(self, &format!("{part}.switch_mlp"), &[EXPERTS]),
        }
    }

    pub(crate) fn text(&mut self) -> &mut serde_json::Map<String, Value> {
        self.config["text_config"].as_object_mut().unwrap()
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut TensorData {
        let all = self.shards.values_mut().flatten();
        all.into_iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Replaces a tensor by one of another type or shape.
    pub(crate) fn replace(&mut self, name: &str, dtype: &'static str, shape: &[usize]) {
        *self.tensor(name) = tensor(name, dtype, shape);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.tensor(name);
        self.shards.values_mut().for_each(|shard| shard.retain(|t| t.name != name));
    }

    /// Renames every tensor.
    pub(crate) fn rename(&mut self, to: impl Fn(&str) -> String) {
        self.shards.values_mut().flatten().for_each(|t| t.name = to(&t.name));
    }

    /// Two shards and an index; the second shard holds the last tensors.
    pub(crate) fn split(&mut self) {
        let mut first = self.shards.remove(SINGLE).unwrap();
        let second = first.split_off(first.len() / 2);
        self.shards.insert("model-00001-of-00002.safetensors".into(), first);
        self.shards.insert("model-00002-of-00002.safetensors".into(), second);
        self.index(|_| {});
    }

    /// Writes an index of all shards, changed by `edit`.
    pub(crate) fn index(&mut self, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
        let mut map = serde_json::Map::new();
        for (file, tensors) in &self.shards {
            map.extend(tensors.iter().map(|t| (t.name.clone(), json!(file))));
        }
        edit(&mut map);
        let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        self.files.insert(INDEX.into(), index.to_string().into_bytes());
    }

    pub(crate) fn shard_bytes(tensors: &[TensorData]) -> Vec<u8> {
        let entries = tensors.iter().map(|t| (&*t.name, t.dtype, &*t.shape, t.bytes.len() as u64));
        let mut bytes = header(entries);
        tensors.iter().for_each(|t| bytes.extend_from_slice(&t.bytes));
        bytes
    }

    pub(crate) fn write(&self, dir: &Path) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        for (name, tensors) in &self.shards {
            std::fs::write(dir.join(name), Self::shard_bytes(tensors)).unwrap();
        }
        for (name, bytes) in &self.files {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
    }

    pub(crate) fn open(&self) -> Result<Checkpoint, CheckpointError> {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path());
        // Files stay readable through their handles when the directory is gone.
        Checkpoint::open(dir.path())
    }
}
