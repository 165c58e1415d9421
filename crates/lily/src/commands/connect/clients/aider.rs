//! aider: environment variables, and a file that says how long the model's context is.

use serde_json::json;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{
    self, Facts, File, Format, Launch, Settings, Value, Variable,
};

pub(super) const FACTS: Facts = Facts {
    title: "aider",
    kind: "pair programmer for the terminal",
    install: "pip install aider-chat",
    documentation: "https://aider.chat/docs/llms/openai-compat.html",
    read: "2026-11-30",
    least: 8_192,
};

/// Seconds that an answer may take.
const TIMEOUT: u32 = 3_600;

fn variables(server: &Server) -> Vec<Variable> {
    vec![settings::text("OPENAI_API_BASE", server.base.v1()), settings::key("OPENAI_API_KEY")]
}

pub(super) fn settings(server: &Server) -> Settings {
    let model = format!("openai/{}", server.model);
    let metadata = settings::json(&json!({
        &model: {
            "max_tokens": server.answer(),
            "max_input_tokens": server.compaction(),
            "max_output_tokens": server.answer(),
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        },
    }));
    let mut launch = Launch::new("aider", variables(server));
    let text = |text: &str| Value::Text(text.to_owned());
    launch.arguments = vec![
        text("--model"),
        text(&model),
        text("--timeout"),
        Value::Text(TIMEOUT.to_string()),
        text("--model-metadata-file"),
        Value::Path("metadata.json"),
    ];
    launch.files = vec![("metadata.json", metadata.clone())];
    Settings {
        files: vec![File {
            places: &[
                ("one repository", ".aider.model.metadata.json in its root"),
                ("all of yours", "~/.aider.model.metadata.json"),
            ],
            format: Format::Json,
            text: metadata,
        }],
        variables: variables(server),
        example: format!("aider --timeout {TIMEOUT} --model {}", settings::shell(&model)),
        launch: Some(launch),
        ..Settings::default()
    }
}
