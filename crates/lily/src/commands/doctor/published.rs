//! The published checkpoint against its known continuation.

use anyhow::Result;
use lily_checkpoint::Checkpoint;
use lily_checkpoint::config::MlpConfig;
use lily_checkpoint::manifest::{MatrixFormat, WeightShape};
use lily_device::{Device, NoProgress};
use lily_engine::{CancelToken, Engine, EngineOptions, GenerateOptions, SamplingParams};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::model::engine_options;

/// Greedy tokens of `mlx-community/Qwen3.6-35B-A3B-4bit`, as MLX-LM gives them on Metal.
const PUBLISHED: &str = include_str!("../../../data/published-35b.json");

#[derive(Deserialize)]
struct Published {
    checkpoint: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: String,
    prompt_ids: Vec<u32>,
    tokens: Vec<u32>,
}

/// Whether the checkpoint has the shape and format of the published one. Fine-tunes have them too; the
/// text says what was compared.
pub(super) fn is_published(checkpoint: &Checkpoint) -> bool {
    let config = checkpoint.config();
    let format = checkpoint.manifest().get("layers.0.linear_attn.in_proj_qkv").map(|w| w.shape);
    let four_bits = matches!(
        format,
        Some(WeightShape::Matrix(shape))
            if matches!(shape.format, MatrixFormat::Affine { bits: 4, group_size: 64, .. })
    );
    let experts = matches!(config.mlp, MlpConfig::Moe { n_experts: 256, top_k: 8, .. });
    (config.layers.len(), config.hidden_size, config.vocab_size) == (40, 2048, 248_320)
        && four_bits
        && experts
}

/// How much of the known continuations came out.
pub(super) struct Agreement {
    checkpoint: String,
    cases: Vec<(String, usize, usize)>,
}

impl Agreement {
    pub(super) fn passed(&self) -> bool {
        self.cases.iter().all(|(_, equal, of)| equal == of)
    }

    pub(super) fn text(&self) -> String {
        let cases = self.cases.iter().map(|(prompt, equal, of)| {
            format!("{equal} of {of} tokens as published for {prompt:?}")
        });
        format!("{}: {}", self.checkpoint, cases.collect::<Vec<_>>().join(", "))
    }

    pub(super) fn json(&self) -> Value {
        let cases = self.cases.iter();
        json!({
            "checkpoint": self.checkpoint,
            "cases": cases.map(|(prompt, equal, of)| json!({
                "prompt": prompt, "equal_tokens": equal, "tokens": of,
            })).collect::<Vec<_>>(),
        })
    }
}

/// Continues the known prompts and counts the tokens up to the first difference.
pub(super) fn compare(
    args: &DoctorArgs,
    checkpoint: &Checkpoint,
    device: &dyn Device,
) -> Result<Agreement> {
    let published: Published = serde_json::from_str(PUBLISHED)?;
    let options = engine_options(&args.engine.planning, &device.facts())?;
    let options = EngineOptions { context: options.context.or(Some(256)), ..options };
    let engine = Engine::load(checkpoint, device, options, &NoProgress)?;
    let mut cases = Vec::new();
    for case in published.cases {
        let mut session = engine.new_session()?;
        let options = GenerateOptions {
            sampling: SamplingParams::greedy(),
            max_tokens: Some(case.tokens.len()),
            stop_tokens: Vec::new(),
            logprobs: None,
            prompt_logprobs: false,
        };
        let mut generation = session.generate(&case.prompt_ids, options, &CancelToken::new())?;
        let mut equal = 0;
        while let Some(token) = generation.next_token()? {
            if case.tokens.get(equal) != Some(&token.id) {
                break;
            }
            equal += 1;
        }
        cases.push((case.prompt, equal, case.tokens.len()));
    }
    Ok(Agreement { checkpoint: published.checkpoint, cases })
}
