//! One module per command; each turns its flags into library calls.

mod bench;
mod chat;
mod completions;
mod connect;
mod doctor;
mod eval;
mod generate;
mod inspect;
mod interrupt;
mod make_checkpoint;
mod models;
mod output;
mod pack;
mod plan;
mod pull;
mod render;
mod rules;
mod serve;
mod speed;
mod tokenize;

use std::process::ExitCode;

use anyhow::Result;

pub(crate) use self::output::counted;

use crate::args::{Cli, Command};

/// Runs what the command line asks for.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        None => serve::run(&cli.serve)?,
        Some(Command::Chat(args)) => return chat::run(&args),
        Some(Command::Serve(args)) => serve::run(&args)?,
        Some(Command::Generate(args)) => return generate::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args)?,
        Some(Command::Plan(args)) => plan::run(&args)?,
        Some(Command::Eval(args)) => eval::run(&args)?,
        Some(Command::Bench(args)) => bench::run(&args)?,
        Some(Command::Tokenize(args)) => tokenize::run(&args)?,
        Some(Command::Render(args)) => render::run(&args)?,
        Some(Command::MakeCheckpoint(args)) => make_checkpoint::run(&args)?,
        Some(Command::Pack(args)) => pack::run(&args)?,
        Some(Command::Pull(args)) => pull::run(&args)?,
        Some(Command::Models(args)) => models::run(&args)?,
        Some(Command::Doctor(args)) => doctor::run(&args)?,
        Some(Command::Connect(args)) => return connect::run(&args),
        Some(Command::Completions(args)) => completions::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
