//! What a request may hold an answer to, and the way from there to the engine.

use std::sync::Arc;

use lily_engine::Allowed;
use lily_engine::Guide;
use lily_engine::GuideError;
use lily_engine::TokenMask;
use lily_text::AnswerGuide;
use lily_text::AnswerPlan;
use lily_text::AnswerRules;
pub(crate) use lily_text::Calls as ToolChoice;
use lily_text::Format;
use lily_text::GrammarError;
use lily_text::Permitted;
use lily_text::TextError;
use lily_text::Tokenizer;
use serde_json::Value;

use crate::error::ApiError;

/// The form that the content must have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OutputFormat {
    pub(crate) format: Format,
    /// The field of the request that asks for it.
    pub(crate) field: String,
}

/// What a request holds its answer to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Constraints {
    pub(crate) output_format: Option<OutputFormat>,
    pub(crate) tool_choice: ToolChoice,
    /// Tokens that the reasoning may have.
    pub(crate) thinking_budget: Option<usize>,
}

impl Constraints {
    /// Whether there is nothing to make ready. Tools alone may ask for it: by `strict`.
    pub(crate) fn are_empty(&self, tools: Option<&[Value]>) -> bool {
        *self == Constraints::default() && tools.is_none()
    }

    /// Makes them ready; `None` if they leave everything to the model. Takes a while: not for an
    /// async thread.
    pub(crate) fn plan(
        &self,
        tokenizer: &Tokenizer,
        tools: Option<&[Value]>,
        single_call: bool,
    ) -> Result<Option<AnswerPlan>, ApiError> {
        let tools = tools.unwrap_or_default();
        let rules = AnswerRules {
            format: self.output_format.as_ref().map(|output| &output.format),
            tools,
            calls: Some(&self.tool_choice),
            single_call,
            thinking_budget: self.thinking_budget,
        };
        AnswerPlan::new(tokenizer, rules).map_err(|error| self.refuse(&error, tools))
    }

    /// Refuses what says something about an answer as a whole, where it goes on in a message that has
    /// begun.
    pub(crate) fn check_continuation(&self) -> Result<(), ApiError> {
        let field = match (&self.output_format, &self.tool_choice) {
            (Some(output), _) => &output.field,
            (None, ToolChoice::Required | ToolChoice::Named(_)) => "tool_choice",
            _ => return Ok(()),
        };
        Err(ApiError::field(field, "cannot be combined with 'continue_final_message'"))
    }

    fn refuse(&self, error: &GrammarError, tools: &[Value]) -> ApiError {
        match error {
            GrammarError::Format(refusal) => {
                let field = self.output_format.as_ref().map(|output| output.field.as_str());
                let field = field.unwrap_or("response_format");
                ApiError::unsupported(field, format_args!("cannot be honoured: {refusal}"))
            }
            GrammarError::Tool { index, refusal } => {
                let tool = tools.get(*index).unwrap_or(&Value::Null);
                let name = &tool.get("function").unwrap_or(tool)["name"];
                ApiError::unsupported(
                    "tools",
                    format_args!("cannot be honoured for the function {name}: {refusal}"),
                )
            }
            other => ApiError::Internal(other.to_string()),
        }
    }
}

/// A guide for the engine that keeps one answer to its plan.
#[must_use]
pub fn engine_guide(guide: AnswerGuide) -> Box<dyn Guide> {
    Box::new(EngineGuide { guide, mask: None })
}

struct EngineGuide {
    guide: AnswerGuide,
    /// The mask given last, and what it was made of: plans give the same one again and again.
    mask: Option<(Arc<Vec<u32>>, Arc<TokenMask>)>,
}

impl Guide for EngineGuide {
    fn allowed(&mut self) -> Result<Allowed, GuideError> {
        Ok(match self.guide.allowed().map_err(guide_error)? {
            Permitted::Any => Allowed::Any,
            Permitted::Tokens(words) => Allowed::Tokens(self.mask(words)),
            Permitted::Only(token) => Allowed::Only(token),
            Permitted::End => Allowed::End,
            Permitted::Unguided => Allowed::Unguided,
        })
    }

    fn chosen(&mut self, token: u32) -> Result<(), GuideError> {
        self.guide.chosen(token).map_err(guide_error)
    }
}

impl EngineGuide {
    fn mask(&mut self, words: Arc<Vec<u32>>) -> Arc<TokenMask> {
        if let Some((last, mask)) = &self.mask
            && Arc::ptr_eq(last, &words)
        {
            return Arc::clone(mask);
        }
        let mask = Arc::new(TokenMask::from_words(words.to_vec()));
        self.mask = Some((words, Arc::clone(&mask)));
        mask
    }
}

fn guide_error(error: TextError) -> GuideError {
    GuideError { message: error.to_string() }
}
