//! What is printed: for people, or as JSON.

use std::fmt::Write as _;

use clap::ValueEnum;
use serde_json::{Map, Value as Json, json};

use super::clients;
use super::server::{Limits, Server};
use super::settings::{Facts, Format, Launch, Settings, Value, shell};
use crate::args::{Client, DEFAULT_URL};

/// The variable through which settings name the key.
const KEY: &str = "LILY_API_KEY";

/// The clients, one on a line.
pub(super) fn list() -> String {
    let mut out = String::from("clients whose settings `lily connect CLIENT` prints:\n");
    for &client in Client::value_variants() {
        let facts = clients::facts(client);
        let _ = writeln!(out, "  {:<12} {}: {}", name(client), facts.title, facts.kind);
    }
    out
}

/// As [`list`], for programs.
pub(super) fn list_json() -> Json {
    let client = |&client: &Client| {
        let facts = clients::facts(client);
        json!({
            "client": name(client),
            "title": facts.title,
            "kind": facts.kind,
            "install": facts.install,
            "documentation": facts.documentation,
        })
    };
    Json::Array(Client::value_variants().iter().map(client).collect())
}

/// As it is typed.
pub(super) fn name(client: Client) -> String {
    client.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// What to do by hand, and the command that makes it unnecessary.
pub(super) fn text(client: Client, server: &Server, settings: &Settings, show_key: bool) -> String {
    let facts = clients::facts(client);
    let mut out = format!(
        "{} with {} ({} tokens) at {}\n",
        facts.title,
        server.model,
        server.context,
        server.base.v1()
    );
    if let Some(launch) = &settings.launch {
        let command = run_command(client, server, launch);
        let _ = writeln!(out, "\nto start it with these settings, leaving its own as they are:\n");
        let _ = writeln!(out, "  {command}");
    }
    if !settings.steps.is_empty() {
        let _ = writeln!(out, "\nin its settings:\n");
        for (i, step) in settings.steps.iter().enumerate() {
            let _ = writeln!(out, "  {}. {step}", i + 1);
        }
    }
    for file in &settings.files {
        let _ = writeln!(out, "\nto keep these settings, write them to its settings file:");
        for (system, path) in file.places {
            let _ = writeln!(out, "  {system}: {path}");
        }
        let _ = writeln!(out, "\n{}", file.text.trim_end());
    }
    let exports = exports(server, settings, show_key);
    if !exports.is_empty() {
        let _ = writeln!(out, "\nin its environment:\n");
        for line in exports {
            let _ = writeln!(out, "{line}");
        }
    }
    if !settings.example.is_empty() {
        let _ = writeln!(out, "\nthen:\n\n{}", settings.example);
    }
    let _ = writeln!(out);
    for note in notes(facts, server, settings) {
        let _ = writeln!(out, "note: {note}");
    }
    let _ = writeln!(out, "install: {}", facts.install);
    let _ = writeln!(out, "source: {} (read {})", facts.documentation, facts.read);
    out
}

/// As [`text`], for programs.
pub(super) fn object(client: Client, server: &Server, settings: &Settings, show_key: bool) -> Json {
    let facts = clients::facts(client);
    let files = settings.files.iter().map(|file| {
        let places: Map<String, Json> =
            file.places.iter().map(|&(system, path)| (system.to_owned(), path.into())).collect();
        json!({ "places": places, "format": format_name(file.format), "content": file.text })
    });
    let mut environment = Map::new();
    if refers_to_key(server, settings) {
        environment.insert(KEY.into(), own_key(server, show_key));
    }
    for variable in &settings.variables {
        let value = match &variable.value {
            Value::Text(text) => text.clone(),
            Value::Key if variable.name == KEY => {
                environment.insert(KEY.into(), own_key(server, show_key));
                continue;
            }
            Value::Key => key(server, show_key),
            Value::Path(name) => (*name).to_owned(),
        };
        environment.insert(variable.name.to_owned(), value.into());
    }
    json!({
        "client": name(client),
        "title": facts.title,
        "server": {
            "url": server.base.v1(),
            "model": server.model,
            "context_length": server.context,
            "answer_tokens": server.answer(),
            "key_given": server.key.is_some(),
        },
        "files": files.collect::<Vec<_>>(),
        "environment": environment,
        "steps": settings.steps,
        "example": settings.example,
        "notes": notes(facts, server, settings),
        "run": settings.launch.as_ref().map(|launch| run_command(client, server, launch)),
        "install": facts.install,
        "documentation": { "url": facts.documentation, "read": facts.read },
    })
}

/// The command that starts the client with this server.
fn run_command(client: Client, server: &Server, launch: &Launch) -> String {
    let (name, url) = (name(client), server.base.root());
    let program = if launch.program.is_none() { " -- PROGRAM ARGS" } else { "" };
    if url == DEFAULT_URL {
        format!("lily connect {name} --run{program}")
    } else {
        format!("lily connect {name} --url {} --run{program}", shell(url))
    }
}

/// The client's own notes, after warnings about the context.
pub(super) fn notes(facts: &Facts, server: &Server, settings: &Settings) -> Vec<String> {
    let mut notes = settings.notes.clone();
    notes.splice(0..0, too_short(facts, server).into_iter().chain(too_long(server)));
    if let Some(file) = server.certificate() {
        let file = shell(&file.to_string_lossy());
        notes.push(format!(
            "whoever connects must trust the server's certificate too: SSL_CERT_FILE={file} for Python \
             and Rust programs, NODE_EXTRA_CA_CERTS={file} for Node's, --cacert {file} for curl"
        ));
    }
    notes
}

/// A warning where the client's own instructions would fill the context, with what helps: not
/// `lily serve --context` where the model has no more.
pub(super) fn too_short(facts: &Facts, server: &Server) -> Option<String> {
    let (least, context) = (facts.least, server.real_context());
    if context >= least {
        return None;
    }
    let has = match server.limits {
        Limits { most: Some(most), .. } if most < least => {
            let model = &server.model;
            let has = match context == most {
                true => format!("this server has {most}, the most that its model {model} can have"),
                false => format!("this server has {context}, and its model {model} {most} at most"),
            };
            format!("{has}: serve a larger model (`lily pull` fetches one)")
        }
        Limits { context: Some(served), .. } if served >= least => {
            format!("--context-length says {context}")
        }
        Limits { context: Some(_), most: Some(_) } => {
            format!(
                "this server has {context}: start it with `lily serve --context {least}` or more"
            )
        }
        Limits { context: Some(_), most: None } => format!(
            "this server has {context}: start it with more (`lily serve --context`), or with a model \
             that has more"
        ),
        Limits { context: None, .. } => {
            format!("these settings say {context} (--context-length)")
        }
    };
    let title = facts.title;
    Some(format!(
        "{title} needs a context of about {least} tokens for its own instructions and a short exchange; \
         {has}"
    ))
}

/// A warning where the client is told of more context than there is.
pub(super) fn too_long(server: &Server) -> Option<String> {
    let (context, served) = (server.context, server.limits.context?);
    (context > served).then(|| {
        format!(
            "--context-length {context} is more than this server has, {served} tokens: it refuses \
             longer conversations"
        )
    })
}

/// Lines that set the environment, as this system's shells take them.
fn exports(server: &Server, settings: &Settings, show_key: bool) -> Vec<String> {
    let launch = settings.launch.as_ref().filter(|_| !settings.variables.is_empty());
    let mut lines: Vec<_> =
        launch.iter().flat_map(|launch| launch.removed).map(|name| unset(name)).collect();
    let names_key = settings.variables.iter().any(|variable| variable.name == KEY);
    if refers_to_key(server, settings) || (names_key && server.key.is_some()) {
        lines.push(match (&server.key, show_key) {
            (Some(key), true) => export(KEY, &shell(key.text())),
            _ => format!("# {KEY} must hold the server's key"),
        });
    }
    for variable in &settings.variables {
        match &variable.value {
            Value::Key if variable.name == KEY && server.key.is_some() => {}
            Value::Key => {
                let value = key(server, show_key);
                let quoted =
                    if value.starts_with('$') { format!("\"{value}\"") } else { shell(&value) };
                lines.push(export(variable.name, &quoted));
            }
            Value::Text(text) => lines.push(export(variable.name, &shell(text))),
            Value::Path(_) => {}
        }
    }
    lines
}

fn export(name: &str, quoted: &str) -> String {
    if cfg!(windows) {
        format!("$env:{name} = {quoted}")
    } else {
        format!("export {name}={quoted}")
    }
}

fn unset(name: &str) -> String {
    if cfg!(windows) {
        format!("Remove-Item Env:{name} -ErrorAction Ignore")
    } else {
        format!("unset {name}")
    }
}

/// Whether the settings take the key from [`KEY`], without setting that themselves.
fn refers_to_key(server: &Server, settings: &Settings) -> bool {
    let in_file = settings.files.iter().any(|file| file.text.contains(KEY));
    let in_variable = settings
        .variables
        .iter()
        .any(|variable| matches!(variable.value, Value::Key) && variable.name != KEY);
    server.key.is_some() && (in_file || in_variable || settings.example.contains(KEY))
}

/// The value of [`KEY`] itself; null where it is for the user to fill in.
fn own_key(server: &Server, show_key: bool) -> Json {
    match &server.key {
        Some(_) if !show_key => Json::Null,
        _ => server.key_text().into(),
    }
}

/// The key itself where it may be shown, or else a reference to it; what stands for it where the
/// server has none.
fn key(server: &Server, show_key: bool) -> String {
    match &server.key {
        Some(_) if !show_key => format!("${KEY}"),
        _ => server.key_text().to_owned(),
    }
}

fn format_name(format: Format) -> &'static str {
    match format {
        Format::Json => "json",
        Format::Toml => "toml",
        Format::Yaml => "yaml",
    }
}
