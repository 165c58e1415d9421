//! The flags of `lily connect`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::shared::{positive, unless_empty};

/// Where `lily serve` listens unless it is told otherwise.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8000";

/// Print or use the settings that connect a client to a running server
///
/// Without CLIENT, lists the clients. The model's name and the length of its context come from the
/// server. Nothing is written but the output; with --run the client starts with these settings, which
/// are gone when it ends. A key is shown as the variable LILY_API_KEY, unless --show-key asks for itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily connect                                   which clients there are
  lily connect opencode                          what to write where
  lily connect opencode --run
  lily connect claude --run -- -p \"What is in this folder?\"
  LILY_API_KEY=secret lily connect codex --url http://192.168.1.5:8000 --run
  lily connect zed --offline --model Qwen3.6-35B-A3B-4bit --context-length 32768")]
pub(crate) struct ConnectArgs {
    /// The client
    #[arg(value_name = "CLIENT", ignore_case = true)]
    pub(crate) client: Option<Client>,
    /// Where the server is
    #[arg(
        long,
        value_name = "URL",
        env = unless_empty("LILY_URL"),
        default_value = DEFAULT_URL
    )]
    pub(crate) url: String,
    /// The server's key
    #[arg(
        long = "api-key",
        value_name = "KEY",
        env = unless_empty("LILY_API_KEY"),
        hide_env_values = true
    )]
    pub(crate) key: Option<String>,
    /// Do not ask the server
    #[arg(long)]
    pub(crate) offline: bool,
    /// Name of the model [default: the one that is served]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Tokens that prompt and answer may have together [default: what the server says]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) context_length: Option<usize>,
    /// Show the key in what is printed
    #[arg(long, conflicts_with = "run")]
    pub(crate) show_key: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "run")]
    pub(crate) json: bool,
    /// Start the client with these settings
    #[arg(long, requires = "client")]
    pub(crate) run: bool,
    /// What the client gets as its own arguments
    #[arg(last = true, value_name = "ARGS", requires = "run")]
    pub(crate) arguments: Vec<OsString>,
}

/// The programs whose settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Client {
    Opencode,
    Codex,
    Claude,
    Continue,
    OpenWebui,
    Zed,
    Openai,
    Anthropic,
    Curl,
    Aider,
    Cline,
    Roo,
    Llm,
    Goose,
    Crush,
}
