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
mod hub;
mod model;

use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(args::parse_or_exit()) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
