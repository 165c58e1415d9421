//! What an answer is held to: a form, a budget for thinking.

use anyhow::{Context, Result};
use lily_text::{AnswerPlan, AnswerRules, Format, Tokenizer};

use super::output::read_text;
use crate::args::RuleArgs;
use crate::failure::usage;

/// The rules of a command line, their files read.
pub(super) struct Rules {
    pub(super) format: Option<Format>,
    /// Tokens that the thinking may have.
    pub(super) thinking_budget: Option<usize>,
}

impl Rules {
    /// # Errors
    /// A file that cannot be read, or is no JSON where it must be.
    pub(super) fn read(args: &RuleArgs) -> Result<Self> {
        let format = match (&args.json_schema, &args.regex, &args.grammar) {
            (Some(file), ..) => {
                let schema = serde_json::from_str(&read_text(file)?);
                Some(Format::JsonSchema(
                    schema.with_context(|| format!("{} is not JSON", file.display()))?,
                ))
            }
            (_, Some(regex), _) => Some(Format::Regex(regex.clone())),
            (.., Some(file)) => Some(Format::Lark(read_text(file)?)),
            (None, None, None) => None,
        };
        Ok(Rules { format, thinking_budget: args.thinking_budget })
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
            if error.is_client_fault() { usage(error.to_string()) } else { error.into() }
        })
    }
}
