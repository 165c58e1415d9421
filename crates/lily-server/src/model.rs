//! What the routes must know of the loaded model, and the way from messages to
//! prompt tokens.

use std::sync::Arc;

use lily_engine::GenerateOptions;
use lily_text::ChatTemplate;
use lily_text::RenderOptions;
use lily_text::Tokenizer;
use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;

/// The text side of a loaded model; cheap to clone.
#[derive(Clone)]
pub struct Model {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Messages to prompt text.
    pub template: Arc<ChatTemplate>,
    /// Whether the model thinks when a request does not say.
    pub thinking: bool,
    /// Tokens that prompt and answer may have together.
    pub context: usize,
    /// Sampling and stop tokens where a request does not say otherwise.
    pub defaults: GenerateOptions,
}

/// A rendered and tokenised prompt.
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// The prompt ends inside a think block, so the answer starts in it.
    pub(crate) starts_in_thinking: bool,
}

impl Model {
    /// Renders and tokenises a conversation. Takes a while for long ones: not
    /// for an async thread.
    pub(crate) fn prompt(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
    ) -> Result<Prompt, ApiError> {
        let messages = lily_text::normalise_messages(messages)?;
        let text = self.template.render(&RenderOptions {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            kwargs,
        })?;
        let tokens = self.tokenizer.encode(&text)?;
        if tokens.is_empty() {
            return Err(ApiError::PromptEmpty);
        }
        // The answer needs room for one token at least.
        if tokens.len() >= self.context {
            return Err(ApiError::PromptTooLong { tokens: tokens.len(), context: self.context });
        }
        // What the template wrote counts, not the flag: a template may know no
        // thinking, or always think.
        let starts_in_thinking = text.trim_end().ends_with("<think>");
        Ok(Prompt { tokens, starts_in_thinking })
    }
}
