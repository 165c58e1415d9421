//! Zed: a provider in its settings.json; the key comes from a variable named after the provider.

use serde_json::json;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, File, Format, Settings};

pub(super) const FACTS: Facts = Facts {
    title: "Zed",
    kind: "editor",
    install: "see https://zed.dev/download",
    documentation: "https://zed.dev/docs/ai/use-api-access",
    read: "2026-11-30",
    least: 8_192,
};

pub(super) fn settings(server: &Server) -> Settings {
    let config = json!({
        "language_models": {
            "openai_compatible": {
                // In capitals and with _API_KEY, the name of the key's variable.
                "lily": {
                    "api_url": server.base.v1(),
                    "available_models": [{
                        "name": server.model,
                        "display_name": server.model,
                        "max_tokens": server.context,
                        "max_output_tokens": server.answer(),
                        "capabilities": {
                            "tools": true,
                            "images": false,
                            "parallel_tool_calls": true,
                            "prompt_cache_key": false,
                            "chat_completions": true,
                            "interleaved_reasoning": true,
                        },
                    }],
                },
            },
        },
        "agent": { "default_model": { "provider": "lily", "model": server.model } },
    });
    Settings {
        files: vec![File {
            places: &[
                ("Linux and macOS", "~/.config/zed/settings.json"),
                ("Windows", r"%APPDATA%\Zed\settings.json"),
            ],
            format: Format::Json,
            text: settings::json(&config),
        }],
        variables: vec![settings::key("LILY_API_KEY")],
        example: "zed".into(),
        notes: vec![
            "Merge this into the file (command `zed: open settings`); Zed reads no other.".into(),
            "Instead of the variable, the key can be entered in Settings > AI > LLM Providers; Zed wants \
             one even where the server has none."
                .into(),
        ],
        ..Settings::default()
    }
}
