//! From a JSON body to a [`CompletionRequest`], or to an error that names the field.

use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;
use crate::request::labels;
use crate::request::sampling;
use crate::request::sampling::SamplingRequest;
use crate::request::stop;
use crate::request::stream;
use crate::request::tokens;

/// Answers that one request may ask for: prompts times `n`.
const MAX_CHOICES: usize = 128;

/// Rivals of each token whose log probabilities may be asked for; OpenAI gives 5.
const MAX_LOGPROBS: i64 = 20;

/// A validated request. `None` means that the default holds.
#[derive(Debug)]
pub(super) struct CompletionRequest {
    pub(super) prompts: Vec<Prompt>,
    pub(super) n: usize,
    pub(super) echo: bool,
    pub(super) max_tokens: Option<usize>,
    pub(super) stop: Vec<String>,
    pub(super) sampling: SamplingRequest,
    /// `Some(n)`: log probabilities, with the `n` likeliest rivals of each token.
    pub(super) logprobs: Option<usize>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

/// A prompt as text or as tokens: one of them is there.
#[derive(Debug)]
pub(super) struct Prompt {
    /// Its place in the request.
    pub(super) param: String,
    pub(super) text: Option<String>,
    pub(super) tokens: Option<Vec<u32>>,
}

/// Checks a request body. `vocabulary` bounds the ids of tokens.
pub(super) fn validate(body: Value, vocabulary: usize) -> Result<CompletionRequest, ApiError> {
    let mut fields = Fields::new("", body)?;
    labels::ignore(&mut fields)?;
    let prompts = prompts(&mut fields, vocabulary)?;
    let n = n(&mut fields, prompts.len())?;
    suffix(&mut fields)?;
    let (stream, include_usage) = stream::stream(&mut fields)?;
    let (echo, logprobs) = echo(&mut fields)?;
    let request = CompletionRequest {
        prompts,
        n,
        echo,
        max_tokens: max_tokens(&mut fields, echo)?,
        stop: stop::stop(&mut fields)?,
        sampling: sampling::sampling(&mut fields, vocabulary)?,
        logprobs,
        stream,
        include_usage,
    };
    fields.finish()?;
    Ok(request)
}

/// A text, a list of texts, a list of tokens, or a list of those.
fn prompts(fields: &mut Fields, vocabulary: usize) -> Result<Vec<Prompt>, ApiError> {
    const EXPECTED: &str = "a string, or an array of strings, of token ids or of arrays of them";
    let values = match fields.value("prompt") {
        None => return Err(missing("prompt")),
        Some(Value::String(text)) => return Ok(vec![text_prompt("prompt", text)]),
        Some(Value::Array(values)) if values.first().is_some_and(Value::is_number) => {
            return Ok(vec![token_prompt("prompt", values, vocabulary)?]);
        }
        Some(Value::Array(values)) => values,
        Some(other) => return Err(wrong_type("prompt", EXPECTED, &other)),
    };
    if values.is_empty() {
        return Err(ApiError::field("prompt", "must not be empty"));
    }
    let prompt = |(index, value)| {
        let param = format!("prompt[{index}]");
        match value {
            Value::String(text) => Ok(text_prompt(param, text)),
            Value::Array(tokens) => token_prompt(&param, tokens, vocabulary),
            other => Err(wrong_type(param, "a string or an array of token ids", &other)),
        }
    };
    values.into_iter().enumerate().map(prompt).collect()
}

fn text_prompt(param: impl Into<String>, text: String) -> Prompt {
    Prompt { param: param.into(), text: Some(text), tokens: None }
}

fn token_prompt(param: &str, values: Vec<Value>, vocabulary: usize) -> Result<Prompt, ApiError> {
    let tokens = tokens::token_ids(param, values, vocabulary)?;
    Ok(Prompt { param: param.to_owned(), text: None, tokens: Some(tokens) })
}

/// Answers to each prompt.
fn n(fields: &mut Fields, prompts: usize) -> Result<usize, ApiError> {
    let n = sampling::n(fields)?.unwrap_or(1);
    if prompts.saturating_mul(n) > MAX_CHOICES {
        let complaint = format!("asks for {prompts} times {n} answers, at most {MAX_CHOICES} are");
        return Err(ApiError::field("prompt", format_args!("{complaint} made per request")));
    }
    let best_of = fields.integer("best_of", 1, i64::MAX)?.unwrap_or(n as i64);
    if best_of != n as i64 {
        return Err(ApiError::unsupported(
            "best_of",
            format_args!("must be 'n', {n}, not {best_of}: answers are not ranked"),
        ));
    }
    Ok(n)
}

fn suffix(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.string("suffix")?.as_deref() {
        None | Some("") => Ok(()),
        Some(_) => Err(ApiError::unsupported(
            "suffix",
            "is not supported: text is written after the prompt only",
        )),
    }
}

/// Whether the text begins with the prompt, and the log probabilities asked for.
fn echo(fields: &mut Fields) -> Result<(bool, Option<usize>), ApiError> {
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)?;
    Ok((echo, logprobs.map(|logprobs| usize::try_from(logprobs).unwrap_or(0))))
}

/// The limit, which may be 0 where the prompt is echoed.
fn max_tokens(fields: &mut Fields, echo: bool) -> Result<Option<usize>, ApiError> {
    let limit = fields.integer("max_tokens", i64::from(!echo), i64::MAX)?;
    Ok(limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}
