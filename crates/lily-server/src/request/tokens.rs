//! Prompts that are tokens already.

use serde_json::Value;

use crate::error::ApiError;
use crate::json::wrong_type;

/// Reads token ids below `vocabulary`, `7.0` too; `param` is the place of the list.
pub(crate) fn token_ids(
    param: &str,
    values: Vec<Value>,
    vocabulary: usize,
) -> Result<Vec<u32>, ApiError> {
    let id = |(index, value): (usize, Value)| {
        let integral = value.as_f64().filter(|id| id.fract() == 0.0 && (0.0..4e9).contains(id));
        let id = value.as_u64().or(integral.map(|id| id as u64));
        let id = id.and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| (id as usize) < vocabulary).ok_or_else(|| match value.is_number() {
            true => ApiError::field(
                format!("{param}[{index}]"),
                format_args!("must be a token id below {vocabulary}, not {value}"),
            ),
            false => wrong_type(format!("{param}[{index}]"), "a token id", &value),
        })
    };
    values.into_iter().enumerate().map(id).collect()
}
