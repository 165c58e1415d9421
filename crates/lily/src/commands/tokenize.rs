//! `lily tokenize`: text to ids, as a JSON array.

use anyhow::{Context, Result};
use serde_json::json;

use super::output::{print_line, read_text};
use crate::args::TokenizeArgs;
use crate::model;

pub(crate) fn run(args: &TokenizeArgs) -> Result<()> {
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) => unreachable!("the parser demands one of the two"),
    };
    let ids = model::tokenizer(&args.model)?.encode(&text).context("cannot tokenize")?;
    print_line(&json!(ids))?;
    Ok(())
}
