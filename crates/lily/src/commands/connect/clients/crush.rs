//! Crush: a provider of type `openai-compat` in its crush.json.

use serde_json::json;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, File, Format, Settings, key_or_word};

pub(super) const FACTS: Facts = Facts {
    title: "Crush",
    kind: "agent for the terminal",
    install: "npm install -g @charmland/crush",
    documentation: "https://github.com/charmbracelet/crush/blob/main/README.md",
    read: "2026-11-30",
    least: 16_384,
};

pub(super) fn settings(server: &Server) -> Settings {
    let chosen = json!({ "provider": "lily", "model": server.model });
    let config = json!({
        "providers": {
            "lily": {
                "name": "lily",
                "type": "openai-compat",
                "base_url": server.base.v1(),
                "api_key": key_or_word(server, "$LILY_API_KEY"),
                "models": [{
                    "id": server.model,
                    "name": server.model,
                    "context_window": server.context,
                    "default_max_tokens": server.answer(),
                }],
            },
        },
        "models": { "large": chosen, "small": chosen },
    });
    Settings {
        files: vec![File {
            places: &[
                ("one project", ".crush.json"),
                ("all projects on Linux and macOS", "~/.config/crush/crush.json"),
                ("all projects on Windows", r"%USERPROFILE%\.config\crush\crush.json"),
            ],
            format: Format::Json,
            text: settings::json(&config),
        }],
        example: "crush".into(),
        ..Settings::default()
    }
}
