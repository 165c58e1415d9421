//! One flag struct per command.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::access::{AccessArgs, LoadArgs, LogArgs};
use super::shared::{
    EngineArgs, ModelArgs, PlanningArgs, RuleArgs, SamplingArgs, TokenIds, positive, stop,
    token_ids,
};

/// Ask one question, or talk in a session
///
/// With a question (or text on standard input) the answer is streamed to standard output; without
/// one, and on a terminal, a session with history and line editing starts. The model's thinking is
/// shown dimmed on a terminal and left out elsewhere. Ctrl-C stops an answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily chat \"What is the capital of Japan?\"
  lily chat --model-path ~/models/Qwen3.6-35B-A3B-4bit --think off
  lily chat --system \"Answer in one word.\" \"What is the opposite of hot?\"
  echo \"What is 12 + 30?\" | lily chat
  lily chat --regex '[0-9]+' --thinking-budget 200 \"What is 12 + 30?\"

In a session: /help lists the commands, such as /reset, /think on|off, /system TEXT, /quit.")]
pub(crate) struct ChatArgs {
    /// The question; several words need no quotes
    #[arg(value_name = "QUESTION")]
    pub(crate) question: Vec<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Whether the model thinks before it answers
    #[arg(long, value_name = "WHEN", default_value = "on", ignore_case = true)]
    pub(crate) think: Switch,
    /// End the answer when this text appears; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = stop)]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    /// Do not read or keep the session's input history (lily/history in $XDG_STATE_HOME, by default
    /// ~/.local/state)
    #[arg(long)]
    pub(crate) no_history: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Serve the OpenAI-compatible HTTP API, and Anthropic's
///
/// Routes: POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/responses/input_tokens,
/// /v1/messages, /v1/messages/count_tokens, /tokenize and /detokenize; GET /v1/models,
/// /v1/models/NAME, /openapi.json (all of this for programs), / (a chat page), /health and /metrics
/// (Prometheus). While the model loads, only the last two are answered. Ctrl-C or SIGTERM ends the
/// server after the running requests are done. Warnings and errors go to standard error; LILY_LOG (off, error, warn, info,
/// debug) sets how much is written where --verbose is not given.
///
/// Only this machine can use the server unless --host says otherwise, which needs a key (or
/// --allow-no-key), and only web pages that --cors-origin names.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily serve                                     the demo model on port 8000
  lily --model-path ~/models/Qwen3.6-35B-A3B-4bit --port 8000
  LILY_API_KEY=secret lily serve --host 0.0.0.0
  lily serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem
  lily serve --queue 64 --request-timeout 600 --verbose --log-format json

  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of Japan?\"}]}'")]
pub(crate) struct ServeArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, default_value_t = 8000, allow_negative_numbers = true)]
    pub(crate) port: u16,
    /// Name of the model in requests and answers [default: that of the directory or .lily file]
    #[arg(long, value_name = "NAME")]
    pub(crate) model_name: Option<String>,
    /// Whether the model thinks when a request does not say
    #[arg(long, value_name = "WHEN", default_value = "on", ignore_case = true)]
    pub(crate) think: Switch,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Continue a text or a list of token ids, without chat template
///
/// Without TEXT and its like, the text is read from standard input. The demo model knows nothing but
/// its chat format, so give it that: see the examples. With --prompt-tokens and --json (or --tokens)
/// the directory needs no tokenizer files; `text` is null then. Ctrl-C ends the text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily generate $'<|im_start|>user\\nWhat is 2 + 3?<|im_end|>\\n<|im_start|>assistant\\n'
  lily render --request request.json | lily generate --max-tokens 64
  lily generate --model-path DIR --prompt-tokens 1,2,3 --max-tokens 32 --temperature 0 --json
  lily generate --file prompt.txt --tokens
  lily generate \"The answer: \" --regex '[0-9]{3}'

--json prints one object: tokens, text, finish_reason (stop, length, interrupted),
prompt_tokens, and the rates prefill_tokens_per_second and decode_tokens_per_second.")]
pub(crate) struct GenerateArgs {
    /// The text to continue
    #[arg(value_name = "TEXT", group = "input")]
    pub(crate) text: Option<String>,
    /// The text to continue, as a flag
    #[arg(long, value_name = "TEXT", group = "input")]
    pub(crate) prompt: Option<String>,
    /// Continue the text in this file; `-` is standard input
    #[arg(long, value_name = "FILE", group = "input")]
    pub(crate) file: Option<PathBuf>,
    /// Continue these token ids, separated by commas; `tokenize` prints such a list
    #[arg(long, value_name = "IDS", group = "input", allow_negative_numbers = true, value_parser = token_ids)]
    pub(crate) prompt_tokens: Option<TokenIds>,
    /// End when this text appears; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = stop)]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    /// Do not end at the checkpoint's stop tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print token ids as one JSON array instead of text
    #[arg(long, conflicts_with = "json")]
    pub(crate) tokens: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// Gives the argument `id` of a shared group the help that a command needs, and keeps its place.
pub(super) fn with_help(arg: clap::Arg, id: &str, help: &'static str) -> clap::Arg {
    if arg.get_id() == id { arg.help(help).long_help(help) } else { arg }
}

/// Help of `--device` where no device is opened.
const PLANNED_DEVICE: &str = "Machine to plan for; none is opened, and auto is the processor";

/// Show what a checkpoint holds and what memory it needs
///
/// Reads headers only, no weights. A directory with nothing but config.json works too.
#[derive(Debug, Args)]
#[command(mut_args(|arg| with_help(arg, "device", PLANNED_DEVICE)))]
#[command(after_help = "\
Examples:
  lily inspect
  lily inspect --model-path ~/models/Qwen3.6-35B-A3B-4bit --context 32768
  lily inspect --model-path DIR --json")]
pub(crate) struct InspectArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) planning: PlanningArgs,
}

/// Print the execution plan: steps, stages, memory
///
/// Needs config.json alone, and no device: the plan for a GPU is printed on any machine.
#[derive(Debug, Args)]
#[command(mut_args(|arg| with_help(arg, "device", PLANNED_DEVICE)))]
#[command(after_help = "\
Examples:
  lily plan --phase decode
  lily plan --model-path DIR --phase decode --json
  lily plan --phase prefill --rows 512 --fuse none
  lily plan --device metal

--json prints one object with device, fusions, steps, stages, weight_bytes, state_bytes, kv_bytes,
kv_bytes_per_token, flops, arena_bytes, the steps of each stage by name, and the work of each step:
bytes of weights, state, KV cache and activations, and operations.")]
pub(crate) struct PlanArgs {
    /// What the plan is for
    #[arg(long, default_value = "decode", ignore_case = true)]
    pub(crate) phase: PlanPhase,
    /// Token rows [default: 1 for decode, --prefill-chunk otherwise]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) rows: Option<usize>,
    /// Tokens before the rows, which the figures of --json are for
    #[arg(long, value_name = "N", default_value_t = 0, requires = "json")]
    pub(crate) position: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) planning: PlanningArgs,
}

/// Phase of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanPhase {
    /// A chunk of prompt tokens, logits of the last row
    Prefill,
    /// One token
    Decode,
    /// A chunk of tokens, logits of every row
    Score,
}

/// Measure quality: perplexity, agreement with reference logits, exact answers
///
/// Prints one JSON object. Over a text: perplexity and how often the most probable token is the
/// next one. With --reference: the model is teacher-forced over `ids` (of any integer type) and
/// compared with `logits` (m rows of vocab values; F32, F16 or BF16) of the last m positions; the directory
/// needs no tokenizer files. With --conversations: every conversation is answered greedily and
/// counts when the whole text after the thinking equals the wanted one. A line holds `messages` and
/// `want`, and may hold `tools`, `think` (true by default) and `k` (a kind to count by).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily eval book.txt --last 192
  lily eval --model-path DIR --reference logits.safetensors
  lily eval --conversations models/demo/heldout.jsonl.gz --count 200

A line of a --conversations file:
  {\"messages\": [{\"role\": \"user\", \"content\": \"What is 2 + 3?\"}], \"want\": \"2 + 3 = 5.\"}

Fields with --reference: positions, max_abs_diff, rms_diff, perplexity, reference_perplexity,
top1_agreement. The perplexities cover the positions whose next token is among the ids: the last
one has none.")]
pub(crate) struct EvalArgs {
    /// Text file to score; `-` is standard input
    #[arg(value_name = "FILE", group = "what")]
    pub(crate) text: Option<PathBuf>,
    /// Safetensors file with `ids` and `logits`
    #[arg(long, value_name = "FILE", group = "what")]
    pub(crate) reference: Option<PathBuf>,
    /// JSON lines with `messages` and `want`; may be gzipped (.gz)
    #[arg(long, value_name = "FILE", group = "what")]
    pub(crate) conversations: Option<PathBuf>,
    /// Score only the last N positions of the text
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive, requires = "text")]
    pub(crate) last: Option<usize>,
    /// Ask only N conversations, evenly spread over the file
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive, requires = "conversations")]
    pub(crate) count: Option<usize>,
    /// Print this many wrong answers to standard error
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true,
        requires = "conversations"
    )]
    pub(crate) show: usize,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Measure prefill and decode speed, also beside another engine
///
/// Prompt token i is ((i * 2654435761) mod 2^32) mod vocab; greedy, batch 1. For each length: one
/// warm-up of exactly the same shape, then --rounds times one prefill timed to the first token and
/// the decode steps; medians are reported. Every round must generate the same tokens, otherwise
/// nothing is reported and the exit code is 1.
///
/// With --compare the other engine is measured by the same contract in the same run: for each length
/// and round the two take turns, and swap who goes first. Both stay loaded where memory permits.
/// mlx-lm runs in a Python with that package and reads the same checkpoint directory; llama.cpp is
/// measured by its llama-bench on a GGUF file, which warms up by itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily bench
  lily bench --model-path DIR --lengths 256,1024,4096 --json > bench.json
  lily bench --model-path DIR --compare mlx-lm --html report.html
  lily bench --model-path DIR --compare mlx-lm --peer-command ~/venv/bin/python
  lily bench --model-path DIR --compare llama.cpp --peer-model model.gguf")]
pub(crate) struct BenchArgs {
    /// Prompt lengths in tokens [default: 256,512; with --compare 256,512,1024 and so on to 131072, as
    /// far as the model and the memory allow]
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_negative_numbers = true, value_parser = positive)]
    pub(crate) lengths: Option<Vec<usize>>,
    /// Decode steps after the first token
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true, value_parser = positive)]
    pub(crate) steps: usize,
    /// Timed rounds for each length
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, value_parser = positive)]
    pub(crate) rounds: usize,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with table and plots too; replaces the file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Measure this engine in turns with lily
    #[arg(long, value_name = "PEER", ignore_case = true)]
    pub(crate) compare: Option<PeerKind>,
    /// The peer's model: a GGUF file for llama.cpp; a directory for mlx-lm [default: --model-path]
    #[arg(long, value_name = "PATH", requires = "compare")]
    pub(crate) peer_model: Option<PathBuf>,
    /// The program that runs the peer [default: python3 for mlx-lm, llama-bench for llama.cpp]
    #[arg(long, value_name = "PROGRAM", requires = "compare")]
    pub(crate) peer_command: Option<OsString>,
    /// An argument for that program, before those that lily gives it; may be repeated, as in
    /// --peer-arg=-ub --peer-arg=2048 for llama-bench
    #[arg(long, value_name = "ARG", requires = "compare", allow_hyphen_values = true)]
    pub(crate) peer_arg: Vec<OsString>,
    /// Seconds to wait for one answer of the peer
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, requires = "compare", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) peer_timeout: usize,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// An engine to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerKind {
    /// Apple's mlx-lm, in Python
    MlxLm,
    /// llama.cpp, by its llama-bench
    #[value(name = "llama.cpp", alias = "llama-cpp")]
    LlamaCpp,
}

/// Print the token ids of a text as one JSON array
///
/// Special tokens in the text are recognised; nothing is added. Without TEXT and --file, the text is
/// read from standard input.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily tokenize \"Hello world\"
  lily tokenize --model-path DIR --file README.md")]
pub(crate) struct TokenizeArgs {
    /// The text
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Take the text from this file, byte for byte; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// Print the prompt that a chat request becomes
///
/// FILE holds an OpenAI chat completion request; messages, tools and chat_template_kwargs count. An
/// error that the chat template raises, or a message it cannot take, ends with exit code 2.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily render --request request.json
  lily render --model-path DIR --request request.json")]
pub(crate) struct RenderArgs {
    /// The request body; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) request: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// Write a checkpoint of random weights for tests and measurements
///
/// The shape is that of Qwen3.6-35B-A3B cut to --layers layers, in the MLX 4-bit format (group 64,
/// 8-bit gates), with weights from a fixed random sequence: the same arguments write the same bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily make-checkpoint --layers 4 random-4")]
pub(crate) struct MakeCheckpointArgs {
    /// Accepted for scripts that spell it out: the weights are random without it too
    #[arg(long)]
    pub(crate) random: bool,
    /// Number of layers; every fourth one is full attention
    #[arg(long, value_name = "N", default_value_t = 4, allow_negative_numbers = true, value_parser = positive)]
    pub(crate) layers: usize,
    /// Directory to create; nothing is replaced
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,
}

/// Write a checkpoint as one checksummed .lily file, or check one
///
/// Weights are not compared with their checksums when a .lily file is loaded: run --check after
/// copying or downloading one. The file appears under its name when it is whole; Ctrl-C removes what
/// was written until then.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily pack --model-path ~/models/Qwen3.6-35B-A3B-4bit qwen3.6-35b.lily
  lily pack --check qwen3.6-35b.lily
  lily chat --model-path qwen3.6-35b.lily")]
pub(crate) struct PackArgs {
    /// The .lily file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Compare the whole file, weights and embedded files, with its checksums; write nothing, and look
    /// at no other model
    // No conflict with --model-path: LILY_MODEL_PATH would make it one.
    #[arg(long, conflicts_with = "force")]
    pub(crate) check: bool,
    /// Replace the file where it exists
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// Help of `--model-path` of the one command that has no use for the demo model.
const TRIED_ON: &str = "Checkpoint directory (MLX affine or Hugging Face layout) or .lily file; \
    default: random weights with the widths of Qwen3.6-35B-A3B";

/// Check this machine: facts, every kernel against portable code, speed
///
/// The kernels of a GPU are compared with the processor, those of the processor with portable code.
/// With the published 4-bit checkpoint, its known continuation is compared too. Exit code 1 when a
/// check fails, or when the device that --device names cannot be used.
#[derive(Debug, Args)]
#[command(mut_args(|arg| with_help(arg, "model_path", TRIED_ON)))]
#[command(after_help = "\
Examples:
  lily doctor
  lily doctor --device cuda --json
  lily doctor --model-path ~/models/Qwen3.6-35B-A3B-4bit")]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Print a shell's completion script
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily completions bash > ~/.local/share/bash-completion/completions/lily
  lily completions zsh > ~/.zfunc/_lily")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(ignore_case = true)]
    pub(crate) shell: clap_complete::Shell,
}
