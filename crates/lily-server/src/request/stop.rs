//! Where an answer ends: stop strings and the limit of tokens.

use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::wrong_type;

/// Stop strings a request may give; OpenAI takes 4.
const MAX_STOP_STRINGS: usize = 16;

/// The limit of tokens under its old or its new name.
pub(crate) fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.integer("max_tokens", 1, i64::MAX)?;
    let new = fields.integer("max_completion_tokens", 1, i64::MAX)?;
    if old.is_some() && new.is_some() && old != new {
        return Err(ApiError::field("max_tokens", "contradicts 'max_completion_tokens'"));
    }
    Ok(new.or(old).map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

/// The stop strings: one, or a list.
pub(crate) fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let values = match fields.value("stop") {
        None => Vec::new(),
        Some(Value::Array(values)) => values,
        Some(value @ Value::String(_)) => vec![value],
        Some(other) => return Err(wrong_type("stop", "a string or an array of strings", &other)),
    };
    if values.len() > MAX_STOP_STRINGS {
        return Err(ApiError::field(
            "stop",
            format_args!("must hold at most {MAX_STOP_STRINGS} strings, not {}", values.len()),
        ));
    }
    let check = |(index, value)| match value {
        Value::String(text) if text.is_empty() => Err(ApiError::field("stop", "must not be empty")),
        Value::String(text) => Ok(text),
        other => Err(wrong_type(format!("stop[{index}]"), "a string", &other)),
    };
    values.into_iter().enumerate().map(check).collect()
}
