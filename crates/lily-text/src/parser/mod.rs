//! Generated text to reasoning, content and tool calls.

mod machine;
mod markup;
mod stop;
mod tool_call;
mod values;

use std::ops::Range;

use serde_json::Value;

use crate::detokenizer::Detokenizer;
use crate::tokenizer::Tokenizer;
use machine::Machine;
pub(crate) use markup::{CALL, THINK_END};
pub(crate) use values::{ToolSchemas, Types};

/// What the parser has to know about the request.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// Whether the prompt ended inside a think block; see [`ends_in_thinking`].
    pub starts_in_thinking: bool,
    /// The tools that were sent, as the request gives them. Without any,
    /// tool-call markup is content.
    pub tools: Option<Vec<Value>>,
    /// Stop strings; empty ones are ignored.
    pub stop: Vec<String>,
    /// The answer is content from its first to its last character: neither
    /// reasoning nor calls are looked for. Nobody asked in a chat.
    pub plain: bool,
}

/// A piece of the answer. The pieces of a kind, joined in order, are the whole.
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
    /// More of a call's arguments. The fragments of a call that has ended,
    /// joined, are the text of a JSON object.
    ToolCallArguments {
        /// Position of the call in the answer.
        index: usize,
        /// The fragment.
        fragment: String,
    },
    /// A tool call is complete. Missing if the answer was cut off inside it.
    ToolCallEnd {
        /// Position of the call in the answer.
        index: usize,
    },
}

/// An event, and where in the answer it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The event.
    pub event: OutputEvent,
    /// Bytes of the answer's text that a piece of content is a copy of; see
    /// [`OutputParser::position`]. Empty for any other event.
    pub span: Range<usize>,
}

/// Splits an answer into its parts while it is being generated.
///
/// How the answer is cut into tokens makes no difference to the joined events.
///
/// The text of an answer is `reasoning </think> content`, and the content may
/// hold tool calls:
///
/// ```text
/// <tool_call>
/// <function=NAME>
/// <parameter=KEY>
/// VALUE
/// </parameter>
/// </function>
/// </tool_call>
/// ```
///
/// What is decided here, for streaming and complete answers alike, since both
/// are made of the same events:
///
/// - *Reasoning.* An answer to a prompt that ends in `<think>` begins with
///   reasoning; an opening tag at its head is dropped. To any other prompt,
///   only `<think>` and a new line at the very head open reasoning. Later
///   `<think>` and `</think>` are text. Reasoning is trimmed, and so are the
///   line breaks between `</think>` and the content.
/// - *Where a call begins.* With tools, `<tool_call>` followed by
///   `<function=NAME>` begins a call in the content. If a tool has that name,
///   it also does so in an unclosed think block, which it ends, and in the
///   content a bare `<function=NAME>` is enough. Anything else that looks
///   similar is text. Without tools there are no calls. White space around
///   calls is dropped.
/// - *Values.* Text becomes JSON by the type in the tool's schema: `null` is
///   null; integral floats are integers; objects and arrays are taken over if
///   they are JSON; what fits no allowed type is passed as a string. Without a
///   type only objects and arrays are taken apart. One line break at either end
///   of a value belongs to the markup. A closing tag inside a value is part
///   of it unless the next tag of the format, or the end of the answer, follows.
///   A missing `</parameter>` is made up for where the end is clear. A key given
///   twice appears twice.
/// - *Text between the parameters* of a call belongs to no parameter; it
///   becomes content after the call.
/// - *An answer cut off inside a call* gives out the part there is: the
///   arguments stop in the middle and no [`OutputEvent::ToolCallEnd`] follows.
///   They are deliberately not completed to valid JSON, so that half a command
///   cannot be taken for a whole one. A call whose last parameter was closed
///   counts as complete. Tags that are cut themselves are dropped, and so is a
///   call cut off before its name is known: there is nothing in it yet.
/// - *Stop strings* match in the content only, not in reasoning and not inside
///   a call, which would cut it in half. They see neither tags nor the white
///   space that is dropped after them.
#[derive(Debug)]
pub struct OutputParser {
    detokenizer: Detokenizer,
    machine: Machine,
}

impl OutputParser {
    /// A parser at the start of an answer.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, options: ParserOptions) -> Self {
        Self { detokenizer: Detokenizer::new(tokenizer), machine: Machine::new(&options) }
    }

    /// Takes the next token and gives what has become certain. The stop token
    /// that ends an answer may be passed or not: it is special, hence hidden.
    pub fn push(&mut self, token: u32) -> Vec<OutputEvent> {
        self.push_located(token).into_iter().map(|located| located.event).collect()
    }

    /// [`OutputParser::push`], with the place of what comes out.
    pub fn push_located(&mut self, token: u32) -> Vec<Located> {
        let text = self.detokenizer.push(token);
        self.machine.push(&text)
    }

    /// Ends the answer and gives what was held back.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        self.finish_located().into_iter().map(|located| located.event).collect()
    }

    /// [`OutputParser::finish`], with the place of what comes out.
    pub fn finish_located(&mut self) -> Vec<Located> {
        let text = self.detokenizer.finish();
        self.machine.finish(&text)
    }

    /// Bytes of the answer that were pushed, hidden tokens apart. A token's text
    /// stands between the positions before and after it.
    #[must_use]
    pub fn position(&self) -> usize {
        self.machine.position() + self.detokenizer.held()
    }

    /// Whether what has come so far is reasoning that has not ended.
    #[must_use]
    pub fn in_reasoning(&self) -> bool {
        matches!(self.stage(), Stage::Reasoning { .. })
    }

    /// Where the answer stands.
    pub(crate) fn stage(&self) -> Stage<'_> {
        self.machine.stage()
    }

    /// Whether the last token ended inside a character.
    pub(crate) fn inside_character(&self) -> bool {
        self.detokenizer.held() > 0
    }

    /// Whether a stop string was met. Generation should end then; nothing more
    /// is given out.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.machine.stopped()
    }

    /// Which stop string was met: its position in [`ParserOptions::stop`].
    #[must_use]
    pub fn stop_string(&self) -> Option<usize> {
        self.machine.stop_string()
    }
}

/// Where an answer stands that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage<'a> {
    /// Nothing has come that tells whether it begins with reasoning.
    Head,
    /// In the reasoning.
    Reasoning {
        /// The end of the text, which may be the beginning of markup.
        undecided: &'a str,
    },
    /// Behind it, or there is none.
    Answer,
}

/// Whether a prompt ends inside a think block, as the generation prompt of a
/// thinking model does.
#[must_use]
pub fn ends_in_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(markup::THINK)
}

#[cfg(test)]
mod tests;
