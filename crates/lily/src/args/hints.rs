//! What to try instead, where the parser's own guess by spelling leads astray.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, Parser};

use super::Cli;

/// Parses the command line of the process; wrong usage ends it with code 2, `--help` with 0.
pub(crate) fn parse_or_exit() -> Cli {
    parse(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

pub(super) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, Error> {
    Cli::try_parse_from(line).map_err(|mut error| {
        match error.kind() {
            ErrorKind::InvalidValue => devices(&mut error),
            ErrorKind::UnknownArgument => {
                flags_of_others(&mut error);
                words_for_serving(&mut error);
            }
            ErrorKind::InvalidSubcommand => questions(&mut error),
            _ => {}
        }
        error
    })
}

/// Words that people have for machines, none of which is spelt like the right one.
fn devices(error: &mut Error) {
    let of_device = text(error, ContextKind::InvalidArg).is_some_and(|a| a.starts_with("--device"));
    let Some(word) = text(error, ContextKind::InvalidValue).filter(|_| of_device) else { return };
    let tip = match word.to_lowercase().as_str() {
        "gpu" => "'auto', the default, takes a GPU where there is one",
        "nvidia" | "geforce" | "rtx" => "'cuda' is an NVIDIA GPU",
        "apple" | "mps" | "mlx" => "'metal' is an Apple GPU",
        _ => return,
    };
    error.remove(ContextKind::SuggestedValue);
    tell(error, tip.to_owned());
}

/// A flag that exists, but elsewhere.
fn flags_of_others(error: &mut Error) {
    let Some(argument) = text(error, ContextKind::InvalidArg) else { return };
    let flag = argument.split('=').next().unwrap_or_default();
    let has_it = |command: &&Command| {
        command.get_arguments().filter(|arg| !arg.is_hide_set()).any(|arg| {
            let long = arg.get_long().map(|long| format!("--{long}"));
            let short = arg.get_short().map(|short| format!("-{short}"));
            long.as_deref() == Some(flag) || short.as_deref() == Some(flag)
        })
    };
    let cli = Cli::command();
    let owners: Vec<_> = cli.get_subcommands().filter(has_it).map(Command::get_name).collect();
    if !owners.is_empty() {
        error.remove(ContextKind::SuggestedArg);
        tell(error, format!("'{flag}' is a flag of {}", owners.join(", ")));
    }
}

/// What other servers call a flag of `lily serve`, and a model that is given without a flag.
fn words_for_serving(error: &mut Error) {
    let Some(argument) = text(error, ContextKind::InvalidArg) else { return };
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return };
    let usage = usage.to_string();
    let command = usage.split_once("lily ").map_or("", |(_, rest)| rest);
    if !command.starts_with("serve") && !command.starts_with(['[', '-']) {
        return;
    }
    let flag = argument.split('=').next().unwrap_or_default();
    let tip = match flag {
        "-m" | "--model" => "the model is given with '--model-path'".to_owned(),
        "-c" | "--ctx-size" | "--max-model-len" => {
            "the length of the context is given with '--context'".to_owned()
        }
        "--alias" | "--served-model-name" => "the name is given with '--model-name'".to_owned(),
        flag if flag.starts_with('-') => return,
        _ => format!("the model is given with '--model-path {}'", quoted(&argument)),
    };
    error.remove(ContextKind::SuggestedArg);
    tell(error, tip);
}

/// A question where a command is expected.
fn questions(error: &mut Error) {
    let Some(word) = text(error, ContextKind::InvalidSubcommand) else { return };
    if word.contains(char::is_whitespace) {
        // No misspelt command.
        error.remove(ContextKind::SuggestedSubcommand);
    }
    tell(error, format!("to ask the model, use 'lily chat {}'", quoted(&word)));
}

/// As a shell takes it.
fn quoted(word: &str) -> String {
    if word.chars().all(char::is_alphanumeric) {
        word.to_owned()
    } else if word.contains(['"', '$', '`', '\\', '!']) {
        format!("'{}'", word.replace('\'', r"'\''"))
    } else {
        format!("\"{word}\"")
    }
}

fn text(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

/// Puts a tip in the place of the parser's own sentences.
fn tell(error: &mut Error, tip: String) {
    let tips = vec![StyledStr::from(tip)];
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
}
