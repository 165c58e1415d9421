//! From flags to a loaded model.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lily_checkpoint::config::ModelConfig;
use lily_checkpoint::manifest::Manifest;
use lily_checkpoint::pack::EXTENSION;
use lily_checkpoint::{Checkpoint, CheckpointError, describe};
use lily_device::{DeviceFacts, Progress};
use lily_engine::{Engine, EngineOptions, SamplingParams, available_memory};
use lily_hub::snapshot_of;
use lily_model::{BuildOptions, Fusions, MemoryEstimate, estimate_memory};
use lily_text::{ChatTemplate, RenderOptions, Tokenizer, normalise_messages};
use serde_json::{Map, Value, json};

use crate::args::{EngineArgs, ModelArgs, PlanningArgs, SamplingArgs, Switch};
use crate::demo;
use crate::device::{self, Chosen};
use crate::failure::usage;
use crate::hub::pull_hint;

/// Loads below this size end before a progress bar could be read.
const PROGRESS_BYTES: u64 = 256 << 20;

/// Tokens of context where none are asked for, as in `lily-engine`.
const DEFAULT_CONTEXT: usize = 32_768;

/// A model that can run; text only where the directory has tokenizer files.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) engine: Engine,
    pub(crate) device: DeviceFacts,
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
}

/// A rendered conversation.
pub(crate) struct ChatPrompt {
    pub(crate) tokens: Vec<u32>,
    /// The prompt ends inside a think block.
    pub(crate) starts_in_thinking: bool,
}

/// The model's name in requests and reports.
pub(crate) fn name(args: &ModelArgs) -> String {
    let Some(path) = args.dir() else { return demo::NAME.to_owned() };
    // `.` and `..` have no name of their own.
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // A snapshot in a cache is named after its commit.
    if let Some((repo, _)) = snapshot_of(&full) {
        return repo.to_string();
    }
    let name = if is_pack(&full) { full.file_stem() } else { full.file_name() };
    name.map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
}

pub(crate) fn open(args: &ModelArgs) -> Result<Checkpoint> {
    let checkpoint = match args.dir() {
        Some(dir) => Checkpoint::open(dir).map_err(|error| unopened(dir, error))?,
        None => Checkpoint::from_memory(demo::files())?,
    };
    for warning in checkpoint.warnings() {
        eprintln!("warning: {warning}");
    }
    Ok(checkpoint)
}

/// Refuses a path where no model can be, before a command reads anything else: of two mistakes, this
/// is the one to tell first.
pub(crate) fn check(args: &ModelArgs) -> Result<()> {
    let Some(dir) = args.dir() else { return Ok(()) };
    describe(dir).map(drop).map_err(|error| unopened(dir, error))
}

/// The one place that words a model that cannot be opened, so that every command words it alike. What
/// the library says of the path itself is said without naming the path a second time.
pub(crate) fn unopened(path: &Path, error: CheckpointError) -> anyhow::Error {
    let same = |named: &str| Path::new(named) == path;
    let unfinished = matches!(
        error,
        CheckpointError::MissingFile { .. }
            | CheckpointError::MissingShard { .. }
            | CheckpointError::NoWeights { .. }
    );
    let reason = match error {
        CheckpointError::Io { path: named, source } if same(&named) => match source.kind() {
            io::ErrorKind::NotFound => anyhow!("no such directory or file{}", pull_hint(path)),
            _ => source.into(),
        },
        CheckpointError::Pack { file, source } if same(&file) => source.into(),
        error @ (CheckpointError::NotACheckpoint { .. } | CheckpointError::Gguf { .. }) => {
            let text = error.to_string();
            let named = format!("{} is ", path.display());
            anyhow!("{}", text.strip_prefix(&named).unwrap_or(&text))
        }
        CheckpointError::NoWeights { .. } => anyhow!("model*.safetensors is missing"),
        other => other.into(),
    };
    let reason = match snapshot_of(path).filter(|_| unfinished) {
        Some((repo, commit)) => anyhow!("{reason:#}; `lily pull {repo}@{commit}` completes it"),
        None => reason,
    };
    let empty = path.as_os_str().is_empty();
    let shown = if empty { "\"\"".to_owned() } else { path.display().to_string() };
    reason.context(format!("cannot open model {shown}"))
}

/// Configuration and weights by shape. `headers` says whether the weight files' headers were read;
/// a directory without weight files is described from `config.json` alone.
pub(crate) struct Shapes {
    pub(crate) config: ModelConfig,
    pub(crate) manifest: Manifest,
    pub(crate) headers: bool,
}

pub(crate) fn shapes(args: &ModelArgs) -> Result<Shapes> {
    match args.dir() {
        Some(dir) if !has_weights(dir) => {
            let (config, manifest) = describe(dir).map_err(|error| unopened(dir, error))?;
            Ok(Shapes { config, manifest, headers: false })
        }
        _ => {
            let checkpoint = open(args)?;
            let (config, manifest) = (checkpoint.config().clone(), checkpoint.manifest().clone());
            Ok(Shapes { config, manifest, headers: true })
        }
    }
}

/// Whether a path names a packed checkpoint.
pub(crate) fn is_pack(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

fn has_weights(dir: &Path) -> bool {
    if is_pack(dir) {
        return true;
    }
    let Ok(entries) = fs::read_dir(dir) else { return false };
    entries.flatten().any(|e| e.path().extension().is_some_and(|ext| ext == "safetensors"))
}

/// A side file of the directory or of the demo model; weights are not looked at.
fn side_file(args: &ModelArgs, file: &str) -> Result<Option<Vec<u8>>> {
    let Some(dir) = args.dir() else {
        return Ok(demo::files().into_iter().find(|(n, _)| *n == file).map(|(_, b)| b.to_vec()));
    };
    lily_checkpoint::side_file(dir, file).map_err(|error| unopened(dir, error))
}

pub(crate) fn find_tokenizer(args: &ModelArgs) -> Result<Option<Tokenizer>> {
    let Some(json) = side_file(args, "tokenizer.json")? else { return Ok(None) };
    Ok(Some(Tokenizer::from_json(&json)?))
}

pub(crate) fn find_template(args: &ModelArgs) -> Result<Option<ChatTemplate>> {
    if let Some(bytes) = side_file(args, "chat_template.jinja")? {
        let source = String::from_utf8(bytes).context("chat_template.jinja is not UTF-8")?;
        return Ok(Some(ChatTemplate::new(&source)?));
    }
    // Older repositories keep the template in this file.
    let Some(bytes) = side_file(args, "tokenizer_config.json")? else { return Ok(None) };
    let config: Value =
        serde_json::from_slice(&bytes).context("tokenizer_config.json is not valid JSON")?;
    match config.get("chat_template").and_then(Value::as_str) {
        Some(source) => Ok(Some(ChatTemplate::new(source)?)),
        None => Ok(None),
    }
}

/// The tokenizer; an error where the directory has none.
pub(crate) fn tokenizer(args: &ModelArgs) -> Result<Tokenizer> {
    find_tokenizer(args)?.ok_or_else(|| lacking(args, no_tokenizer(args)))
}

/// The chat template; an error where the directory has none.
pub(crate) fn template(args: &ModelArgs) -> Result<ChatTemplate> {
    find_template(args)?.ok_or_else(|| lacking(args, no_template(args)))
}

/// A side file is missing: `message`, unless that is because the model is GGUF.
fn lacking(args: &ModelArgs, message: String) -> anyhow::Error {
    match args.dir().map(|dir| (dir, describe(dir))) {
        Some((dir, Err(error @ CheckpointError::Gguf { .. }))) => unopened(dir, error),
        _ => anyhow!(message),
    }
}

fn no_tokenizer(args: &ModelArgs) -> String {
    format!(
        "tokenizer.json is missing in {}; `lily generate --prompt-tokens IDS` works without one \
         if it prints --json or --tokens",
        place(args)
    )
}

fn no_template(args: &ModelArgs) -> String {
    format!(
        "chat_template.jinja (or chat_template in tokenizer_config.json) is missing in {}; \
         `lily generate` works without one",
        place(args)
    )
}

fn place(args: &ModelArgs) -> String {
    args.dir().map_or_else(|| demo::NAME.to_owned(), |dir| dir.display().to_string())
}

/// The side files that a command cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// None: ids go in, ids come out.
    Ids,
    /// The tokenizer.
    Text,
    /// The tokenizer and the chat template.
    Chat,
}

/// Loads text files and weights. Whatever can be refused is refused before the weights, which may
/// take a minute. `adjust` sees the configuration and may change the options that the flags give.
pub(crate) fn load(
    model: &ModelArgs,
    args: &EngineArgs,
    needs: Needs,
    adjust: impl FnOnce(EngineOptions, &ModelConfig) -> Result<EngineOptions>,
) -> Result<Loaded> {
    open_all(model, args, needs, adjust)?.load(&|_, _| {})
}

/// Who is told, besides the progress bar, that so many of so many bytes are loaded.
pub(crate) type Listener<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// A model whose files are open and whose machine is chosen, but whose weights are not loaded.
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) options: EngineOptions,
    checkpoint: Checkpoint,
    chosen: Chosen,
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
}
/// Everything of [`load`] but the loading.
pub(crate) fn open_all(
    model: &ModelArgs,
    args: &EngineArgs,
    needs: Needs,
    adjust: impl FnOnce(EngineOptions, &ModelConfig) -> Result<EngineOptions>,
) -> Result<Opened> {
    let options = flag_options(&args.planning)?;
    let checkpoint = open(model)?;
    context(checkpoint.config(), &args.planning)?;
    let options = adjust(options, checkpoint.config())?;
    let tokenizer = find_tokenizer(model)?;
    if needs != Needs::Ids && tokenizer.is_none() {
        bail!(no_tokenizer(model));
    }
    let template = find_template(model)?;
    if needs == Needs::Chat && template.is_none() {
        bail!(no_template(model));
    }
    let options = EngineOptions { token_limit: tokenizer.as_ref().map(Tokenizer::len), ..options };
    let chosen = device::choose(args)?;
    let memory_limit = options.memory_limit.or(chosen.memory_limit);
    let facts = chosen.device.facts();
    let options = EngineOptions { memory_limit, ..on_device(options, &args.planning, &facts) };
    Ok(Opened { name: name(model), options, checkpoint, chosen, tokenizer, template })
}

impl Opened {
    pub(crate) fn config(&self) -> &ModelConfig {
        self.checkpoint.config()
    }

    pub(crate) fn device(&self) -> DeviceFacts {
        self.chosen.device.facts()
    }

    /// Loads the weights; may be called again when what it gave is gone.
    pub(crate) fn engine(&self) -> Result<Engine> {
        self.engine_telling(&|_, _| {})
    }

    fn engine_telling(&self, listener: Listener<'_>) -> Result<Engine> {
        let (device, bar) = (&*self.chosen.device, LoadingBar { bar: OnceLock::new(), listener });
        Ok(Engine::load(&self.checkpoint, device, self.options.clone(), &bar)?)
    }

    /// Loads the weights and closes the files.
    pub(crate) fn load(self, listener: Listener<'_>) -> Result<Loaded> {
        let (engine, device) = (self.engine_telling(listener)?, self.device());
        let Opened { name, tokenizer, template, .. } = self;
        Ok(Loaded { name, engine, device, tokenizer, template })
    }

    /// What the model and one session of `context` tokens take.
    pub(crate) fn memory(&self, context: usize) -> Result<MemoryEstimate> {
        let vocab = self.config().vocab_size;
        let token_limit = self.options.token_limit.unwrap_or(vocab).min(vocab);
        let rows = self.options.prefill_chunk.min(context);
        let built = self.options.build(&self.device(), token_limit);
        let built = BuildOptions { capacity: context, rows, ..built };
        Ok(estimate_memory(self.config(), self.checkpoint.manifest(), &built)?)
    }

    /// What the machine has for models now; `None` where it does not say.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.options.memory_limit.or_else(available_memory)
    }
}

/// The engine options that the flags stand for on any device.
fn flag_options(args: &PlanningArgs) -> Result<EngineOptions> {
    Ok(EngineOptions { context: args.context, fusions: fusions(args)?, ..EngineOptions::default() })
}

/// The engine options that the flags stand for on this one.
pub(crate) fn engine_options(args: &PlanningArgs, device: &DeviceFacts) -> Result<EngineOptions> {
    Ok(on_device(flag_options(args)?, args, device))
}

/// With those whose default depends on the device.
fn on_device(options: EngineOptions, args: &PlanningArgs, device: &DeviceFacts) -> EngineOptions {
    let prefill_chunk = args.prefill_chunk(device);
    EngineOptions { prefill_chunk, kv: args.kv(device), ..options }
}

/// The context asked for, or else the engine's own default.
fn context(config: &ModelConfig, args: &PlanningArgs) -> Result<usize> {
    let most = config.max_position_embeddings;
    match args.context {
        Some(asked) if asked > most => {
            Err(usage(format!("--context {asked} is more than the model's {most} tokens")))
        }
        asked => Ok(asked.unwrap_or(most.min(DEFAULT_CONTEXT))),
    }
}

/// What the plans of a model are built with on the device that the flags name, which need not be
/// there. Rows and phase are those of a decode plan.
pub(crate) fn planned(
    model: &ModelArgs,
    args: &PlanningArgs,
    shapes: &Shapes,
) -> Result<(DeviceFacts, BuildOptions)> {
    let capacity = context(&shapes.config, args)?;
    let facts = device::planned(args)?;
    // As when it is loaded: only where the device chooses tokens does their number count.
    let vocab = shapes.config.vocab_size;
    let token_limit = match facts.token_slot {
        true => find_tokenizer(model)?.map_or(vocab, |tokenizer| tokenizer.len().min(vocab)),
        false => vocab,
    };
    let options = engine_options(args, &facts)?.build(&facts, token_limit);
    Ok((facts, BuildOptions { capacity, ..options }))
}

/// What a model and one session take on a device, as the flags plan it.
pub(crate) fn estimate(
    config: &ModelConfig,
    manifest: &Manifest,
    args: &PlanningArgs,
    device: &DeviceFacts,
) -> Result<MemoryEstimate> {
    let capacity = context(config, args)?;
    let rows = args.prefill_chunk(device).min(capacity);
    let options = engine_options(args, device)?.build(device, config.vocab_size);
    Ok(estimate_memory(config, manifest, &BuildOptions { capacity, rows, ..options })?)
}

/// The fusions asked for.
fn fusions(args: &PlanningArgs) -> Result<Option<Fusions>> {
    let Some(list) = &args.fuse else { return Ok(None) };
    let fusions = list.parse::<Fusions>().context("--fuse");
    fusions.map(Some).map_err(|e| crate::failure::UsageError(e).into())
}

/// The checkpoint's sampling defaults with the flags on top.
pub(crate) fn sampling(args: &SamplingArgs, defaults: SamplingParams) -> SamplingParams {
    let SamplingArgs {
        temperature,
        top_k,
        top_p,
        min_p,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        logit_bias,
        seed,
        max_tokens: _, // a limit of the generation, not of sampling
    } = args;
    SamplingParams {
        temperature: temperature.unwrap_or(defaults.temperature),
        top_k: top_k.unwrap_or(defaults.top_k),
        top_p: top_p.unwrap_or(defaults.top_p),
        min_p: min_p.unwrap_or(defaults.min_p),
        presence_penalty: presence_penalty.unwrap_or(defaults.presence_penalty),
        frequency_penalty: frequency_penalty.unwrap_or(defaults.frequency_penalty),
        repetition_penalty: repetition_penalty.unwrap_or(defaults.repetition_penalty),
        logit_bias: logit_bias.clone(),
        seed: *seed,
    }
}

impl Loaded {
    /// The tokenizer; there is one unless the command needs none.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().context("the model has no tokenizer")
    }

    /// Renders and tokenises a conversation up to the point where the answer begins.
    pub(crate) fn chat_prompt(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        think: Switch,
    ) -> Result<ChatPrompt> {
        let template = self.template.as_ref().context("the model has no chat template")?;
        let mut kwargs = Map::new();
        kwargs.insert("enable_thinking".into(), json!(think == Switch::On));
        let messages = normalise_messages(messages)?;
        let text = template.render(&RenderOptions {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            kwargs: &kwargs,
        })?;
        let tokens = self.tokenizer()?.encode(&text)?;
        // What the template wrote counts, not the flag: a template may know no thinking.
        Ok(ChatPrompt { tokens, starts_in_thinking: text.trim_end().ends_with("<think>") })
    }
}

/// A bar on a terminal while a large model loads.
struct LoadingBar<'a> {
    bar: OnceLock<ProgressBar>,
    listener: Listener<'a>,
}

impl Progress for LoadingBar<'_> {
    fn advance(&self, done: u64, total: u64) {
        (self.listener)(done, total);
        if total < PROGRESS_BYTES || !io::stderr().is_terminal() {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let style = "loading {bar:32} {decimal_bytes} of {decimal_total_bytes} \
                         ({decimal_bytes_per_sec})";
            let style = ProgressStyle::with_template(style).expect("the template is a constant");
            ProgressBar::new(total).with_style(style)
        });
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}
