//! A loaded model.

use std::sync::Arc;

use lily_checkpoint::Checkpoint;
use lily_checkpoint::config::{GenerationConfig, ModelConfig};
use lily_checkpoint::manifest::Manifest;
use lily_device::{Device, DeviceError, DeviceFacts, LoadedModel, PlanId, Progress};
use lily_model::{BuildOptions, Fusions, MemoryEstimate, build, estimate_memory};
use lily_plan::ValidPlan;
use lily_plan::buffer::{BufferClass, Elem};
use lily_plan::plan::Phase;

use crate::error::EngineError;
use crate::generation::GenerateOptions;
use crate::memory::available_memory;
use crate::sampling::SamplingParams;
use crate::session::Session;

/// Context where none is asked for, in tokens; the KV cache is reserved for all of it.
const DEFAULT_CONTEXT: usize = 32_768;

/// Rows of a score run: each needs scratch for a whole row of logits.
const SCORE_ROWS: usize = 64;
/// Rows of the plan for short chunks, where a prefill run takes more.
const SHORT_ROWS: usize = 512;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Tokens a session holds; `None`: the model's maximum, at most 32768.
    pub context: Option<usize>,
    /// Tokens of one prefill run at most.
    pub prefill_chunk: usize,
    /// Element type of the KV cache: `F32` or `Bf16`.
    pub kv: Elem,
    /// Fusions the plans use; `None`: those that pay on the device.
    pub fusions: Option<Fusions>,
    /// Tokens that can be sampled (the tokenizer's size); padded vocabulary rows above it never are.
    /// `None`: all rows of the head.
    pub token_limit: Option<usize>,
    /// Bytes that weights, one session and scratch may take; `None`: what the system has available.
    pub memory_limit: Option<u64>,
    /// Whether to prepare [`Session::score`], which needs scratch for several rows of logits.
    pub score: bool,
}

impl EngineOptions {
    /// What plans for a device are built with; phase, rows and context are still to come.
    /// `token_limit` is that of the options, or else the vocabulary's size.
    pub fn build(&self, facts: &DeviceFacts, token_limit: usize) -> BuildOptions {
        let by_device = || if facts.kind == "cpu" { Fusions::cpu() } else { Fusions::all() };
        BuildOptions {
            kv: self.kv,
            fusions: self.fusions.unwrap_or_else(by_device),
            activations: facts.activations,
            token_slot: facts.token_slot,
            token_limit: Some(token_limit),
            ..BuildOptions::new(Phase::Decode, 1, 1)
        }
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            context: None,
            prefill_chunk: 512,
            kv: Elem::F32,
            fusions: None,
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
    pub(crate) memory: MemoryEstimate,
    /// Whether the device chooses greedy tokens itself.
    pub(crate) token_slot: bool,
}

/// Prepared plans and the rows they were built for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plans {
    pub(crate) decode: PlanId,
    pub(crate) prefill: (PlanId, usize),
    /// For chunks that are much shorter than that: a plan's kernels are chosen for its rows.
    pub(crate) short_prefill: Option<(PlanId, usize)>,
    pub(crate) score: Option<(PlanId, usize)>,
}

impl Plans {
    /// The plan that runs `tokens` tokens, at most as many as a prefill run takes.
    pub(crate) fn for_tokens(&self, tokens: usize) -> PlanId {
        match self.short_prefill {
            _ if tokens == 1 => self.decode,
            Some((plan, rows)) if tokens <= rows => plan,
            _ => self.prefill.0,
        }
    }
}

impl Engine {
    /// Checks that the model fits, loads its weights and prepares its plans.
    ///
    /// # Errors
    /// [`EngineError::Options`] for an option out of range, [`EngineError::Defaults`] for invalid
    /// sampling defaults, [`EngineError::Model`] for weights that do not fit the configuration,
    /// [`EngineError::Memory`] when memory would not suffice, all before anything is loaded;
    /// [`EngineError::Device`] when loading fails.
    pub fn load(
        checkpoint: &Checkpoint,
        device: &dyn Device,
        options: EngineOptions,
        progress: &dyn Progress,
    ) -> Result<Engine, EngineError> {
        let source = Source {
            config: checkpoint.config(),
            generation: checkpoint.generation(),
            manifest: checkpoint.manifest(),
        };
        let facts = device.facts();
        Engine::load_from(&source, &options, &facts, || device.load(checkpoint, progress))
    }

    /// [`Engine::load`] with the device's part as a function.
    pub(crate) fn load_from(
        source: &Source<'_>,
        options: &EngineOptions,
        facts: &DeviceFacts,
        load: impl FnOnce() -> Result<Box<dyn LoadedModel>, DeviceError>,
    ) -> Result<Engine, EngineError> {
        let context = context(source.config, options)?;
        let token_limit = token_limit(source.config, options)?;
        let default_sampling = SamplingParams::from_generation_config(source.generation);
        default_sampling.validate(token_limit).map_err(EngineError::Defaults)?;

        let rows = rows(options, context)?;
        let built = BuildOptions { capacity: context, ..options.build(facts, token_limit) };
        let plan = |phase, rows| source.plan(&BuildOptions { phase, rows, ..built });
        let decode = plan(Phase::Decode, 1)?;
        let prefill = plan(Phase::Prefill, rows)?;
        let short = (rows > SHORT_ROWS).then(|| plan(Phase::Prefill, SHORT_ROWS)).transpose()?;
        let score_rows = SCORE_ROWS.min(context);
        let score = options.score.then(|| plan(Phase::Score, score_rows)).transpose()?;
        let others = short.iter().chain(&score);
        let memory = source.memory(&BuildOptions { rows, ..built }, others)?;
        require_memory(&memory, options.memory_limit.or_else(available_memory))?;

        let mut model = load()?;
        let plans = Plans {
            decode: model.prepare(decode)?,
            prefill: (model.prepare(prefill)?, rows),
            short_prefill: match short {
                Some(plan) => Some((model.prepare(plan)?, SHORT_ROWS)),
                None => None,
            },
            score: match score {
                Some(plan) => Some((model.prepare(plan)?, score_rows)),
                None => None,
            },
        };
        Ok(Engine {
            shared: Arc::new(Shared {
                model,
                plans,
                config: source.config.clone(),
                context,
                token_limit,
                stop_tokens: source.stop_tokens().to_vec(),
                default_sampling,
                memory,
                token_slot: facts.token_slot,
            }),
        })
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
            prompt_logprobs: false,
        }
    }
    /// Memory of the model and one session.
    pub fn memory(&self) -> MemoryEstimate {
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

/// What a checkpoint says about its model.
pub(crate) struct Source<'c> {
    pub(crate) config: &'c ModelConfig,
    pub(crate) generation: &'c GenerationConfig,
    pub(crate) manifest: &'c Manifest,
}

impl Source<'_> {
    fn plan(&self, options: &BuildOptions) -> Result<ValidPlan, EngineError> {
        Ok(ValidPlan::new(build(self.config, self.manifest, options)?)?)
    }

    fn memory<'p>(
        &self,
        options: &BuildOptions,
        others: impl Iterator<Item = &'p ValidPlan>,
    ) -> Result<MemoryEstimate, EngineError> {
        let mut memory = estimate_memory(self.config, self.manifest, options)?;
        for valid in others {
            let driving = |class| matches!(class, BufferClass::Input | BufferClass::Output);
            let buffers = valid.plan().buffers.iter().filter(|b| driving(b.class));
            let scratch = valid.arena_bytes() + buffers.map(|b| b.bytes()).sum::<u64>();
            memory.scratch = memory.scratch.max(scratch);
        }
        Ok(memory)
    }

    fn stop_tokens(&self) -> &[u32] {
        if self.generation.eos_token_ids.is_empty() {
            &self.config.eos_token_ids
        } else {
            &self.generation.eos_token_ids
        }
    }
}

fn refuse<T>(
    field: &'static str,
    expected: impl Into<String>,
    found: usize,
) -> Result<T, EngineError> {
    Err(EngineError::Options { field, expected: expected.into(), found: found.to_string() })
}

fn context(config: &ModelConfig, options: &EngineOptions) -> Result<usize, EngineError> {
    let max = config.max_position_embeddings;
    let context = options.context.unwrap_or(max.min(DEFAULT_CONTEXT));
    if !(1..=max).contains(&context) {
        return refuse("context", format!("between 1 and the model's {max}"), context);
    }
    Ok(context)
}

fn token_limit(config: &ModelConfig, options: &EngineOptions) -> Result<usize, EngineError> {
    match options.token_limit {
        Some(0) => refuse("token_limit", "at least 1", 0),
        // A tokenizer may know more tokens than the model has rows.
        limit => Ok(limit.unwrap_or(usize::MAX).min(config.vocab_size)),
    }
}

/// Rows of a prefill run.
fn rows(options: &EngineOptions, context: usize) -> Result<usize, EngineError> {
    match options.prefill_chunk {
        0 => refuse("prefill_chunk", "at least 1", 0),
        rows => Ok(rows.min(context)),
    }
}

fn require_memory(memory: &MemoryEstimate, available: Option<u64>) -> Result<(), EngineError> {
    let need = memory.total();
    match available {
        Some(available) if need > available => Err(EngineError::Memory {
            need,
            available,
            context: memory.context,
            fitting_context: memory.max_context_for(available),
        }),
        _ => Ok(()),
    }
}
