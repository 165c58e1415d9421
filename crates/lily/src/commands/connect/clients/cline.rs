//! Cline and Roo Code: what to enter in their settings panels. Cline's program for the terminal is told
//! by a file in a folder of its own.

use serde_json::json;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, Launch, Settings, Value, Variable};

pub(super) const CLINE: Facts = Facts {
    title: "Cline",
    kind: "VS Code and JetBrains extension, and cline for the terminal",
    install: "the extension `Cline` of your editor, or npm install -g cline",
    documentation: "https://docs.cline.bot/provider-config/openai-compatible",
    read: "2026-11-30",
    least: 16_384,
};

pub(super) const ROO: Facts = Facts {
    title: "Roo Code",
    kind: "VS Code extension",
    install: "the extension `Roo Code` of your editor",
    documentation: "https://docs.roocode.com/providers/openai-compatible",
    read: "2026-11-30",
    least: 32_768,
};

pub(super) fn cline(server: &Server) -> Settings {
    let provider = "openai-compatible";
    let file = json!({
        "version": 1,
        "lastUsedProvider": provider,
        "providers": {
            provider: {
                "settings": {
                    "provider": provider,
                    "baseUrl": server.base.v1(),
                    "apiKey": server.key_text(),
                    "model": server.model,
                    "contextWindow": server.context,
                },
                // It reads no file without one.
                "updatedAt": "2000-01-01T00:00:00Z",
            },
        },
    });
    let folder = Variable { name: "CLINE_SANDBOX_DATA_DIR", value: Value::Path("") };
    let mut launch = Launch::new("cline", vec![settings::text("CLINE_SANDBOX", 1), folder]);
    launch.files = vec![("settings/providers.json", settings::json(&file))];
    Settings {
        steps: panel(
            server,
            ["OpenAI Compatible API Key", "Model ID"],
            "Model Configuration, ",
            "Supports Images: off",
        ),
        notes: vec![
            "Editors read their panel only: --run starts cline, the one for the terminal, whose sessions \
             are gone when it ends."
                .into(),
        ],
        launch: Some(launch),
        ..Settings::default()
    }
}

pub(super) fn roo(server: &Server) -> Settings {
    let off = "Image Support: off; Prompt Caching: off";
    Settings { steps: panel(server, ["API Key", "Model"], "", off), ..Settings::default() }
}

/// The entries of a panel, which names key and model in words of its own and may have the rest in a
/// part of its own.
fn panel(server: &Server, [key, model]: [&str; 2], part: &str, off: &str) -> Vec<String> {
    let secret = if server.key.is_some() { "the server's key" } else { server.key_text() };
    vec![
        "Open its settings (the gear).".to_owned(),
        "API Provider: OpenAI Compatible".to_owned(),
        format!("Base URL: {}", server.base.v1()),
        format!("{key}: {secret}"),
        format!("{model}: {}", server.model),
        format!("{part}Context Window Size: {}", server.context),
        format!("{part}Max Output Tokens: {}", server.answer()),
        format!("{part}{off}"),
    ]
}
