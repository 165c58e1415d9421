//! Codex: a provider of its own, by the Responses API; it speaks no other.

use std::fmt::Write as _;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{Facts, File, Format, Launch, Settings, Value, quoted};

pub(super) const FACTS: Facts = Facts {
    title: "Codex",
    kind: "agent for the terminal",
    install: "npm install -g @openai/codex",
    documentation: "https://developers.openai.com/docs/config-file/config-reference",
    read: "2026-11-30",
    least: 16_384,
};

/// Milliseconds without an event after which Codex gives a stream up: a long prompt is read that long
/// on a slow machine.
const IDLE: u32 = 1_800_000;

/// The settings as keys and values of TOML.
fn pairs(server: &Server) -> Vec<(&'static str, String)> {
    let mut pairs = vec![
        ("model", quoted(&server.model)),
        ("model_provider", quoted("lily")),
        ("model_context_window", server.context.to_string()),
        ("model_auto_compact_token_limit", server.compaction().to_string()),
        // Tools that a provider would have to bring, and groups of tools, which are no functions.
        ("web_search", quoted("disabled")),
        ("agents.enabled", "false".into()),
        ("model_providers.lily.name", quoted("lily")),
        ("model_providers.lily.base_url", quoted(&server.base.v1())),
        ("model_providers.lily.wire_api", quoted("responses")),
        ("model_providers.lily.stream_idle_timeout_ms", IDLE.to_string()),
    ];
    if server.key.is_some() {
        pairs.push(("model_providers.lily.env_key", quoted("LILY_API_KEY")));
    }
    pairs
}

pub(super) fn settings(server: &Server) -> Settings {
    let pairs = pairs(server);
    let mut text = String::new();
    for (key, value) in &pairs {
        let _ = writeln!(text, "{key} = {value}");
    }
    let overrides = pairs.iter().flat_map(|(key, value)| ["-c".into(), format!("{key}={value}")]);
    let mut launch = Launch::new("codex", Vec::new());
    launch.arguments = overrides.map(Value::Text).collect();
    Settings {
        files: vec![File {
            places: &[
                ("Linux and macOS", "~/.codex/lily.config.toml"),
                ("Windows", r"%USERPROFILE%\.codex\lily.config.toml"),
            ],
            format: Format::Toml,
            text,
        }],
        example: "codex --profile lily".into(),
        notes: vec![
            "A profile of its own: Codex without --profile is as before.".into(),
            "Codex says that it has no metadata for the model: it then goes by these settings."
                .into(),
        ],
        launch: Some(launch),
        ..Settings::default()
    }
}
