//! Programs that use the clients of OpenAI or Anthropic for Python and Node: environment variables.

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{self, Facts, Launch, Settings, Variable, quoted};

pub(super) const OPENAI: Facts = Facts {
    title: "OpenAI for Python and Node",
    kind: "libraries, and any program that uses them",
    install: "pip install openai, or npm install openai",
    documentation: "https://github.com/openai/openai-python#readme",
    read: "2026-11-30",
    least: 0,
};

pub(super) const ANTHROPIC: Facts = Facts {
    title: "Anthropic for Python and Node",
    kind: "libraries, and any program that uses them",
    install: "pip install anthropic, or npm install @anthropic-ai/sdk",
    documentation: "https://github.com/anthropics/anthropic-sdk-python#readme",
    read: "2026-11-30",
    least: 0,
};

pub(super) fn openai(server: &Server) -> Settings {
    let variables = || {
        vec![settings::text("OPENAI_BASE_URL", server.base.v1()), settings::key("OPENAI_API_KEY")]
    };
    let example = format!(
        "from openai import OpenAI\n\n\
         answer = OpenAI().chat.completions.create(\n    \
             model={},\n    \
             messages=[{{\"role\": \"user\", \"content\": \"What is the capital of Japan?\"}}],\n\
         )\n\
         print(answer.choices[0].message.content)",
        quoted(&server.model)
    );
    Settings {
        variables: variables(),
        example,
        launch: Some(program(variables())),
        ..Settings::default()
    }
}

pub(super) fn anthropic(server: &Server) -> Settings {
    let variables = || {
        vec![
            settings::text("ANTHROPIC_BASE_URL", server.base.root()),
            settings::key("ANTHROPIC_AUTH_TOKEN"),
        ]
    };
    let example = format!(
        "from anthropic import Anthropic\n\n\
         answer = Anthropic().messages.create(\n    \
             model={},\n    \
             max_tokens={},\n    \
             messages=[{{\"role\": \"user\", \"content\": \"What is the capital of Japan?\"}}],\n\
         )\n\
         print([block.text for block in answer.content if block.type == \"text\"])",
        quoted(&server.model),
        server.answer(),
    );
    let mut launch = program(variables());
    launch.removed = &["ANTHROPIC_API_KEY"];
    Settings { variables: variables(), example, launch: Some(launch), ..Settings::default() }
}

/// A program that the user names.
fn program(variables: Vec<Variable>) -> Launch {
    Launch {
        program: None,
        arguments: Vec::new(),
        otherwise: &[],
        variables,
        removed: &[],
        files: Vec::new(),
    }
}
