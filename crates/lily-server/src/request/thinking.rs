//! The switches for thinking and the variables of the template.

use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::wrong_type;

/// Names of a bound on the tokens of the reasoning.
const BUDGET: [&str; 2] = ["thinking_budget", "thinking_token_budget"];

/// The variables of the template. Thinking may be switched in several places,
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
            name if BUDGET.contains(&name) => {}
            _ => {
                return Err(ApiError::unsupported(
                    param,
                    "is not supported; there are enable_thinking, preserve_thinking and \
                     thinking_budget",
                ));
            }
        }
    }
    let switches = [
        ("enable_thinking", fields.boolean("enable_thinking")?),
        (
            "reasoning_effort",
            effort("reasoning_effort", fields.string("reasoning_effort")?.as_deref())?,
        ),
        ("reasoning", reasoning(fields)?),
    ];
    for (name, thinking) in switches {
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

/// Whether a level of effort means thinking. The model knows thinking and not
/// thinking only, and many clients send some level with every request: the
/// lowest two switch thinking off, all others leave the length to the model.
pub(crate) fn effort(param: &str, effort: Option<&str>) -> Result<Option<bool>, ApiError> {
    match effort {
        None => Ok(None),
        Some("none" | "minimal") => Ok(Some(false)),
        Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(Some(true)),
        Some(other) => Err(ApiError::field(
            param,
            format_args!("must be none, minimal, low, medium, high, xhigh or max, not {other:?}"),
        )),
    }
}

/// The object in which clients of routers send the same switch.
fn reasoning(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    let Some(object) = fields.value("reasoning") else { return Ok(None) };
    let mut object = Fields::new("reasoning", object)?;
    let enabled = object.boolean("enabled")?;
    let effort = effort("reasoning.effort", object.string("effort")?.as_deref())?;
    if object.boolean("exclude")? == Some(true) {
        return Err(ApiError::unsupported(
            "reasoning.exclude",
            "must be false: reasoning comes in a field of its own",
        ));
    }
    object.finish()?;
    match (enabled, effort) {
        (Some(enabled), Some(effort)) if enabled != effort => {
            Err(ApiError::field("reasoning.effort", "contradicts 'reasoning.enabled'"))
        }
        _ => Ok(enabled.or(effort)),
    }
}

/// Tokens that the reasoning may have, under any of the names, which must agree.
/// A name among `kwargs` is taken from there.
pub(crate) fn budget(
    fields: &mut Fields,
    kwargs: &mut Map<String, Value>,
) -> Result<Option<usize>, ApiError> {
    let mut kwargs_given = Map::new();
    for name in BUDGET {
        kwargs_given.extend(kwargs.shift_remove(name).map(|value| (name.to_owned(), value)));
    }
    let mut inside = Fields::new("chat_template_kwargs", Value::Object(kwargs_given))?;
    let mut found: Option<(i64, String)> = None;
    for source in [fields, &mut inside] {
        for name in BUDGET {
            let Some(budget) = source.integer(name, 0, i64::MAX)? else { continue };
            match &found {
                Some((other, first)) if *other != budget => {
                    return Err(ApiError::field(
                        source.path(name),
                        format_args!("contradicts '{first}'"),
                    ));
                }
                _ => found = Some((budget, source.path(name))),
            }
        }
    }
    let Some((budget, field)) = found else { return Ok(None) };
    if budget > 0 && kwargs.get("enable_thinking") == Some(&Value::Bool(false)) {
        return Err(ApiError::field(field, "needs thinking, which is switched off"));
    }
    Ok(Some(usize::try_from(budget).unwrap_or(usize::MAX)))
}

/// Lets the template write an empty think block where no reasoning is wanted: the model knows it from
/// there. Where the template cannot, the end of the reasoning is forced.
pub(crate) fn apply_budget(budget: Option<usize>, kwargs: &mut Map<String, Value>) {
    if budget == Some(0) {
        kwargs.insert("enable_thinking".to_owned(), false.into());
    }
}
