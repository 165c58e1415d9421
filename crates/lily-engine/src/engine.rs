//! A loaded model.

use std::sync::Arc;

use lily_checkpoint::Checkpoint;
use lily_checkpoint::config::ModelConfig;
use lily_device::{Device, LoadedModel, PlanId, Progress};
use lily_plan::buffer::Elem;

use crate::error::EngineError;
use crate::generation::GenerateOptions;
use crate::memory::MemoryUse;
use crate::sampling::SamplingParams;
use crate::session::Session;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Tokens a session holds; `None`: the model's maximum, at most 32768.
    pub context: Option<usize>,
    /// Tokens of one prefill run.
    pub prefill_chunk: usize,
    /// Element type of the KV cache: `F32` or `Bf16`.
    pub kv: Elem,
    /// Tokens that can be sampled (the tokenizer's size); padded vocabulary rows above it never are.
    /// `None`: all rows of the head.
    pub token_limit: Option<usize>,
    /// Bytes that weights, one session and scratch may take; `None`: what the system has available.
    pub memory_limit: Option<u64>,
    /// Whether to prepare [`Session::score`], which needs scratch for several rows of logits.
    pub score: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            context: None,
            prefill_chunk: 512,
            kv: Elem::F32,
            token_limit: None,
            memory_limit: None,
            score: false,
        }
    }
}

/// A loaded model; clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// What sessions share.
pub(crate) struct Shared {
    pub(crate) model: Box<dyn LoadedModel>,
    pub(crate) plans: Plans,
    pub(crate) config: ModelConfig,
    pub(crate) context: usize,
    pub(crate) token_limit: usize,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) default_sampling: SamplingParams,
    pub(crate) memory: MemoryUse,
}

/// Prepared plans and the rows they were built for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plans {
    pub(crate) decode: PlanId,
    pub(crate) prefill: (PlanId, usize),
    pub(crate) score: Option<(PlanId, usize)>,
}

impl Engine {
    /// Checks that the model fits, loads its weights and prepares its plans.
    ///
    /// # Errors
    /// [`EngineError::Options`] for an option out of range, [`EngineError::Memory`] before anything
    /// is loaded when memory would not suffice, [`EngineError::Device`] when loading fails.
    pub fn load(
        _checkpoint: &Checkpoint,
        _device: &dyn Device,
        _options: EngineOptions,
        _progress: &dyn Progress,
    ) -> Result<Engine, EngineError> {
        todo!("waits for lily_model::build")
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.shared.config
    }
    /// Tokens a session holds.
    pub fn context(&self) -> usize {
        self.shared.context
    }
    /// Tokens that can be sampled: ids below this.
    pub fn token_limit(&self) -> usize {
        self.shared.token_limit
    }
    /// Tokens that end an answer: those of `generation_config.json`, else those of `config.json`.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.shared.stop_tokens
    }
    /// Sampling as `generation_config.json` recommends it.
    pub fn default_sampling(&self) -> SamplingParams {
        self.shared.default_sampling.clone()
    }
    /// Default sampling and stop tokens, no length limit but the context, no log-probabilities.
    pub fn default_options(&self) -> GenerateOptions {
        GenerateOptions {
            sampling: self.default_sampling(),
            max_tokens: None,
            stop_tokens: self.stop_tokens().to_vec(),
            logprobs: None,
        }
    }
    /// Memory of the model and one session.
    pub fn memory(&self) -> MemoryUse {
        self.shared.memory
    }

    /// An empty timeline with memory of its own.
    ///
    /// # Errors
    /// [`EngineError::Device`] when memory runs out.
    pub fn new_session(&self) -> Result<Session, EngineError> {
        Session::new(Arc::clone(&self.shared))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("model_type", &self.shared.config.model_type)
            .field("context", &self.shared.context)
            .field("memory", &self.shared.memory)
            .finish_non_exhaustive()
    }
}
