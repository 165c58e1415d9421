//! Grammars: which tokens an answer of a given form may go on with.
//!
//! `llguidance` does the matching. What is decided here: what a request may ask for ([`Format`],
//! and tool calls in this family's markup), that nothing it asks for is silently dropped, and that
//! no request costs more than a bounded amount of time and memory.

mod calls;
mod environment;
mod error;
mod lark;
mod parameters;
mod schema;
mod words;

use llguidance::Matcher;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;
use serde_json::json;

use self::words::{tidy, without_place};
use crate::tokenizer::Tokenizer;

pub(crate) use calls::{CallForm, Function, Otherwise, call_grammars};
pub(crate) use environment::Environment;
pub use error::{GrammarError, Refusal};

/// What a regular expression is called in errors.
const REGEX: &str = "regular expression";
/// Longest text of a regular expression or Lark grammar, in bytes.
const MAX_TEXT: usize = 1 << 16;
/// Alternatives of a choice at most.
const MAX_CHOICES: usize = 4_096;

/// White space between the parts of a JSON text: what people write, without the endless runs that
/// a model can get lost in.
const JSON_SPACE: &str = r"[\x20\t]{1,4}|[\x20\t]{0,4}\r?\n[\x20\t]{0,64}";

/// Stack of the thread that compiles. Schemas nest and refer to each other; the number of their
/// parts is bounded, and this is enough for that many.
const STACK_BYTES: usize = 128 << 20;

/// The form that the content of an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// A JSON object, whatever its fields.
    JsonObject,
    /// JSON that is valid under this schema.
    JsonSchema(Value),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of the grammar, in the dialect of Lark that `llguidance` reads.
    Lark(String),
}

impl Format {
    fn is_json(&self) -> bool {
        matches!(self, Format::JsonObject | Format::JsonSchema(_))
    }

    /// The grammar by itself, to be referred to under `name`.
    pub(crate) fn grammar(&self, name: &str) -> Result<GrammarWithLexer, Refusal> {
        let mut grammar = match self {
            Format::JsonObject => json_grammar(&json!({"type": "object"}))?,
            Format::JsonSchema(schema) => json_grammar(schema)?,
            Format::Regex(regex) => {
                check_text("a regular expression", regex)?;
                GrammarWithLexer::from_regex(regex)
            }
            Format::Choice(choices) => GrammarWithLexer::from_lark(choice(choices)?),
            Format::Lark(text) => {
                check_text("a grammar", text)?;
                GrammarWithLexer::from_lark(text.clone())
            }
        };
        grammar.name = Some(name.to_owned());
        Ok(grammar)
    }

    fn kind(&self) -> &'static str {
        match self {
            Format::JsonObject | Format::JsonSchema(_) => "JSON schema",
            Format::Regex(_) => REGEX,
            Format::Choice(_) => "choice",
            Format::Lark(_) => "Lark grammar",
        }
    }
}

fn json_grammar(schema: &Value) -> Result<GrammarWithLexer, Refusal> {
    let schema = schema::prepare(schema, &json!({"whitespace_pattern": JSON_SPACE}))?;
    Ok(GrammarWithLexer::from_json_schema(schema))
}

fn check_text(what: &'static str, text: &str) -> Result<(), Refusal> {
    match text.len() {
        0 => Err(Refusal::Empty { what }),
        found if found > MAX_TEXT => {
            Err(Refusal::TooLarge { what: "length in bytes", found, max: MAX_TEXT })
        }
        _ => Ok(()),
    }
}

fn choice(choices: &[String]) -> Result<String, Refusal> {
    let bytes = choices.iter().map(String::len).sum();
    if choices.is_empty() {
        return Err(Refusal::Empty { what: "a choice" });
    }
    if choices.len() > MAX_CHOICES {
        let found = choices.len();
        return Err(Refusal::TooLarge { what: "number of choices", found, max: MAX_CHOICES });
    }
    if bytes > MAX_TEXT {
        return Err(Refusal::TooLarge { what: "length in bytes", found: bytes, max: MAX_TEXT });
    }
    if choices.iter().any(String::is_empty) {
        return Err(Refusal::Empty { what: "an alternative of a choice" });
    }
    let quoted: Vec<String> = choices.iter().map(|text| lark::quote(text)).collect();
    // As one terminal: each alternative of a rule would be an item of its own.
    Ok(format!("start: CHOICE\nCHOICE: {}", quoted.join(" | ")))
}

/// A grammar that is ready to be followed; each answer follows a copy of its own.
pub(crate) struct Grammar {
    matcher: Matcher,
    /// Id that stands for the end of the answer.
    end: u32,
    /// Nothing but white space can follow what is complete.
    ends_in_space: bool,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

/// What may come next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Tokens, as a bit mask, and whether the answer may end here.
    Tokens(Vec<u32>, bool),
    /// The answer is complete.
    End,
}

impl Grammar {
    /// The grammar of a content of this form.
    pub(crate) fn of_format(tokenizer: &Tokenizer, format: &Format) -> Result<Self, GrammarError> {
        let grammar = format.grammar("format").map_err(GrammarError::Format)?;
        let mut grammar = Self::compile(tokenizer, vec![grammar])
            .map_err(|error| error.or(format.kind(), GrammarError::Format))?;
        grammar.ends_in_space = format.is_json();
        Ok(grammar)
    }

    /// Compiles grammars of which the first is the start and may refer to the others.
    pub(crate) fn compile(
        tokenizer: &Tokenizer,
        grammars: Vec<GrammarWithLexer>,
    ) -> Result<Self, CompileError> {
        let environment = tokenizer.environment().map_err(CompileError::Environment)?;
        let top = TopLevelGrammar { grammars, max_tokens: None };
        let compile = || {
            let mut matcher = Matcher::new(environment.factory.create_parser(top));
            if let Some(error) = matcher.get_error() {
                return Err(CompileError::Refused(tidy(&error)));
            }
            if let Some(warning) = matcher.grammar_warnings().first() {
                return Err(CompileError::Refused(tidy(warning)));
            }
            try_out(matcher.deep_clone()).map_err(|error| CompileError::Refused(tidy(&error)))?;
            Ok(matcher)
        };
        let matcher = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("lily-grammar".to_owned())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, compile)
                .map_err(|error| CompileError::Environment(error.to_string()))?;
            thread
                .join()
                .unwrap_or_else(|_| Err(CompileError::Refused("it breaks the compiler".to_owned())))
        })?;
        Ok(Grammar { matcher, end: tokenizer.len() as u32, ends_in_space: false })
    }

    /// At the start of an answer.
    pub(crate) fn start(&self) -> Self {
        Grammar { matcher: self.matcher.deep_clone(), ..*self }
    }

    /// What may come next.
    ///
    /// # Errors
    /// The words of `llguidance` when the grammar has become too complex to go on with.
    pub(crate) fn next(&mut self, tokenizer: &Tokenizer) -> Result<Next, String> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return if self.matcher.stop_reason().is_ok() {
                Ok(Next::End)
            } else {
                Err(self.matcher.stop_reason().to_string())
            };
        }
        let mask = self.matcher.compute_mask().map_err(|error| tidy(&error.to_string()))?;
        let may_end = mask.is_allowed(self.end);
        let mut words: Vec<u32> = mask.into();
        if let Some(word) = words.get_mut(self.end as usize / 32) {
            *word &= !(1 << (self.end % 32));
        }
        if may_end && (self.ends_in_space && only_space(&words, tokenizer) || is_empty(&words)) {
            return Ok(Next::End);
        }
        Ok(Next::Tokens(words, may_end))
    }

    /// Takes a token that was among those allowed.
    ///
    /// # Errors
    /// As [`Grammar::next`].
    pub(crate) fn take(&mut self, token: u32) -> Result<(), String> {
        self.matcher.consume_token(token).map_err(|error| tidy(&error.to_string()))
    }
}

/// Takes a few steps: whether anything fits at all, and whether it can be found out at a bounded
/// cost, shows with the first tokens only.
fn try_out(mut matcher: Matcher) -> Result<(), String> {
    const STEPS: usize = 4;
    for _ in 0..STEPS {
        if matcher.is_stopped() && !matcher.is_error() {
            break;
        }
        let mask = matcher.compute_mask().map_err(|error| error.to_string())?;
        match mask.first_bit_set() {
            Some(token) => {
                matcher.consume_token(token as u32).map_err(|error| error.to_string())?;
            }
            None => break,
        }
    }
    Ok(())
}

fn is_empty(words: &[u32]) -> bool {
    words.iter().all(|&word| word == 0)
}

fn only_space(words: &[u32], tokenizer: &Tokenizer) -> bool {
    let ids = words.iter().enumerate().flat_map(|(index, &word)| {
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index as u32 * 32 + bit)
    });
    ids.filter_map(|id| tokenizer.token_bytes(id))
        .all(|(bytes, _)| bytes.iter().all(u8::is_ascii_whitespace))
}

/// Why a grammar could not be compiled.
#[derive(Debug)]
pub(crate) enum CompileError {
    /// The grammar is to blame.
    Refused(String),
    /// It is not.
    Environment(String),
}

impl CompileError {
    /// The error of a part of the request, if that part is to blame.
    pub(crate) fn or(
        self,
        kind: &'static str,
        blame: impl FnOnce(Refusal) -> GrammarError,
    ) -> GrammarError {
        match self {
            CompileError::Refused(reason) => {
                let own = kind == REGEX;
                let reason = if own { without_place(&reason).to_owned() } else { reason };
                blame(Refusal::Grammar { kind, reason })
            }
            CompileError::Environment(reason) => GrammarError::Environment { reason },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
