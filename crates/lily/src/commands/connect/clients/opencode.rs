//! opencode: a provider of its own by the OpenAI-compatible package that it brings along.

use serde_json::json;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, File, Format, Launch, Settings};

pub(super) const FACTS: Facts = Facts {
    title: "opencode",
    kind: "agent for the terminal",
    install: "npm install -g opencode-ai",
    documentation: "https://opencode.ai/v1/docs/providers",
    read: "2026-11-30",
    least: 16_384,
};

/// Milliseconds that an answer may take; opencode's own limit of 5 minutes is less than a long prompt
/// takes on a slow machine.
const TIMEOUT: u32 = 3_600_000;

pub(super) fn settings(server: &Server) -> Settings {
    let name = &server.model;
    let chosen = format!("lily/{name}");
    let mut options = json!({ "baseURL": server.base.v1(), "timeout": TIMEOUT });
    if server.key.is_some() {
        options["apiKey"] = json!("{env:LILY_API_KEY}");
    }
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "provider": {
            "lily": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "lily",
                "options": options,
                "models": {
                    name: {
                        "name": name,
                        // So it asks for little thinking where it wants a title for a session.
                        "reasoning": true,
                        "limit": { "context": server.context, "output": server.answer() },
                    },
                },
            },
        },
        "model": chosen,
        "small_model": chosen,
    });
    Settings {
        files: vec![File {
            places: &[
                ("one project", "opencode.json"),
                ("all projects on Linux and macOS", "~/.config/opencode/opencode.json"),
                ("all projects on Windows", r"%USERPROFILE%\.config\opencode\opencode.json"),
            ],
            format: Format::Json,
            text: settings::json(&config),
        }],
        example: "opencode".into(),
        // Read last, and merged with the user's own settings.
        launch: Some(Launch::new(
            "opencode",
            vec![settings::text("OPENCODE_CONFIG_CONTENT", config)],
        )),
        ..Settings::default()
    }
}
