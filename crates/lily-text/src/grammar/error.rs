//! Why a grammar is refused.

use thiserror::Error;

/// What is wrong with one grammar or schema.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A keyword of a JSON schema that cannot be honoured as it stands there.
    #[error("the keyword \"{keyword}\" at {place} {complaint}")]
    Keyword {
        /// JSON pointer to the schema that holds the keyword, as a fragment: `#/properties/a`.
        place: String,
        /// The keyword.
        keyword: String,
        /// What is wrong with it.
        complaint: String,
    },
    /// Something is not of the form it must have.
    #[error("{place} must be {expected}")]
    Form {
        /// Where, as in [`Refusal::Keyword`].
        place: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// More than is accepted.
    #[error("the {what} is {found}, at most {max} is accepted")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// How much there may be.
        max: usize,
    },
    /// There is nothing in it.
    #[error("{what} must not be empty")]
    Empty {
        /// What is empty.
        what: &'static str,
    },
    /// `llguidance` refuses it.
    #[error("the {kind} cannot be followed: {reason}")]
    Grammar {
        /// What it is.
        kind: &'static str,
        /// The words of `llguidance`.
        reason: String,
    },
}

/// Why an answer cannot be guided as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The form of the content cannot be honoured.
    #[error("{0}")]
    Format(Refusal),
    /// The parameters of a tool cannot be honoured.
    #[error("{refusal}")]
    Tool {
        /// Position of the tool in the request.
        index: usize,
        /// Why.
        refusal: Refusal,
    },
    /// The tokenizer cannot be used for grammars, or there is no thread to compile on.
    #[error("grammars cannot be used: {reason}")]
    Environment {
        /// What went wrong.
        reason: String,
    },
}

impl GrammarError {
    /// Whether the request is to blame.
    #[must_use]
    pub fn is_client_fault(&self) -> bool {
        !matches!(self, GrammarError::Environment { .. })
    }
}
