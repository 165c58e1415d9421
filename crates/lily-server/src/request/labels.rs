//! Fields of every endpoint that are checked for their type and have no effect.

use crate::error::ApiError;
use crate::json::Fields;

/// Reads the fields that name a model or label a request.
pub(crate) fn ignore(fields: &mut Fields) -> Result<(), ApiError> {
    // Ignored: one model is loaded, and local clients call it by many names.
    fields.string("model")?;
    // Ignored: labels and routing hints for services with many users.
    fields.string("user")?;
    fields.string("safety_identifier")?;
    fields.string("prompt_cache_key")?;
    fields.string("prompt_cache_retention")?;
    fields.object("metadata")?;
    // Ignored: nothing is ever stored, whichever way it is set.
    fields.boolean("store")?;
    // Ignored: there is one tier.
    fields.string("service_tier")?;
    Ok(())
}
