//! Flag groups that several commands share.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use lily_device::DeviceFacts;
use lily_plan::buffer::Elem;

use crate::hub;

/// Which checkpoint.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Checkpoint directory (MLX affine or Hugging Face layout), .lily file, or the name of a pulled
    /// model, OWNER/NAME or OWNER/NAME@REV; default: the embedded demo model
    // An empty path is let through, so that the place which words bad paths words this one too.
    #[arg(
        long,
        value_name = "PATH",
        env = unless_empty("LILY_MODEL_PATH"),
        value_parser = OsStringValueParser::new().map(PathBuf::from)
    )]
    pub(crate) model_path: Option<PathBuf>,
    /// Where that is, once it was looked for.
    #[arg(skip)]
    located: OnceLock<PathBuf>,
}

impl ModelArgs {
    /// The directory or file, looked for when first asked; `None` is the demo model.
    pub(crate) fn dir(&self) -> Option<&Path> {
        let typed = self.model_path.as_deref()?;
        Some(self.located.get_or_init(|| hub::locate(typed)))
    }
}

/// The variable, unless it is set to nothing: that counts as unset. A flag with an empty value does
/// not: it is more likely a misspelt variable than a wish for the default.
pub(super) fn unless_empty(variable: &'static str) -> Option<&'static str> {
    env::var_os(variable).is_none_or(|value| !value.is_empty()).then_some(variable)
}

/// How the engine runs the model.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) planning: PlanningArgs,
    /// Worker threads [default: all cores]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) threads: Option<usize>,
}

/// All that a plan depends on besides the model.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct PlanningArgs {
    /// Machine to run on
    #[arg(
        long,
        value_name = "KIND",
        env = unless_empty("LILY_DEVICE"),
        default_value = "auto",
        ignore_case = true
    )]
    pub(crate) device: DeviceKind,
    /// Choices for the CUDA device, a comma list such as `stream,early=off`
    #[arg(long, value_name = "LIST", default_value = "", hide = true)]
    pub(crate) cuda: String,
    /// Tokens a session can hold [default: the model's own, at most 32768]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) context: Option<usize>,
    /// Element type of the KV cache [default: bf16 on a GPU, f32 on the processor]
    #[arg(long, value_name = "TYPE", ignore_case = true)]
    pub(crate) kv_cache: Option<KvCache>,
    /// Prompt tokens per prefill chunk [default: 512 on the processor, 2048 on an Apple GPU, 4096 on
    /// an NVIDIA GPU]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) prefill_chunk: Option<usize>,
    /// Fused steps to use: all, none, cpu, or a comma list of residual, swiglu, attention_gate, norm,
    /// stack, delta, attention, routing [default: what pays on the device]
    #[arg(long, value_name = "LIST")]
    pub(crate) fuse: Option<String>,
}

impl PlanningArgs {
    /// Element type of the KV cache: by default as exact as the products that feed it.
    pub(crate) fn kv(&self, device: &DeviceFacts) -> Elem {
        match self.kv_cache {
            Some(KvCache::F32) => Elem::F32,
            Some(KvCache::Bf16) => Elem::Bf16,
            None => device.activations,
        }
    }

    /// Prompt tokens of a prefill chunk.
    pub(crate) fn prefill_chunk(&self, device: &DeviceFacts) -> usize {
        self.prefill_chunk.unwrap_or(device.prefill_chunk)
    }
}

/// Which machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceKind {
    /// Metal where there is some, else a CUDA GPU, else the processor
    Auto,
    /// The processor
    Cpu,
    /// An NVIDIA GPU
    Cuda,
    /// An Apple GPU
    Metal,
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvCache {
    /// 4 bytes an element
    F32,
    /// 2 bytes an element
    Bf16,
}

/// How the next token is chosen; what is not given comes from generation_config.json.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling (defaults: the checkpoint's generation_config.json)")]
pub(crate) struct SamplingArgs {
    /// Softmax temperature, at most 2; 0 is greedy
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = temperature)]
    pub(crate) temperature: Option<f32>,
    /// Keep the K most probable tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub(crate) top_k: Option<usize>,
    /// Keep the most probable tokens whose probabilities sum to P
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = top_p)]
    pub(crate) top_p: Option<f32>,
    /// Keep tokens at least P times as probable as the best
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = min_p)]
    pub(crate) min_p: Option<f32>,
    /// Subtracted from the logit of every token already generated
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = penalty)]
    pub(crate) presence_penalty: Option<f32>,
    /// Subtracted from a token's logit once per time it was generated
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = penalty)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Divides positive (multiplies negative) logits of tokens already seen; 1 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = repetition_penalty)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Added to one token's logit; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = logit_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text [default: random]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Generate at most N tokens [default: until a stop token or the end of the context]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) max_tokens: Option<usize>,
}

/// What an answer or a continuation must keep to.
#[derive(Clone, Debug, Args)]
pub(crate) struct RuleArgs {
    /// Hold the text to the JSON schema in this file
    #[arg(long, value_name = "FILE", group = "form")]
    pub(crate) json_schema: Option<PathBuf>,
    /// Hold the text to this regular expression, which matches it as a whole
    #[arg(long, value_name = "REGEX", group = "form")]
    pub(crate) regex: Option<String>,
    /// Hold the text to the Lark grammar in this file
    #[arg(long, value_name = "FILE", group = "form")]
    pub(crate) grammar: Option<PathBuf>,
    /// End the thinking after N tokens; a form holds for what comes behind it
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) thinking_budget: Option<usize>,
}

/// A count that is at least 1.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    // In a list, spaces may follow the commas.
    match text.trim().parse::<usize>() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(_) => Err("must be a whole number, at least 1".into()),
    }
}

/// A stop string; an empty one would end every text before it begins.
pub(crate) fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("must not be empty".into()) } else { Ok(text.to_owned()) }
}

/// A prompt as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenIds(pub(crate) Vec<u32>);

/// A comma list, with spaces and brackets where they were copied along.
pub(crate) fn token_ids(text: &str) -> Result<TokenIds, String> {
    const EXPECTED: &str = "expected token ids separated by commas";
    let list = text.trim();
    let inner = list.strip_prefix('[').map_or(Some(list), |rest| rest.strip_suffix(']'));
    let inner = inner.ok_or_else(|| format!("the bracket is not closed; {EXPECTED}"))?;
    if inner.trim().is_empty() {
        return Err(format!("the list is empty; {EXPECTED}"));
    }
    let id = |id: &str| {
        let id = id.trim();
        id.parse().map_err(|_| format!("{id:?} is not a token id; {EXPECTED}"))
    };
    Ok(TokenIds(inner.split(',').map(id).collect::<Result<_, _>>()?))
}

fn number(text: &str, accepts: impl Fn(f32) -> bool, expected: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && accepts(value) => Ok(value),
        Ok(_) => Err(format!("must be {expected}")),
        Err(_) => Err(format!("not a number; must be {expected}")),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    // As far as the API goes: what is asked for here can be asked for there.
    number(text, |v| (0.0..=2.0).contains(&v), "between 0 and 2")
}

fn top_p(text: &str) -> Result<f32, String> {
    number(text, |v| v > 0.0 && v <= 1.0, "above 0 and at most 1")
}

fn min_p(text: &str) -> Result<f32, String> {
    number(text, |v| (0.0..=1.0).contains(&v), "between 0 and 1")
}

fn penalty(text: &str) -> Result<f32, String> {
    number(text, |v| (-2.0..=2.0).contains(&v), "between -2 and 2")
}

fn repetition_penalty(text: &str) -> Result<f32, String> {
    number(text, |v| v > 0.0, "above 0")
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("expected ID=BIAS")?;
    let id = id.parse::<u32>().map_err(|e| format!("token id {id:?}: {e}"))?;
    Ok((id, number(bias, |v| (-100.0..=100.0).contains(&v), "between -100 and 100")?))
}
