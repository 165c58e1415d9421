//! Generated text to reasoning, content and tool calls.

use serde_json::Value;

use crate::detokenizer::Detokenizer;
use crate::tokenizer::Tokenizer;

/// What the parser has to know about the request.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// Whether the prompt ended inside a think block.
    pub starts_in_thinking: bool,
    /// The tools that were sent; without any, tool-call markup is content.
    pub tools: Option<Vec<Value>>,
    /// Stop strings. They match in the content only.
    pub stop: Vec<String>,
}

/// A piece of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the content.
    Content(String),
    /// A tool call begins.
    ToolCallStart {
        /// Position of the call in the answer, from 0.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// More of a call's arguments; a call's fragments, joined, are a JSON object.
    ToolCallArguments {
        /// Position of the call in the answer.
        index: usize,
        /// The fragment.
        fragment: String,
    },
    /// A tool call is complete.
    ToolCallEnd {
        /// Position of the call in the answer.
        index: usize,
    },
}

/// Splits an answer into its parts while it is being generated.
#[derive(Debug)]
pub struct OutputParser {
    detokenizer: Detokenizer,
}

impl OutputParser {
    /// A parser at the start of an answer.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, _options: ParserOptions) -> Self {
        Self { detokenizer: Detokenizer::new(tokenizer) }
    }

    /// Takes the next token.
    pub fn push(&mut self, token: u32) -> Vec<OutputEvent> {
        vec![OutputEvent::Content(self.detokenizer.push(token))]
    }

    /// Ends the answer.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        vec![OutputEvent::Content(self.detokenizer.finish())]
    }

    /// Whether a stop string was met: generation should end, nothing more is given out.
    #[must_use]
    pub fn stopped(&self) -> bool {
        false
    }
}
