//! Open WebUI: environment variables of the program that serves it.

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, Launch, Settings, Variable};

pub(super) const FACTS: Facts = Facts {
    title: "Open WebUI",
    kind: "chat page with accounts, documents and search",
    install: "pip install open-webui",
    documentation: "https://docs.openwebui.com/reference/env-configuration",
    read: "2026-11-30",
    // Its page offers the model some forty tools of its own.
    least: 12_288,
};

fn variables(server: &Server) -> Vec<Variable> {
    vec![
        settings::text("OPENAI_API_BASE_URL", server.base.v1()),
        settings::key("OPENAI_API_KEY"),
        settings::text("DEFAULT_MODELS", &server.model),
        settings::text("ENABLE_OLLAMA_API", "False"),
        // Else what an earlier start has stored counts, and this start's values are stored in turn.
        settings::text("ENABLE_PERSISTENT_CONFIG", "False"),
    ]
}

pub(super) fn settings(server: &Server) -> Settings {
    let mut launch = Launch::new("open-webui", variables(server));
    launch.otherwise = &["serve", "--host", "127.0.0.1"];
    // Lists of servers, which count more than the one.
    launch.removed = &["OPENAI_API_BASE_URLS", "OPENAI_API_KEYS", "OPENAI_API_CONFIGS"];
    Settings {
        variables: variables(server),
        example: "open-webui serve --host 127.0.0.1".into(),
        notes: vec![
            "Without --host it listens on all addresses, and whoever comes first is its administrator."
                .into(),
            "DEFAULT_MODEL_PARAMS='{\"function_calling\": \"legacy\"}' leaves out the tools that its page gives \
             the model: then a short context is enough."
                .into(),
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
