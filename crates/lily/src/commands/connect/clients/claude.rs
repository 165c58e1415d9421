//! Claude Code: environment variables, by the Messages API of Anthropic.

use serde_json::{Map, Value as Json, json};

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, Launch, Settings, Value, Variable};

pub(super) const FACTS: Facts = Facts {
    title: "Claude Code",
    kind: "agent for the terminal",
    install: "npm install -g @anthropic-ai/claude-code",
    documentation: "https://code.claude.com/docs/en/env-vars",
    read: "2026-11-30",
    least: 32_768,
};

/// Milliseconds that an answer may take, in place of 10 minutes.
const TIMEOUT: u32 = 3_600_000;

fn variables(server: &Server) -> Vec<Variable> {
    let model = &server.model;
    vec![
        settings::text("ANTHROPIC_BASE_URL", server.base.root()),
        settings::key("ANTHROPIC_AUTH_TOKEN"),
        settings::text("ANTHROPIC_MODEL", model),
        // The names by which it asks for other models, for small tasks and for its helpers.
        settings::text("ANTHROPIC_DEFAULT_OPUS_MODEL", model),
        settings::text("ANTHROPIC_DEFAULT_SONNET_MODEL", model),
        settings::text("ANTHROPIC_DEFAULT_HAIKU_MODEL", model),
        settings::text("CLAUDE_CODE_SUBAGENT_MODEL", model),
        settings::text("CLAUDE_CODE_MAX_CONTEXT_TOKENS", server.context),
        settings::text("CLAUDE_CODE_MAX_OUTPUT_TOKENS", server.answer()),
        settings::text("API_TIMEOUT_MS", TIMEOUT),
        settings::text("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", 1),
        settings::text("CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS", 1),
        // Else every prompt begins with a line of its own.
        settings::text("CLAUDE_CODE_ATTRIBUTION_HEADER", 0),
    ]
}

pub(super) fn settings(server: &Server) -> Settings {
    let environment: Map<String, Json> = variables(server)
        .into_iter()
        .map(|variable| {
            let value = match variable.value {
                Value::Text(text) => text,
                _ => server.key_text().to_owned(),
            };
            (variable.name.to_owned(), value.into())
        })
        .collect();
    let mut launch = Launch::new("claude", variables(server));
    // The environment in a user's own settings counts more than that of the process, this file more
    // than both.
    let file = json!({ "model": server.model, "env": environment });
    launch.files = vec![("settings.json", settings::json(&file))];
    launch.arguments = vec![Value::Text("--settings".into()), Value::Path("settings.json")];
    launch.removed = &[
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_CUSTOM_HEADERS",
        "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX",
        "CLAUDE_CODE_USE_FOUNDRY",
    ];
    Settings {
        variables: variables(server),
        example: "claude".into(),
        notes: vec![
            "An `env` in ~/.claude/settings.json counts more than these variables; --run overrides it."
                .into(),
            "It says that it does not recognise the model: it then goes by these variables.".into(),
        ],
        launch: Some(launch),
        ..Settings::default()
    }
}
