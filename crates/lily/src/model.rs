//! From flags to a loaded model.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lily_checkpoint::config::ModelConfig;
use lily_checkpoint::manifest::Manifest;
use lily_checkpoint::pack::EXTENSION;
use lily_checkpoint::{Checkpoint, CheckpointError, describe};
use lily_device::{DeviceFacts, Progress};
use lily_engine::{Engine, EngineOptions, SamplingParams};
use lily_model::{BuildOptions, Fusions};
use lily_plan::buffer::Elem;
use lily_text::{ChatTemplate, RenderOptions, Tokenizer, normalise_messages};
use serde_json::{Map, Value, json};

use crate::args::{EngineArgs, KvCache, ModelArgs, PlanningArgs, SamplingArgs, Switch};
use crate::demo;
use crate::device::{self, Chosen};
use crate::failure::usage;

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
    let name = if is_pack(&full) { full.file_stem() } else { full.file_name() };
    name.map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
}

pub(crate) fn open(args: &ModelArgs) -> Result<Checkpoint> {
    let checkpoint = match args.dir() {
        Some(dir) => {
            check_directory(dir)?;
            match Checkpoint::open(dir) {
                // Its own message would say the path a second time.
                Err(CheckpointError::NoWeights { .. }) => {
                    bail!("{}: model*.safetensors is missing", cannot_open(dir))
                }
                opened => opened.with_context(|| cannot_open(dir))?,
            }
        }
        None => Checkpoint::from_memory(demo::files())?,
    };
    for warning in checkpoint.warnings() {
        eprintln!("warning: {warning}");
    }
    Ok(checkpoint)
}

fn cannot_open(dir: &Path) -> String {
    let shown = if dir.as_os_str().is_empty() { "\"\"".into() } else { dir.display().to_string() };
    format!("cannot open model {shown}")
}

/// The one place that words a bad path, so that every command words it alike.
fn check_directory(dir: &Path) -> Result<()> {
    match fs::metadata(dir) {
        Ok(facts) if facts.is_dir() || is_pack(dir) => Ok(()),
        Ok(_) => bail!("{}: neither a directory nor a .lily file", cannot_open(dir)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            bail!("{}: no such directory or file", cannot_open(dir))
        }
        Err(e) => Err(e).with_context(|| cannot_open(dir)),
    }
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
            check_directory(dir)?;
            let (config, manifest) = describe(dir).with_context(|| cannot_open(dir))?;
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
fn is_pack(path: &Path) -> bool {
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
    check_directory(dir)?;
    if is_pack(dir) {
        return lily_checkpoint::side_file(dir, file).with_context(|| cannot_open(dir));
    }
    let path = dir.join(file);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
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
    find_tokenizer(args)?.with_context(|| no_tokenizer(args))
}

/// The chat template; an error where the directory has none.
pub(crate) fn template(args: &ModelArgs) -> Result<ChatTemplate> {
    find_template(args)?.with_context(|| no_template(args))
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
    let options = engine_options(&args.planning)?;
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
    let Chosen { device, memory_limit } = device::choose(args)?;
    let options = EngineOptions { memory_limit: options.memory_limit.or(memory_limit), ..options };
    let engine = Engine::load(&checkpoint, &*device, options, &LoadingBar::default())?;
    Ok(Loaded { name: name(model), engine, device: device.facts(), tokenizer, template })
}

/// The engine options that the flags stand for.
pub(crate) fn engine_options(args: &PlanningArgs) -> Result<EngineOptions> {
    Ok(EngineOptions {
        context: args.context,
        prefill_chunk: args.prefill_chunk,
        kv: kv_elem(args.kv_cache),
        fusions: fusions(args)?,
        ..EngineOptions::default()
    })
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
    let options = engine_options(args)?.build(&facts, token_limit);
    Ok((facts, BuildOptions { capacity, ..options }))
}

fn kv_elem(kind: KvCache) -> Elem {
    match kind {
        KvCache::F32 => Elem::F32,
        KvCache::Bf16 => Elem::Bf16,
    }
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
#[derive(Default)]
struct LoadingBar {
    bar: OnceLock<ProgressBar>,
}

impl Progress for LoadingBar {
    fn advance(&self, done: u64, total: u64) {
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
