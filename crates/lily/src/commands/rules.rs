//! What an answer is held to: a form, a budget for thinking.

use std::path::Path;

use anyhow::Result;
use lily_text::{AnswerPlan, AnswerRules, Format, Tokenizer};

use super::output::read_text;
use crate::args::RuleArgs;
use crate::failure::usage;

/// The rules of a command line, their files read.
pub(super) struct Rules {
    pub(super) format: Option<Format>,
    /// The file of the form.
    file: Option<String>,
    /// Tokens that the thinking may have.
    pub(super) thinking_budget: Option<usize>,
}

impl Rules {
    /// # Errors
    /// A file that cannot be read; one that is no JSON where it must be is wrong usage.
    pub(super) fn read(args: &RuleArgs) -> Result<Self> {
        let format = match (&args.json_schema, &args.regex, &args.grammar) {
            (Some(file), ..) => {
                let schema = serde_json::from_str(&read_text(file)?);
                Some(Format::JsonSchema(schema.map_err(|error| {
                    usage(format!("--json-schema {} is not JSON: {error}", file.display()))
                })?))
            }
            (_, Some(regex), _) => Some(Format::Regex(regex.clone())),
            (.., Some(file)) => Some(Format::Lark(grammar(file)?)),
            (None, None, None) => None,
        };
        let file = args.json_schema.as_ref().or(args.grammar.as_ref());
        let file = file.map(|file| file.display().to_string());
        Ok(Rules { format, file, thinking_budget: args.thinking_budget })
    }

    /// Whether everything is left to the model.
    pub(super) fn is_free(&self) -> bool {
        self.format.is_none() && self.thinking_budget.is_none()
    }

    /// Makes them ready for a model; `None` if they leave everything to it.
    ///
    /// # Errors
    /// A form that cannot be honoured is wrong usage.
    pub(super) fn plan(&self, tokenizer: &Tokenizer) -> Result<Option<AnswerPlan>> {
        let (format, thinking_budget) = (self.format.as_ref(), self.thinking_budget);
        let rules = AnswerRules { format, thinking_budget, ..AnswerRules::default() };
        AnswerPlan::new(tokenizer, rules).map_err(|error| {
            if !error.is_client_fault() {
                return error.into();
            }
            match &self.file {
                Some(file) => usage(format!("{file}: {error}")),
                None => usage(error.to_string()),
            }
        })
    }
}

/// The text of a grammar's file; a grammar in its place is told apart from a wrong path.
fn grammar(file: &Path) -> Result<String> {
    let text = read_text(file);
    if text.is_err() && file.to_string_lossy().contains(": ") && !file.exists() {
        return Err(usage(
            "--grammar takes the path of a file that holds the grammar, not its text",
        ));
    }
    text
}
