//! goose: environment variables of its OpenAI provider.

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, Launch, Settings, Variable};

pub(super) const FACTS: Facts = Facts {
    title: "goose",
    kind: "agent for the terminal",
    install: "see https://goose-docs.ai/docs/getting-started/installation",
    documentation: "https://goose-docs.ai/docs/guides/environment-variables",
    read: "2026-11-30",
    least: 16_384,
};

/// Seconds that an answer may take, in place of 10 minutes.
const TIMEOUT: u32 = 3_600;

fn variables(server: &Server) -> Vec<Variable> {
    let (host, path) = server.base.host_and_path();
    vec![
        settings::text("GOOSE_PROVIDER", "openai"),
        settings::text("GOOSE_MODEL", &server.model),
        settings::text("GOOSE_CONTEXT_LIMIT", server.context),
        settings::text("GOOSE_MAX_TOKENS", server.answer()),
        settings::text("OPENAI_HOST", host),
        settings::text("OPENAI_BASE_PATH", format!("{path}/chat/completions")),
        settings::text("OPENAI_TIMEOUT", TIMEOUT),
        settings::key("OPENAI_API_KEY"),
    ]
}

pub(super) fn settings(server: &Server) -> Settings {
    let mut launch = Launch::new("goose", variables(server));
    launch.otherwise = &["session"];
    Settings {
        variables: variables(server),
        example: "goose session".into(),
        launch: Some(launch),
        ..Settings::default()
    }
}
