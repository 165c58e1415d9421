//! llm: a model in its list of OpenAI-compatible ones.

use std::fmt::Write as _;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{
    self, Facts, File, Format, Launch, Settings, Value, Variable, quoted,
};

pub(super) const FACTS: Facts = Facts {
    title: "llm",
    kind: "questions from the shell",
    install: "pip install llm",
    documentation: "https://llm.datasette.io/en/stable/other-models.html",
    read: "2026-11-30",
    least: 0,
};

fn models(server: &Server) -> String {
    let mut yaml = String::new();
    let _ = writeln!(yaml, "- model_id: lily");
    let _ = writeln!(yaml, "  model_name: {}", quoted(&server.model));
    let _ = writeln!(yaml, "  api_base: {}", quoted(&server.base.v1()));
    if server.key.is_some() {
        let _ = writeln!(yaml, "  api_key_name: lily");
    }
    let _ = writeln!(yaml, "  supports_tools: true");
    let _ = writeln!(yaml, "  supports_schema: true");
    yaml
}

pub(super) fn settings(server: &Server) -> Settings {
    let folder = Variable { name: "LLM_USER_PATH", value: Value::Path("") };
    let mut launch = Launch::new("llm", vec![folder, settings::key("OPENAI_API_KEY")]);
    launch.files = vec![
        ("extra-openai-models.yaml", models(server)),
        ("default_model.txt", "lily".to_owned()),
    ];
    let mut notes =
        vec!["With --run, llm's log of questions and answers is gone when it ends.".to_owned()];
    if server.key.is_some() {
        notes.push("Store the key by `llm keys set lily`.".into());
    }
    Settings {
        files: vec![File {
            places: &[
                ("Linux", "~/.config/io.datasette.llm/extra-openai-models.yaml"),
                (
                    "macOS",
                    "~/Library/Application Support/io.datasette.llm/extra-openai-models.yaml",
                ),
                ("Windows", r"%APPDATA%\io.datasette.llm\extra-openai-models.yaml"),
            ],
            format: Format::Yaml,
            text: models(server),
        }],
        example: "llm -m lily \"What is the capital of Japan?\"".into(),
        notes,
        launch: Some(launch),
        ..Settings::default()
    }
}
