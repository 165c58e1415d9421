//! The switches for thinking and the variables of the template.

use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::wrong_type;

/// The variables of the template. Thinking may be switched in three places,
/// which must agree.
pub(crate) fn template_kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    let mut kwargs = fields.object(NAME)?.unwrap_or_default();
    kwargs.retain(|_, value| !value.is_null());
    for (name, value) in &kwargs {
        let param = format!("{NAME}.{name}");
        match name.as_str() {
            "enable_thinking" | "preserve_thinking" if value.is_boolean() => {}
            "enable_thinking" | "preserve_thinking" => {
                return Err(wrong_type(param, "a boolean", value));
            }
            _ => {
                return Err(ApiError::unsupported(
                    param,
                    "is not supported; there are enable_thinking and preserve_thinking",
                ));
            }
        }
    }
    let effort = reasoning_effort(fields)?;
    let flag = fields.boolean("enable_thinking")?;
    for (name, thinking) in [("enable_thinking", flag), ("reasoning_effort", effort)] {
        let Some(thinking) = thinking.map(Value::Bool) else { continue };
        match kwargs.get("enable_thinking") {
            Some(other) if *other != thinking => {
                return Err(ApiError::field(name, "contradicts another switch for thinking"));
            }
            _ => drop(kwargs.insert("enable_thinking".to_owned(), thinking)),
        }
    }
    Ok(kwargs)
}

/// `none` switches thinking off; the model knows no other levels.
fn reasoning_effort(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    match fields.string("reasoning_effort")? {
        None => Ok(None),
        Some(effort) if effort == "none" => Ok(Some(false)),
        Some(effort) => Err(ApiError::unsupported(
            "reasoning_effort",
            format_args!(
                "must be \"none\", not {effort:?}: the model has no levels of effort, \
                 and thinks unless 'enable_thinking' is false"
            ),
        )),
    }
}
