//! `lily eval`: how good a model, or this program's arithmetic, is.

mod conversations;
mod likelihood;
mod reference;
mod text;

use anyhow::Result;

use super::output::print_pretty;
use crate::args::EvalArgs;
use crate::failure::usage;
use crate::model;

pub(crate) fn run(args: &EvalArgs) -> Result<()> {
    model::check(&args.model)?;
    let report = if let Some(file) = &args.reference {
        reference::run(args, file)?
    } else if let Some(file) = &args.conversations {
        conversations::run(args, file)?
    } else if let Some(file) = &args.text {
        text::run(args, file)?
    } else {
        return Err(usage("nothing to measure: give FILE, --reference or --conversations"));
    };
    print_pretty(&report)?;
    Ok(())
}
