//! `lily connect`: the settings by which a client finds a running server, printed or used at once.
//!
//! Each client is a few facts and a function from what the server says to [`settings::Settings`]. What
//! they hold comes from the page that the facts name; nothing is written outside a temporary folder.

mod clients;
mod launch;
mod render;
mod server;
mod settings;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use anyhow::Result;

use self::server::{Base, ConnectError, Key, Limits, Server};
use super::output;
use crate::args::ConnectArgs;
use crate::failure::{UsageError, usage};

/// Name and context that stand for a server that was not asked: lily takes any name, and keeps so many
/// tokens unless it is told otherwise.
const NAME: &str = "lily";
const CONTEXT: usize = 32_768;

pub(crate) fn run(args: &ConnectArgs) -> Result<ExitCode> {
    let Some(client) = args.client else {
        if args.json {
            output::print_pretty(&render::list_json())?;
        } else {
            output::print(&render::list())?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let server = server(args)?;
    let facts = clients::facts(client);
    let settings = clients::settings(client, &server);
    if args.run {
        let Some(launch) = &settings.launch else {
            let name = render::name(client);
            if settings.files.is_empty() && settings.steps.is_empty() {
                let command = settings.example.replace(" \\\n  ", " ");
                return Err(usage(format!(
                    "there is nothing for --run to start; the command to copy is: {command}"
                )));
            }
            return Err(usage(format!(
                "{} reads its settings from its own places only: `lily connect {name}` shows what to \
                 write there",
                facts.title
            )));
        };
        if let Some(problem) = render::too_short(facts, &server) {
            // Some agents shorten their history again and again then, and never come to an answer.
            if args.context_length.is_none() {
                anyhow::bail!(
                    "{problem}; to start it all the same, add --context-length {} before --run",
                    server.context
                );
            }
            eprintln!("warning: {problem}");
        }
        if let Some(note) = render::too_long(&server) {
            eprintln!("note: {note}");
        }
        return launch::run(facts, launch, &server, &args.arguments);
    }
    if args.json {
        output::print_pretty(&render::object(client, &server, &settings, args.show_key))?;
    } else {
        output::print(&render::text(client, &server, &settings, args.show_key))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the server says, or the user in its place.
fn server(args: &ConnectArgs) -> Result<Server> {
    let base = Base::parse(&args.url).map_err(as_usage)?;
    let key = args.key.as_deref().map(Key::new).transpose().map_err(as_usage)?;
    let model = args.model.as_deref();
    if model.is_some_and(|name| !server::is_plain(name)) {
        return Err(usage("--model is empty, or has control characters or one of ${}`"));
    }
    if !args.offline {
        let waiting = |url: &str| eprintln!("the server at {url} is loading its model; waiting");
        return Ok(server::ask(base, key, model, args.context_length, waiting)?);
    }
    Ok(Server {
        base,
        key,
        model: model.unwrap_or(NAME).to_owned(),
        context: args.context_length.unwrap_or(CONTEXT),
        limits: Limits::default(),
    })
}

fn as_usage(error: ConnectError) -> anyhow::Error {
    UsageError(error.into()).into()
}
