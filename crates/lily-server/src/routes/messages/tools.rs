//! The tools a request offers, and which of them are called.

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::error::ApiError;
use crate::guide::ToolChoice;
use crate::json::Fields;
use crate::json::missing;

/// What the model is told of, and how it may use it.
#[derive(Debug)]
pub(super) struct Offer {
    /// In the form that templates take.
    pub(super) tools: Option<Vec<Value>>,
    pub(super) choice: ToolChoice,
    /// The turn ends after one call.
    pub(super) single: bool,
}

/// Reads `tools` and `tool_choice`.
pub(super) fn offer(fields: &mut Fields) -> Result<Offer, ApiError> {
    let tools = fields.array("tools")?.unwrap_or_default();
    let tools: Vec<Value> = tools
        .into_iter()
        .enumerate()
        .map(|(index, tool)| function(&format!("tools[{index}]"), tool))
        .collect::<Result<_, _>>()?;
    let mut offer = Offer { tools: Some(tools), choice: ToolChoice::Auto, single: false };
    if let Some(choice) = fields.value("tool_choice") {
        let mut choice = Fields::new("tool_choice", choice)?;
        offer.single = choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
        offer.choice = tool_choice(&mut choice, offer.tools.as_deref().unwrap_or_default())?;
        choice.finish()?;
    }
    // The model cannot call what it is not told of.
    let hidden = offer.choice == ToolChoice::None;
    offer.tools = offer.tools.filter(|tools| !tools.is_empty() && !hidden);
    Ok(offer)
}

fn tool_choice(choice: &mut Fields, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    let kind = choice.string("type")?.ok_or_else(|| missing(choice.path("type")))?;
    match kind.as_str() {
        "auto" => Ok(ToolChoice::Auto),
        // Without tools there is nothing to keep out of reach.
        "none" if tools.is_empty() => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "any" if tools.is_empty() => {
            Err(ApiError::field(choice.path("type"), "is \"any\", but there are no 'tools'"))
        }
        "any" => Ok(ToolChoice::Required),
        "tool" => {
            let name = choice.string("name")?.ok_or_else(|| missing(choice.path("name")))?;
            if tools.iter().any(|tool| tool["function"]["name"] == *name) {
                return Ok(ToolChoice::Named(name));
            }
            let complaint = format!("is {name:?}, which is not one of the 'tools'");
            Err(ApiError::field(choice.path("name"), complaint))
        }
        other => Err(ApiError::field(
            choice.path("type"),
            format_args!("must be auto, any, tool or none, not {other:?}"),
        )),
    }
}

/// A tool as OpenAI's API and the templates have it.
fn function(path: &str, tool: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::new(path, tool)?;
    match fields.string("type")?.as_deref() {
        None | Some("custom") => {}
        Some(other) => {
            return Err(ApiError::unsupported(
                fields.path("type"),
                format_args!("must be \"custom\": this server has no tool {other:?}"),
            ));
        }
    }
    let name = fields.string("name")?.ok_or_else(|| missing(fields.path("name")))?;
    if name.is_empty() || name.contains(['<', '>', '\n']) {
        let complaint = "must not be empty or contain '<', '>' or line breaks";
        return Err(ApiError::field(fields.path("name"), complaint));
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    if let Some(description) = fields.string("description")? {
        function.insert("description".to_owned(), description.into());
    }
    let schema = fields.object("input_schema")?;
    let schema = schema.ok_or_else(|| missing(fields.path("input_schema")))?;
    function.insert("parameters".to_owned(), Value::Object(schema));
    if let Some(examples) = fields.array("input_examples")? {
        function.insert("input_examples".to_owned(), examples.into());
    }
    if fields.boolean("strict")? == Some(true) {
        function.insert("strict".to_owned(), true.into());
    }
    tool_switches(&mut fields)?;
    fields.finish()?;
    Ok(json!({"type": "function", "function": function}))
}

fn tool_switches(fields: &mut Fields) -> Result<(), ApiError> {
    // Ignored: a hint for caches of other services; arguments are streamed in any case.
    fields.object("cache_control")?;
    fields.boolean("eager_input_streaming")?;
    if fields.boolean("defer_loading")? == Some(true) {
        return Err(ApiError::unsupported(fields.path("defer_loading"), "must be false"));
    }
    let callers = fields.array("allowed_callers")?;
    if callers.is_some_and(|callers| !callers.contains(&json!("direct"))) {
        let path = fields.path("allowed_callers");
        return Err(ApiError::unsupported(path, "must contain \"direct\""));
    }
    Ok(())
}
