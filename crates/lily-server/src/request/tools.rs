//! The tools a request offers.

use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::missing;

/// The tools, and whether the turn ends after one call.
pub(crate) fn tools(fields: &mut Fields) -> Result<(Option<Vec<Value>>, bool), ApiError> {
    let tools = fields.array("tools")?.filter(|tools| !tools.is_empty());
    for (index, tool) in tools.iter().flatten().enumerate() {
        check_tool(&format!("tools[{index}]"), tool.clone())?;
    }
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Ok((tools, !parallel))
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
    // Arguments are then held to the schema.
    function.boolean("strict")?;
    function.finish()
}

pub(crate) fn expect_type_function(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.string("type")?.as_deref() {
        None | Some("function") => Ok(()),
        Some(other) => Err(ApiError::unsupported(
            fields.path("type"),
            format_args!("must be \"function\", not {other:?}"),
        )),
    }
}
