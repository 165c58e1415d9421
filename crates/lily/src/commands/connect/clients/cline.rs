//! Cline and Roo Code: what to enter in their settings panels; they read no file and no variable.

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{Facts, Settings};

pub(super) const CLINE: Facts = Facts {
    title: "Cline",
    kind: "VS Code and JetBrains extension",
    install: "the extension `Cline` of your editor",
    documentation: "https://docs.cline.bot/provider-config/openai-compatible",
    read: "2026-11-30",
    least: 32_768,
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
    panel(server, "Model ID", "Supports Images: off")
}

pub(super) fn roo(server: &Server) -> Settings {
    panel(server, "Model", "Image Support: off; Computer Use: off; Prompt Caching: off")
}

fn panel(server: &Server, model: &str, off: &str) -> Settings {
    let key = if server.key.is_some() { "the server's key" } else { server.key_text() };
    let steps = vec![
        "Open its settings (the gear).".to_owned(),
        "API Provider: OpenAI Compatible".to_owned(),
        format!("Base URL: {}", server.base.v1()),
        format!("API Key: {key}"),
        format!("{model}: {}", server.model),
        format!("Model Configuration, Context Window: {}", server.context),
        format!("Model Configuration, Max Output Tokens: {}", server.answer()),
        format!("Model Configuration, {off}"),
    ];
    Settings { steps, ..Settings::default() }
}
