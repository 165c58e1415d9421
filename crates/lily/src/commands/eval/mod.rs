//! `lily eval`: how good a model, or this program's arithmetic, is.

mod conversations;
mod likelihood;
mod reference;
mod text;

use anyhow::Result;

use super::output::print_pretty;
use crate::args::EvalArgs;

pub(crate) fn run(args: &EvalArgs) -> Result<()> {
    let report = if let Some(file) = &args.reference {
        reference::run(args, file)?
    } else if let Some(file) = &args.conversations {
        conversations::run(args, file)?
    } else if let Some(file) = &args.text {
        text::run(args, file)?
    } else {
        unreachable!("the parser demands one of the three")
    };
    print_pretty(&report)?;
    Ok(())
}
