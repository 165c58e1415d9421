//! What a client needs, as data: where each piece goes is for `render` and `launch` to say.

use super::server::Server;

/// What is known of a client whatever the server.
pub(super) struct Facts {
    /// As its makers write it.
    pub(super) title: &'static str,
    /// What it is, in a few words.
    pub(super) kind: &'static str,
    /// The command that installs it, or where to get it.
    pub(super) install: &'static str,
    /// The page the settings were taken from.
    pub(super) documentation: &'static str,
    /// When it was read.
    pub(super) read: &'static str,
    /// Tokens of context that its own instructions, tools and a short exchange take; 0 where it sends
    /// little more than what it is told to.
    pub(super) least: usize,
}

/// What connects a client to one server.
#[derive(Default)]
pub(super) struct Settings {
    /// Files for those who keep the settings.
    pub(super) files: Vec<File>,
    /// Environment of the client.
    pub(super) variables: Vec<Variable>,
    /// What to do in a settings panel.
    pub(super) steps: Vec<String>,
    /// The command line or program text that uses all this.
    pub(super) example: String,
    pub(super) notes: Vec<String>,
    /// How `--run` starts it; `None` where it reads its settings from its own places only.
    pub(super) launch: Option<Launch>,
}

/// A settings file.
pub(super) struct File {
    /// Systems and the paths there.
    pub(super) places: &'static [(&'static str, &'static str)],
    pub(super) format: Format,
    pub(super) text: String,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Toml,
    Yaml,
}

/// An environment variable.
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) value: Value,
}

/// A text that is known only when it is used.
pub(super) enum Value {
    Text(String),
    /// The server's key.
    Key,
    /// A file of the run's own folder; the folder itself where the name is empty.
    Path(&'static str),
}

/// How a client is started with settings of its own.
pub(super) struct Launch {
    /// The program; `None` is the first of the user's arguments.
    pub(super) program: Option<&'static str>,
    /// Its first arguments. The key is never one: other users of the machine can read them.
    pub(super) arguments: Vec<Value>,
    /// What follows where the user gives no arguments.
    pub(super) otherwise: &'static [&'static str],
    pub(super) variables: Vec<Variable>,
    /// Variables that would lead it elsewhere.
    pub(super) removed: &'static [&'static str],
    /// Files of the run's own folder, which only this user can read.
    pub(super) files: Vec<(&'static str, String)>,
}

impl Launch {
    /// Of a program that finds all in its environment.
    pub(super) fn new(program: &'static str, variables: Vec<Variable>) -> Self {
        Launch {
            program: Some(program),
            arguments: Vec::new(),
            otherwise: &[],
            variables,
            removed: &[],
            files: Vec::new(),
        }
    }
}

/// A variable with a text that is no secret.
pub(super) fn text(name: &'static str, value: impl ToString) -> Variable {
    Variable { name, value: Value::Text(value.to_string()) }
}

/// A variable that holds the server's key.
pub(super) fn key(name: &'static str) -> Variable {
    Variable { name, value: Value::Key }
}

/// A JSON text over several lines.
pub(super) fn json(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

/// A string in quotes that JSON, TOML and YAML read alike: names with control characters, on which
/// they differ, are refused before.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The key as `reference`, or the word that stands for it where the server has none.
pub(super) fn key_or_word<'a>(server: &'a Server, reference: &'a str) -> &'a str {
    if server.key.is_some() { reference } else { server.key_text() }
}

/// As a shell takes it, whatever is in it.
pub(super) fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
