//! `lily inspect`: what a checkpoint holds and what it needs.

use std::collections::BTreeMap;

use anyhow::Result;
use lily_checkpoint::config::{LayerKind, MlpConfig, ModelConfig};
use lily_checkpoint::manifest::{Dtype, Manifest, MatrixFormat, WeightShape};
use lily_model::{BuildOptions, MemoryEstimate, build, estimate_memory};
use lily_plan::stats::Work;
use lily_plan::{ValidPlan, stats};
use serde_json::{Value, json};

use super::output::{bytes, count, counted, print, print_pretty};
use crate::args::InspectArgs;
use crate::model::{self, Shapes};

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let report = Report::of(args)?;
    if args.json {
        print_pretty(&report.json())?;
    } else {
        print(&report.text())?;
    }
    Ok(())
}

/// Weights of one storage format.
#[derive(Clone, Copy, Default)]
struct Share {
    tensors: u64,
    bytes: u64,
}

struct Report {
    name: String,
    /// The device that is planned for.
    device: &'static str,
    shapes: Shapes,
    formats: BTreeMap<String, Share>,
    parameters: u64,
    active_parameters: u64,
    /// Bytes that one decoded token moves at the first position.
    decode: Work,
    memory: MemoryEstimate,
    tokenizer: Option<usize>,
    template: bool,
}

impl Report {
    fn of(args: &InspectArgs) -> Result<Self> {
        let shapes = model::shapes(&args.model)?;
        let (facts, options) = model::planned(&args.model, &args.planning, &shapes)?;
        let Shapes { config, manifest, .. } = &shapes;
        let chunk = args.planning.prefill_chunk(&facts).min(options.capacity);
        let memory = estimate_memory(config, manifest, &BuildOptions { rows: chunk, ..options })?;
        let plan = ValidPlan::new(build(config, manifest, &options)?)?;
        let (parameters, active_parameters) = parameters(config, manifest);
        Ok(Report {
            name: model::name(&args.model),
            device: facts.kind,
            formats: formats(manifest),
            parameters,
            active_parameters,
            decode: stats(&plan, 0).total,
            memory,
            tokenizer: model::find_tokenizer(&args.model)?.map(|t| t.len()),
            template: model::find_template(&args.model)?.is_some(),
            shapes,
        })
    }

    fn layers(&self, kind: LayerKind) -> usize {
        self.shapes.config.layers.iter().filter(|&&layer| layer == kind).count()
    }

    fn json(&self) -> Value {
        let Shapes { config, manifest, headers } = &self.shapes;
        let formats: serde_json::Map<String, Value> = self
            .formats
            .iter()
            .map(|(name, s)| (name.clone(), json!({"tensors": s.tensors, "bytes": s.bytes})))
            .collect();
        json!({
            "name": self.name,
            "model_type": config.model_type,
            "from_config_alone": !headers,
            "layers": config.layers.len(),
            "linear_attention_layers": self.layers(LayerKind::LinearAttention),
            "full_attention_layers": self.layers(LayerKind::FullAttention),
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "max_context": config.max_position_embeddings,
            "tied_head": config.tie_word_embeddings,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "weights": manifest.weights().len(),
            "formats": formats,
            "tokenizer_tokens": self.tokenizer,
            "chat_template": self.template,
            "decoded_token": {
                "weight_bytes": self.decode.weight_bytes,
                "state_bytes": self.decode.state_bytes,
                "kv_bytes_per_token_of_context": self.memory.kv_per_token,
            },
            "device": self.device,
            "memory": {
                "context": self.memory.context,
                "weights": self.memory.weights,
                "kv_cache": self.memory.kv(),
                "state": self.memory.state,
                "scratch": self.memory.scratch,
                "total": self.memory.total(),
            },
        })
    }

    fn text(&self) -> String {
        let Shapes { config, manifest, headers } = &self.shapes;
        let mut lines = Vec::new();
        let mut row = |name: &str, value: String| lines.push(format!("{name:<18}{value}\n"));
        let source = if *headers { "" } else { " (from config.json alone)" };
        row("model", format!("{}: {}{source}", self.name, config.model_type));
        row(
            "layers",
            format!(
                "{}: {} linear attention, {} full attention",
                config.layers.len(),
                self.layers(LayerKind::LinearAttention),
                self.layers(LayerKind::FullAttention)
            ),
        );
        let head = if config.tie_word_embeddings { "tied" } else { "untied" };
        row(
            "width",
            format!(
                "hidden {}, vocabulary {}, {head} output head",
                config.hidden_size, config.vocab_size
            ),
        );
        row("feed-forward", feed_forward(&config.mlp));
        row(
            "parameters",
            format!("{}, {} per token", count(self.parameters), count(self.active_parameters)),
        );
        row("longest context", format!("{} tokens", config.max_position_embeddings));
        row("tokenizer", self.tokenizer.map_or("missing".into(), |n| format!("{n} tokens")));
        row("chat template", if self.template { "present" } else { "missing" }.into());
        row(
            "weights",
            format!(
                "{} in {}",
                bytes(manifest.bytes()),
                counted(manifest.weights().len() as u64, "weight")
            ),
        );
        for (format, share) in &self.formats {
            row(
                &format!("  {format}"),
                format!("{} in {}", bytes(share.bytes), counted(share.tensors, "weight")),
            );
        }
        row(
            "a decoded token",
            format!(
                "reads {} of weights, {} of state and {} per token of context",
                bytes(self.decode.weight_bytes),
                bytes(self.decode.state_bytes),
                bytes(self.memory.kv_per_token)
            ),
        );
        let m = &self.memory;
        row(
            "memory",
            format!(
                "{} on {} at a context of {}: weights {}, KV cache {}, state {}, scratch {}",
                bytes(m.total()),
                self.device,
                m.context,
                bytes(m.weights),
                bytes(m.kv()),
                bytes(m.state),
                bytes(m.scratch)
            ),
        );
        lines.concat()
    }
}

fn feed_forward(mlp: &MlpConfig) -> String {
    match *mlp {
        MlpConfig::Dense { intermediate_size } => format!("dense, {intermediate_size} wide"),
        MlpConfig::Moe { n_experts, top_k, expert_intermediate_size, shared_intermediate_size } => {
            format!(
                "{n_experts} experts of width {expert_intermediate_size}, {top_k} per token, and a \
             shared one of {shared_intermediate_size}"
            )
        }
    }
}

fn formats(manifest: &Manifest) -> BTreeMap<String, Share> {
    let mut formats = BTreeMap::<String, Share>::new();
    for weight in manifest.weights() {
        let name = match weight.shape {
            WeightShape::Matrix(m) => match m.format {
                MatrixFormat::Affine { bits, group_size, .. } => {
                    format!("{bits}-bit group {group_size}")
                }
                MatrixFormat::Float(dtype) => dtype_name(dtype).to_owned(),
            },
            WeightShape::Vector { dtype, .. } | WeightShape::Conv { dtype, .. } => {
                dtype_name(dtype).to_owned()
            }
        };
        let share = formats.entry(name).or_default();
        share.tensors += 1;
        share.bytes += weight.shape.bytes();
    }
    formats
}

fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "bf16",
        Dtype::F16 => "f16",
        Dtype::F32 => "f32",
        Dtype::U32 => "u32",
    }
}

/// Parameters of the whole model, and those that one token meets: its experts, and one row of an
/// embedding that is not the head as well.
fn parameters(config: &ModelConfig, manifest: &Manifest) -> (u64, u64) {
    let top_k = match config.mlp {
        MlpConfig::Dense { .. } => 1,
        MlpConfig::Moe { top_k, .. } => top_k as u64,
    };
    let (mut all, mut active) = (0, 0);
    for weight in manifest.weights() {
        let (elements, used) = match weight.shape {
            WeightShape::Matrix(m) => {
                let one = m.rows as u64 * m.cols as u64;
                let is_lookup = weight.name == "embed_tokens" && !config.tie_word_embeddings;
                let used = match m.n_experts {
                    1 if is_lookup => m.cols as u64,
                    1 => one,
                    n => one * top_k.min(n as u64),
                };
                (one * m.n_experts as u64, used)
            }
            WeightShape::Vector { len, .. } => (len as u64, len as u64),
            WeightShape::Conv { channels, width, .. } => {
                let n = channels as u64 * width as u64;
                (n, n)
            }
        };
        all += elements;
        active += used;
    }
    (all, active)
}
