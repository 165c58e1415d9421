//! Continue: a model in its config.yaml, for the editors and for its command line `cn`.

use std::fmt::Write as _;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{
    Facts, File, Format, Launch, Settings, Value, key_or_word, quoted,
};

pub(super) const FACTS: Facts = Facts {
    title: "Continue",
    kind: "VS Code and JetBrains extension, and cn for the terminal",
    install: "the extension `Continue` of your editor, or npm install -g @continuedev/cli",
    documentation: "https://docs.continue.dev/reference",
    read: "2026-11-30",
    least: 8_192,
};

/// Milliseconds that an answer may take.
const TIMEOUT: u32 = 3_600_000;

/// The configuration, with this as the key.
fn config(server: &Server, key: &str) -> String {
    let mut yaml = String::from("name: lily\nversion: 1.0.0\nschema: v1\nmodels:\n");
    let mut line = |indent: usize, text: String| {
        let _ = writeln!(yaml, "{:indent$}{text}", "");
    };
    line(2, format!("- name: {}", quoted(&server.model)));
    line(4, "provider: openai".into());
    line(4, format!("model: {}", quoted(&server.model)));
    line(4, format!("apiBase: {}", quoted(&server.base.v1())));
    line(4, format!("apiKey: {}", quoted(key)));
    line(4, "roles: [chat, edit, apply]".into());
    line(4, "capabilities: [tool_use]".into());
    line(4, "defaultCompletionOptions:".into());
    line(6, format!("contextLength: {}", server.context));
    line(6, format!("maxTokens: {}", server.answer()));
    line(4, "requestOptions:".into());
    line(6, format!("timeout: {TIMEOUT}"));
    yaml
}

pub(super) fn settings(server: &Server) -> Settings {
    let reference = key_or_word(server, "${{ secrets.LILY_API_KEY }}");
    let mut launch = Launch::new("cn", Vec::new());
    launch.files = vec![("config.yaml", config(server, server.key_text()))];
    launch.arguments = vec![Value::Text("--config".into()), Value::Path("config.yaml")];
    let mut notes = vec![
        "Editors read their files only: --run starts cn, the one for the terminal.".to_owned(),
    ];
    if server.key.is_some() {
        notes.push("The key goes into ~/.continue/.env, as the line LILY_API_KEY=...".into());
    }
    Settings {
        files: vec![File {
            places: &[
                ("Linux and macOS", "~/.continue/config.yaml"),
                ("Windows", r"%USERPROFILE%\.continue\config.yaml"),
            ],
            format: Format::Yaml,
            text: config(server, reference),
        }],
        notes,
        launch: Some(launch),
        ..Settings::default()
    }
}
