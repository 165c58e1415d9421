//! Open WebUI: environment variables of the program that serves it.

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, Launch, Settings, Variable};

pub(super) const FACTS: Facts = Facts {
    title: "Open WebUI",
    kind: "chat page with accounts, documents and search",
    install: "pip install open-webui",
    documentation: "https://docs.openwebui.com/reference/env-configuration",
    read: "2026-11-30",
    least: 0,
};

/// Seconds that an answer may take, in place of 5 minutes.
const TIMEOUT: u32 = 3_600;

fn variables(server: &Server) -> Vec<Variable> {
    vec![
        settings::text("OPENAI_API_BASE_URL", server.base.v1()),
        settings::key("OPENAI_API_KEY"),
        settings::text("DEFAULT_MODELS", &server.model),
        settings::text("ENABLE_OLLAMA_API", "False"),
        settings::text("AIOHTTP_CLIENT_TIMEOUT", TIMEOUT),
        // Else what an earlier start has stored counts, and this start's values are stored in turn.
        settings::text("ENABLE_PERSISTENT_CONFIG", "False"),
    ]
}

pub(super) fn settings(server: &Server) -> Settings {
    let mut launch = Launch::new("open-webui", variables(server));
    launch.otherwise = &["serve"];
    Settings {
        variables: variables(server),
        example: "open-webui serve".into(),
        notes: vec![
            "To keep the connection, enter URL and key in Admin Panel > Settings > Connections instead."
                .into(),
            "In Docker, this machine is host.docker.internal: the URL is as above with that name, and \
             the server must listen there (lily serve --host 0.0.0.0, with a key)."
                .into(),
        ],
        launch: Some(launch),
        ..Settings::default()
    }
}
