//! The form of the response.

use crate::error::ApiError;
use crate::json::Fields;

/// Whether to stream, and whether the stream ends with the usage.
pub(crate) fn stream(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(options) = fields.value("stream_options") else { return Ok((stream, false)) };
    let mut options = Fields::new("stream_options", options)?;
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    if include_usage && !stream {
        return Err(ApiError::field("stream_options.include_usage", "needs 'stream' to be true"));
    }
    if options.boolean("include_obfuscation")? == Some(true) {
        return Err(ApiError::unsupported("stream_options.include_obfuscation", "must be false"));
    }
    options.finish()?;
    Ok((stream, include_usage))
}
