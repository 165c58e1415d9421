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
    /// Tokens of the longest context that the model could be served with.
    pub max_context: usize,
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
    /// Switches thinking off where neither the request nor the model wants it.
    pub(crate) fn default_thinking(&self, kwargs: &mut Map<String, Value>) {
        if !kwargs.contains_key("enable_thinking") && !self.thinking {
            kwargs.insert("enable_thinking".to_owned(), false.into());
        }
    }

    /// The text of a conversation as the model's template writes it.
    pub(crate) fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
        add_generation_prompt: bool,
    ) -> Result<String, ApiError> {
        let messages = lily_text::normalise_messages(messages)?;
        let options = RenderOptions { messages: &messages, tools, add_generation_prompt, kwargs };
        Ok(self.template.render(&options)?)
    }

    /// Renders and tokenises a conversation. Takes a while for long ones: not
    /// for an async thread.
    pub(crate) fn prompt(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
    ) -> Result<Prompt, ApiError> {
        self.tokenised(&self.render(messages, tools, kwargs, true)?)
    }

    /// [`Model::prompt`] for an answer that goes on where the last message, the assistant's,
    /// leaves off.
    pub(crate) fn continuation(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
    ) -> Result<Prompt, ApiError> {
        self.tokenised(&self.render_open(messages, tools, kwargs)?)
    }

    /// The text of a conversation up to the end of what its last message says.
    pub(crate) fn render_open(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
    ) -> Result<String, ApiError> {
        // Cut off where it shows up: any other text might also be the template's.
        const END: &str = "\u{e000}";
        let refused = || {
            ApiError::field(
                "continue_final_message",
                "needs a last message of the assistant with content and without tool calls",
            )
        };
        // A system message at the end is not the last one any more once it has been merged.
        let begun = messages.last().is_some_and(|last| last["role"] == "assistant");
        let mut messages = lily_text::normalise_messages(messages)?;
        let last = messages.last_mut().filter(|_| begun).ok_or_else(refused)?;
        let content = last["content"].as_str().unwrap_or_default().trim_end();
        let calls = last["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
        if content.is_empty() || calls {
            return Err(refused());
        }
        last["content"] = format!("{content}{END}").into();
        let mut text = self.render(&messages, tools, kwargs, false)?;
        text.truncate(text.rfind(END).ok_or_else(refused)?);
        Ok(text)
    }

    fn tokenised(&self, text: &str) -> Result<Prompt, ApiError> {
        let tokens = self.tokenizer.encode(text)?;
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
