//! What to try instead, where the parser's own guess by spelling leads astray.

use std::ffi::OsString;
use std::ops::RangeInclusive;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, Parser};
use strsim::osa_distance;

use super::Cli;

/// Parses the command line of the process; wrong usage ends it with code 2, `--help` with 0.
pub(crate) fn parse_or_exit() -> Cli {
    parse(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

pub(super) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, Error> {
    let mut line: Vec<OsString> = line.into_iter().collect();
    if line.len() == 1 {
        // Not by the parser's own setting, which shows the help as an error.
        line.push("-h".into());
    }
    Cli::try_parse_from(&line).map_err(|mut error| {
        match error.kind() {
            ErrorKind::InvalidValue => devices(&mut error),
            ErrorKind::UnknownArgument => {
                flags_of_others(&mut error);
                words_for_serving(&mut error);
            }
            ErrorKind::InvalidSubcommand => commands(&mut error, &line),
            _ => {}
        }
        keep_alike(&mut error, ContextKind::InvalidValue, ContextKind::SuggestedValue);
        keep_alike(&mut error, ContextKind::InvalidArg, ContextKind::SuggestedArg);
        error
    })
}

/// Takes back what the parser suggests for a word that has not much in common with it.
fn keep_alike(error: &mut Error, found: ContextKind, suggested: ContextKind) {
    let (Some(found), Some(suggestion)) = (text(error, found), text(error, suggested)) else {
        return;
    };
    if !alike(&found, &suggestion) {
        error.remove(suggested);
    }
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

/// What others call a flag that names the model, or one of `lily serve`, and there a model without a flag.
fn words_for_serving(error: &mut Error) {
    let Some(argument) = text(error, ContextKind::InvalidArg) else { return };
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return };
    let usage = usage.to_string();
    let command = usage.split_once("lily ").map_or("", |(_, rest)| rest);
    let serves = command.starts_with("serve") || command.starts_with(['[', '-']);
    let flag = argument.split('=').next().unwrap_or_default();
    let tip = match flag {
        // `connect` takes no model but its name.
        _ if command.starts_with("connect") => return,
        "-m" | "--model" => "the model is given with '--model-path'".to_owned(),
        _ if !serves => return,
        "-c" | "--ctx-size" | "--max-model-len" => {
            "the length of the context is given with '--context'".to_owned()
        }
        "--alias" | "--served-model-name" => "the name is given with '--model-name'".to_owned(),
        flag if flag.starts_with('-') => return,
        _ => format!("the model is given with '--model-path{}'", quoted(&[&argument])),
    };
    error.remove(ContextKind::SuggestedArg);
    tell(error, tip);
}

/// What other programs call a command, and what it is here.
enum Meant {
    /// What for, and what goes before the words that followed.
    Command(&'static str, &'static str),
    /// Nothing of the kind, and what there is instead.
    Nothing(&'static str),
}

fn meant(word: &str) -> Option<Meant> {
    Some(match word.to_lowercase().as_str() {
        "run" | "ask" => Meant::Command("to ask the model", "chat"),
        "list" | "ls" | "ps" => Meant::Command("to list the models in the cache", "models"),
        "download" | "fetch" | "get" => Meant::Command("to fetch a model", "pull"),
        "server" => Meant::Command("to serve the HTTP API", "serve"),
        "show" | "info" => Meant::Command("to see what a checkpoint holds", "inspect"),
        "benchmark" => Meant::Command("to measure speed", "bench"),
        "perplexity" => Meant::Command("to measure quality", "eval"),
        "convert" | "quantize" | "quantise" | "create" => Meant::Nothing(
            "there is no such step: lily reads MLX 4-bit checkpoints as they are; 'lily pull' \
             fetches one, 'lily pack' writes one as a single file",
        ),
        "rm" | "remove" | "delete" => Meant::Nothing(
            "lily deletes nothing: 'lily models --json' says in which folder the models are",
        ),
        _ => return None,
    })
}

/// A word that is no command: one of another program, a misspelt one, or a question.
fn commands(error: &mut Error, line: &[OsString]) {
    let Some(word) = text(error, ContextKind::InvalidSubcommand) else { return };
    let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
    let Some(at) = words.iter().position(|typed| *typed == word).filter(|&at| at > 0) else {
        return;
    };
    let asks_for_help = words[1] == "help";
    if asks_for_help && at > 2 {
        return;
    }
    let rest = &words[at + 1..];
    error.remove(ContextKind::SuggestedSubcommand);
    let is_text = word.contains(char::is_whitespace);
    let similar = if is_text { Vec::new() } else { similar_commands(&word) };
    match meant(&word) {
        Some(Meant::Command(purpose, command)) if asks_for_help => {
            tell(error, format!("{purpose}, there is '{command}': see 'lily help {command}'"));
        }
        Some(Meant::Command(purpose, command)) => {
            let is_model =
                command == "inspect" && rest.first().is_some_and(|w| !w.starts_with('-'));
            let flag = if is_model { " --model-path" } else { "" };
            tell(error, format!("{purpose}, use 'lily {command}{flag}{}'", quoted(rest)));
        }
        Some(Meant::Nothing(instead)) => tell(error, instead.to_owned()),
        None if !similar.is_empty() => {
            error.remove(ContextKind::Suggested);
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(similar));
        }
        None if asks_for_help => {}
        None => tell(error, format!("to ask the model, use 'lily chat{}'", quoted(&words[at..]))),
    }
}

fn similar_commands(word: &str) -> Vec<String> {
    let cli = Cli::command();
    let names = cli.get_subcommands().map(Command::get_name).filter(|name| alike(word, name));
    names.map(str::to_owned).collect()
}

/// Whether one word may be a slip for the other, or for its beginning: one edit for every four letters.
fn alike(a: &str, b: &str) -> bool {
    // Bounded, for the time that comparing takes grows with the product of both lengths.
    const LENGTHS: RangeInclusive<usize> = 3..=64;
    let letters = |word: &str| word.trim_start_matches('-').to_lowercase().chars().collect();
    let (a, b): (Vec<char>, Vec<char>) = (letters(a), letters(b));
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let close = |part: &[char]| {
        let (part, short): (String, String) = (part.iter().collect(), short.iter().collect());
        4 * osa_distance(&part, &short)
    };
    LENGTHS.contains(&short.len())
        && LENGTHS.contains(&long.len())
        && (close(&long) <= long.len() || close(&long[..short.len()]) <= short.len())
}

/// Words as a shell takes them, each behind a space.
fn quoted(words: &[impl AsRef<str>]) -> String {
    let quote = |word: &str| {
        let plain = |c: char| c.is_alphanumeric() || "-_./:=@,+%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            format!(" {word}")
        } else if word.contains(['"', '$', '`', '\\', '!']) {
            format!(" '{}'", word.replace('\'', r"'\''"))
        } else {
            format!(" \"{word}\"")
        }
    };
    words.iter().map(|word| quote(word.as_ref())).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_alike_and_words_that_share_some_letters_are_not() {
        for (typed, meant) in [
            ("chta", "chat"),
            ("chatt", "chat"),
            ("completion", "completions"),
            ("comp", "completions"),
            ("claud", "claude"),
            ("llamacpp", "llama.cpp"),
            ("--devise", "--device"),
            ("--modell", "--model-path"),
            ("PLAN", "plan"),
        ] {
            assert!(alike(typed, meant) && alike(meant, typed), "{typed}");
        }
        let long = "x".repeat(100_000);
        for (typed, other) in [
            ("convert", "connect"),
            ("ollama", "llama.cpp"),
            ("tcsh", "zsh"),
            ("foo", "roo"),
            ("", "chat"),
            ("c", "chat"),
            ("list", "plan"),
            (&long, "chat"),
            (&long, &long),
        ] {
            assert!(!alike(typed, other), "{}", &typed[..typed.len().min(20)]);
        }
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        let words = ["--think", "off", "a/b@v1", "two words", "", "it's $5", "é"];
        assert_eq!(quoted(&words), r#" --think off a/b@v1 "two words" "" 'it'\''s $5' é"#);
    }
}
