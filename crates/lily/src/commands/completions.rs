//! `lily completions`: generated from the same definitions as the help.

use std::io::{self, Write};

use anyhow::Result;
use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};

pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    // Through a buffer: the generator panics when the pipe is closed early.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lily", &mut script);
    io::stdout().write_all(&script)?;
    Ok(())
}
