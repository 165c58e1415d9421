//! The command line: glue between the libraries, and the only crate that prints.
//!
//! The one idea: arguments are parsed without doing any work (`args`), a command turns them into
//! library calls (`commands`), and every error takes one way out, through `main`, as one line.
//!
//! What it deliberately lacks: arithmetic, formats, HTTP. A command that needs such a thing finds it
//! in a library crate.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod demo;
mod device;
mod failure;
mod model;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

fn main() -> ExitCode {
    // Exits with code 2 on wrong usage, 0 on --help and --version.
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
