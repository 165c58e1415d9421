//! The interactive session: line editing, history, commands.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::Chat;
use super::slash::{self, Input};
use crate::args::{ChatArgs, Switch};
use crate::device::describe;

pub(super) fn run(chat: &mut Chat<'_>, args: &ChatArgs) -> Result<()> {
    let mut editor = DefaultEditor::new()?;
    let history = if args.no_history { None } else { history_file() };
    if let Some(file) = &history {
        // There is none the first time.
        let _ = editor.load_history(file);
    }
    let device = describe(&chat.loaded.device);
    eprintln!("{} on {device} is ready; /help lists commands, /quit leaves", chat.loaded.name);
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        if !line.trim().is_empty() {
            editor.add_history_entry(line.as_str())?;
        }
        if !obey(chat, slash::parse(&line))? {
            break;
        }
    }
    if let Some(file) = &history {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        editor.save_history(file)?;
    }
    Ok(())
}

/// Carries out one line; `false` ends the session.
fn obey(chat: &mut Chat<'_>, input: Input<'_>) -> Result<bool> {
    match input {
        Input::Empty => {}
        Input::Quit => return Ok(false),
        Input::Help => eprintln!("{}", slash::HELP),
        Input::Reset => {
            chat.turns.clear();
            eprintln!("the conversation is forgotten");
        }
        Input::Think(think) => {
            chat.think = think.unwrap_or(chat.think);
            eprintln!("thinking is {}", if chat.think == Switch::On { "on" } else { "off" });
        }
        Input::BadThink => eprintln!("/think takes on or off"),
        Input::System(text) => {
            chat.system = text.map(str::to_owned);
            chat.turns.clear();
            eprintln!("the system prompt is {}", if text.is_some() { "set" } else { "removed" });
        }
        Input::Unknown(line) => eprintln!("no such command: {line}; /help lists them"),
        Input::Question(question) => match chat.ask(question) {
            Ok(answer) => eprintln!("{}", answer.summary),
            // A question that does not fit ends that question, not the session.
            Err(error) => drop(crate::failure::report(&error)),
        },
    }
    Ok(true)
}

/// `$XDG_STATE_HOME/lily/history`, by default under `~/.local/state`.
fn history_file() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("lily/history"))
}
