//! How much memory a model needs.

use lily_checkpoint::config::ModelConfig;
use lily_checkpoint::manifest::Manifest;
use lily_plan::ValidPlan;
use lily_plan::buffer::BufferClass;
use lily_plan::plan::Phase;

use crate::build::{BuildOptions, build};
use crate::error::ModelError;

/// Bytes that one engine with one session needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Weights as stored in the checkpoint.
    pub weights: u64,
    /// KV cache per token of context.
    pub kv_per_token: u64,
    /// Convolution and recurrent state, whatever the context.
    pub state: u64,
    /// Scratch arena (the larger one of prefill and decode), tokens, control block and logits.
    pub scratch: u64,
    /// Tokens that [`MemoryEstimate::total`] counts.
    pub context: usize,
    /// Most tokens the configuration allows.
    pub max_context: usize,
}

impl MemoryEstimate {
    /// KV cache of the whole context.
    pub fn kv(&self) -> u64 {
        self.kv_per_token.saturating_mul(self.context as u64)
    }
    /// What is needed whatever the context.
    pub fn fixed(&self) -> u64 {
        self.weights.saturating_add(self.state).saturating_add(self.scratch)
    }
    /// Everything.
    pub fn total(&self) -> u64 {
        self.fixed().saturating_add(self.kv())
    }
    /// The longest context that fits into `bytes`, at most the configuration's; `None` when not
    /// even one token fits.
    pub fn max_context_for(&self, bytes: u64) -> Option<usize> {
        let left = bytes.checked_sub(self.fixed())?;
        let tokens = left.checked_div(self.kv_per_token).unwrap_or(u64::MAX);
        let tokens = usize::try_from(tokens).unwrap_or(usize::MAX).min(self.max_context);
        (tokens > 0).then_some(tokens)
    }
}

/// Estimates the memory of prefill and decode plans: `options.rows` are the rows of a prefill run,
/// `options.capacity` the context; `options.phase` says nothing here.
///
/// # Errors
/// As [`build`].
pub fn estimate_memory(
    config: &ModelConfig,
    manifest: &Manifest,
    options: &BuildOptions,
) -> Result<MemoryEstimate, ModelError> {
    let mut estimate = MemoryEstimate {
        weights: manifest.bytes(),
        kv_per_token: 0,
        state: 0,
        scratch: 0,
        context: options.capacity,
        max_context: config.max_position_embeddings,
    };
    let capacity = options.capacity.max(options.rows);
    for (phase, rows) in [(Phase::Prefill, options.rows), (Phase::Decode, 1)] {
        let options = BuildOptions { phase, rows, capacity, ..*options };
        let valid = ValidPlan::new(build(config, manifest, &options)?)?;
        let of_class = |class| {
            let buffers = valid.plan().buffers.iter().filter(|b| b.class == class);
            buffers.map(|b| b.bytes()).sum::<u64>()
        };
        estimate.kv_per_token = of_class(BufferClass::KvCache) / capacity as u64;
        estimate.state = of_class(BufferClass::State);
        let driving = of_class(BufferClass::Input) + of_class(BufferClass::Output);
        estimate.scratch = estimate.scratch.max(valid.arena_bytes() + driving);
    }
    Ok(estimate)
}
