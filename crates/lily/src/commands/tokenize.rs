//! `lily tokenize`: text to ids, as a JSON array.

use anyhow::{Context, Result};
use serde_json::json;

use super::output::{piped_text, print_line, read_text};
use crate::args::TokenizeArgs;
use crate::failure::usage;
use crate::model;

pub(crate) fn run(args: &TokenizeArgs) -> Result<()> {
    let tokenizer = model::tokenizer(&args.model)?;
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) => piped_text()?
            .ok_or_else(|| usage("nothing to tokenize: give TEXT or --file, or pipe a text in"))?,
    };
    let ids = tokenizer.encode(&text).context("cannot tokenize")?;
    print_line(&json!(ids))?;
    Ok(())
}
