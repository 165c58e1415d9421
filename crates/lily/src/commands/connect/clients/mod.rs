//! One module per client: its facts, and its settings for a server.

mod aider;
mod claude;
mod cline;
mod codex;
mod continue_dev;
mod crush;
mod curl;
mod goose;
mod llm;
mod open_webui;
mod opencode;
mod sdk;
mod zed;

use super::server::Server;
use super::settings::{Facts, Settings};
use crate::args::Client;

/// What is known of a client.
pub(super) fn facts(client: Client) -> &'static Facts {
    match client {
        Client::Opencode => &opencode::FACTS,
        Client::Codex => &codex::FACTS,
        Client::Claude => &claude::FACTS,
        Client::Continue => &continue_dev::FACTS,
        Client::OpenWebui => &open_webui::FACTS,
        Client::Zed => &zed::FACTS,
        Client::Openai => &sdk::OPENAI,
        Client::Anthropic => &sdk::ANTHROPIC,
        Client::Curl => &curl::FACTS,
        Client::Aider => &aider::FACTS,
        Client::Cline => &cline::CLINE,
        Client::Roo => &cline::ROO,
        Client::Llm => &llm::FACTS,
        Client::Goose => &goose::FACTS,
        Client::Crush => &crush::FACTS,
    }
}

/// What connects it to this server.
pub(super) fn settings(client: Client, server: &Server) -> Settings {
    match client {
        Client::Opencode => opencode::settings(server),
        Client::Codex => codex::settings(server),
        Client::Claude => claude::settings(server),
        Client::Continue => continue_dev::settings(server),
        Client::OpenWebui => open_webui::settings(server),
        Client::Zed => zed::settings(server),
        Client::Openai => sdk::openai(server),
        Client::Anthropic => sdk::anthropic(server),
        Client::Curl => curl::settings(server),
        Client::Aider => aider::settings(server),
        Client::Cline => cline::cline(server),
        Client::Roo => cline::roo(server),
        Client::Llm => llm::settings(server),
        Client::Goose => goose::settings(server),
        Client::Crush => crush::settings(server),
    }
}
