//! What can go wrong between text and tokens, and whose fault it is.

use thiserror::Error;

/// Everything `lily-text` can refuse.
///
/// [`TextError::is_client_fault`] tells a server which of these are answers to
/// a bad request (4xx) and which mean that the model's own files do not work
/// (5xx, or a refusal to start).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// `tokenizer.json` cannot be read.
    #[error("tokenizer.json cannot be read: {reason}")]
    Tokenizer {
        /// What the reader says.
        reason: String,
    },

    /// `tokenizer.json` describes a tokenizer outside this family.
    #[error("the tokenizer's {part} is {found}, expected {expected}")]
    UnsupportedTokenizer {
        /// The part of the pipeline, for example `decoder`.
        part: &'static str,
        /// What this crate can run.
        expected: &'static str,
        /// What the file asks for.
        found: String,
    },

    /// A text cannot be tokenised.
    #[error("the text cannot be tokenised: {reason}")]
    Encode {
        /// What the tokenizer says.
        reason: String,
    },

    /// The chat template does not parse, or asks for something this crate does
    /// not provide.
    #[error("the chat template does not work: {reason} (line {line})")]
    Template {
        /// What the template engine says.
        reason: String,
        /// Line in the template, 0 if unknown.
        line: usize,
    },

    /// The chat template did more work than a conversation of this size can
    /// need.
    #[error("rendering the chat template exceeded its budget of {fuel} steps")]
    TemplateBudget {
        /// The budget that was granted.
        fuel: u64,
    },

    /// The chat template refused the conversation with `raise_exception`.
    #[error("{message}")]
    TemplateRaised {
        /// The template's own message.
        message: String,
    },

    /// The conversation does not have the form the chat template works with.
    #[error("the messages do not fit the chat template: {reason} (template line {line})")]
    Render {
        /// What the template engine says.
        reason: String,
        /// Line in the template, 0 if unknown.
        line: usize,
    },

    /// A template argument would overwrite one of the template's own inputs.
    #[error("the chat template argument `{name}` is reserved")]
    ReservedArgument {
        /// Name of the argument.
        name: String,
    },

    /// A grammar could not be followed any further.
    #[error("the grammar cannot be followed: {reason}")]
    Guide {
        /// What went wrong.
        reason: String,
    },

    /// The conversation is empty.
    #[error("`messages` is empty, expected at least one message")]
    NoMessages,

    /// A field of a message has the wrong form.
    #[error("`messages[{index}].{field}` is {found}, expected {expected}")]
    MessageField {
        /// Position of the message.
        index: usize,
        /// Path of the field inside the message.
        field: String,
        /// What the field must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },

    /// A message is not a JSON object.
    #[error("`messages[{index}]` is {found}, expected an object")]
    MessageForm {
        /// Position of the message.
        index: usize,
        /// What it is.
        found: &'static str,
    },

    /// A message has a role nobody knows.
    #[error(
        "`messages[{index}].role` is `{role}`, expected `system`, `developer`, `user`, `assistant` or `tool`"
    )]
    UnknownRole {
        /// Position of the message.
        index: usize,
        /// The role it names.
        role: String,
    },

    /// A content part this model cannot take in.
    #[error(
        "`messages[{index}].content[{part}]` is of type `{kind}`, which this model does not accept: only `text` parts are supported"
    )]
    UnsupportedPart {
        /// Position of the message.
        index: usize,
        /// Position of the part in the message's content.
        part: usize,
        /// The `type` of the part.
        kind: String,
    },
}

impl TextError {
    /// Whether the request is to blame, rather than the model's files.
    #[must_use]
    pub fn is_client_fault(&self) -> bool {
        match self {
            Self::Tokenizer { .. }
            | Self::UnsupportedTokenizer { .. }
            | Self::Template { .. }
            | Self::TemplateBudget { .. }
            | Self::Guide { .. } => false,
            Self::Encode { .. }
            | Self::TemplateRaised { .. }
            | Self::Render { .. }
            | Self::ReservedArgument { .. }
            | Self::NoMessages
            | Self::MessageField { .. }
            | Self::MessageForm { .. }
            | Self::UnknownRole { .. }
            | Self::UnsupportedPart { .. } => true,
        }
    }
}
