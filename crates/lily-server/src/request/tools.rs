//! The tools a request offers, and which of them may be called.

use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;

/// The tools, and whether the turn ends after one call.
pub(crate) fn tools(fields: &mut Fields) -> Result<(Option<Vec<Value>>, bool), ApiError> {
    let tools = fields.array("tools")?.filter(|tools| !tools.is_empty());
    for (index, tool) in tools.iter().flatten().enumerate() {
        check_tool(&format!("tools[{index}]"), tool.clone())?;
    }
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let offered = match fields.value("tool_choice") {
        None => true,
        Some(Value::String(choice)) if choice == "auto" => true,
        // The model cannot call what it is not told of.
        Some(Value::String(choice)) if choice == "none" => false,
        Some(Value::String(choice)) => {
            return Err(ApiError::unsupported(
                "tool_choice",
                format_args!("must be \"auto\" or \"none\": {choice:?} is not supported"),
            ));
        }
        Some(Value::Object(_)) => {
            return Err(ApiError::unsupported(
                "tool_choice",
                "must be \"auto\" or \"none\": naming a tool is not supported",
            ));
        }
        Some(other) => return Err(wrong_type("tool_choice", "a string", &other)),
    };
    Ok((tools.filter(|_| offered), !parallel))
}

/// Checks a tool of `{"type": "function", "function": {…}}` form.
pub(crate) fn check_tool(path: &str, tool: Value) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, tool)?;
    expect_type_function(&mut fields)?;
    let function = fields.value("function").ok_or_else(|| missing(fields.path("function")))?;
    fields.finish()?;
    let mut function = Fields::new(format!("{path}.function"), function)?;
    let name = function.string("name")?.ok_or_else(|| missing(function.path("name")))?;
    if name.is_empty() || name.contains(['<', '>', '\n']) {
        return Err(ApiError::field(
            function.path("name"),
            "must not be empty or contain '<', '>' or line breaks",
        ));
    }
    function.string("description")?;
    function.object("parameters")?;
    if function.boolean("strict")? == Some(true) {
        return Err(ApiError::unsupported(
            function.path("strict"),
            "must be false: arguments are not forced to follow the schema",
        ));
    }
    function.finish()
}

pub(super) fn expect_type_function(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.string("type")?.as_deref() {
        None | Some("function") => Ok(()),
        Some(other) => Err(ApiError::unsupported(
            fields.path("type"),
            format_args!("must be \"function\", not {other:?}"),
        )),
    }
}
