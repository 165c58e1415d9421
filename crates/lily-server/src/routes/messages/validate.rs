//! From a JSON body to a [`ChatRequest`], or to an error that names the field.
//!
//! Every field is read by name here; what is left over is refused. What a beta
//! header announces is a field of the body, so the header itself has no effect.

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::blocks;
use super::blocks::Conversation;
use crate::error::ApiError;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;
use crate::request::ChatRequest;
use crate::request::sampling::SamplingRequest;

/// What the prompt is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Answer,
    /// Only its length is asked for; a limit of the answer may be missing.
    Count,
}

/// A validated request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) chat: ChatRequest,
    /// Thinking is not to be shown.
    pub(super) omit_thinking: bool,
}

/// Checks a request body.
pub(super) fn validate(body: Value, purpose: Purpose) -> Result<Asked, ApiError> {
    let mut fields = Fields::new("", body)?;
    ignore(&mut fields)?;
    refuse(&mut fields)?;
    let Conversation { messages, begun } = blocks::conversation(&mut fields)?;
    let (tools, single_tool_call) = tools(&mut fields)?;
    let mut template_kwargs = Map::new();
    let thinking = thinking(&mut fields)?;
    if let Some(path) = begun.as_ref().filter(|_| thinking.enabled) {
        return Err(ApiError::unsupported(
            format!("{path}.role"),
            "must not be \"assistant\" with 'thinking': an answer that has begun cannot think first",
        ));
    }
    template_kwargs.insert("enable_thinking".to_owned(), thinking.enabled.into());
    if context_management(&mut fields)? {
        template_kwargs.insert("preserve_thinking".to_owned(), true.into());
    }
    output_config(&mut fields)?;
    let chat = ChatRequest {
        messages,
        tools,
        single_tool_call,
        template_kwargs,
        continues: begun.is_some(),
        max_tokens: max_tokens(&mut fields, purpose)?,
        stop: stop_sequences(&mut fields)?,
        sampling: sampling(&mut fields)?,
        stream: fields.boolean("stream")?.unwrap_or(false),
        ..ChatRequest::default()
    };
    fields.finish()?;
    Ok(Asked { chat, omit_thinking: thinking.omitted })
}

/// Fields that are checked for their type and then have no effect.
fn ignore(fields: &mut Fields) -> Result<(), ApiError> {
    // Ignored: one model is loaded, and local clients call it by many names.
    fields.string("model")?;
    // Ignored: a label for services with many users.
    if let Some(metadata) = fields.value("metadata") {
        let mut metadata = Fields::new("metadata", metadata)?;
        metadata.string("user_id")?;
        metadata.finish()?;
    }
    // Ignored: there is one tier and one speed.
    fields.string("service_tier")?;
    fields.string("speed")?;
    // Ignored: a hint for caches of other services.
    fields.object("cache_control")?;
    Ok(())
}

/// Fields of the API that cannot be honoured.
fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    for name in [
        "container",
        "diagnostics",
        "inference_geo",
        "mcp_servers",
        "user_profile_id",
        "workspace_id",
    ] {
        if fields.value(name).is_some() {
            return Err(ApiError::unsupported(name, "is not supported"));
        }
    }
    Ok(())
}

fn max_tokens(fields: &mut Fields, purpose: Purpose) -> Result<Option<usize>, ApiError> {
    let limit = fields.integer("max_tokens", 1, i64::MAX)?;
    if limit.is_none() && purpose == Purpose::Answer {
        return Err(missing("max_tokens"));
    }
    Ok(limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn sampling(fields: &mut Fields) -> Result<SamplingRequest, ApiError> {
    let top_k = fields.integer("top_k", 0, i64::MAX)?;
    let top_p = fields.number("top_p", 0.0, 1.0)?;
    if top_p == Some(0.0) {
        return Err(ApiError::field("top_p", "must be greater than 0"));
    }
    Ok(SamplingRequest {
        temperature: fields.number("temperature", 0.0, 1.0)?,
        top_p,
        top_k: top_k.map(|top_k| usize::try_from(top_k).unwrap_or(usize::MAX)),
        ..SamplingRequest::default()
    })
}

/// Stop sequences a request may give.
const MAX_STOP_SEQUENCES: usize = 64;

fn stop_sequences(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "stop_sequences";
    let values = fields.array(NAME)?.unwrap_or_default();
    if values.len() > MAX_STOP_SEQUENCES {
        let complaint =
            format!("must hold at most {MAX_STOP_SEQUENCES} strings, not {}", values.len());
        return Err(ApiError::field(NAME, complaint));
    }
    let check = |(index, value)| match value {
        Value::String(text) if text.trim().is_empty() => {
            Err(ApiError::field(format!("{NAME}[{index}]"), "must not be blank"))
        }
        Value::String(text) => Ok(text),
        other => Err(wrong_type(format!("{NAME}[{index}]"), "a string", &other)),
    };
    values.into_iter().enumerate().map(check).collect()
}

/// Whether to think, and whether to show it.
#[derive(Debug, Default)]
struct Thinking {
    enabled: bool,
    omitted: bool,
}

/// Thinking must be asked for: whoever does not expects an answer at once.
fn thinking(fields: &mut Fields) -> Result<Thinking, ApiError> {
    let Some(value) = fields.value("thinking") else { return Ok(Thinking::default()) };
    let mut fields = Fields::new("thinking", value)?;
    let kind = fields.string("type")?.ok_or_else(|| missing(fields.path("type")))?;
    let mut thinking = Thinking { enabled: true, omitted: false };
    match kind.as_str() {
        "disabled" => thinking.enabled = false,
        // How much it thinks is the model's affair anyway.
        "adaptive" => {}
        "enabled" => {
            let budget = fields.integer("budget_tokens", 1, i64::MAX)?;
            budget.ok_or_else(|| missing(fields.path("budget_tokens")))?;
        }
        other => {
            return Err(ApiError::unsupported(
                fields.path("type"),
                format_args!("must be enabled, adaptive or disabled, not {other:?}"),
            ));
        }
    }
    if thinking.enabled {
        thinking.omitted = display(&mut fields)?;
    }
    fields.finish()?;
    Ok(thinking)
}

/// Whether thinking is not to be shown. There is no summary of it but itself.
fn display(thinking: &mut Fields) -> Result<bool, ApiError> {
    match thinking.string("display")?.as_deref() {
        None | Some("summarized") => Ok(false),
        Some("omitted") => Ok(true),
        Some(other) => Err(ApiError::field(
            thinking.path("display"),
            format_args!("must be \"summarized\" or \"omitted\", not {other:?}"),
        )),
    }
}

/// Whether the thinking of earlier turns stays in the prompt. Without a word on
/// it, the template drops that before the last question, as the API does.
fn context_management(fields: &mut Fields) -> Result<bool, ApiError> {
    const NAME: &str = "context_management";
    let Some(value) = fields.value(NAME) else { return Ok(false) };
    let mut fields = Fields::new(NAME, value)?;
    let edits = fields.array("edits")?.unwrap_or_default();
    fields.finish()?;
    let mut preserve = false;
    for (index, edit) in edits.into_iter().enumerate() {
        let mut edit = Fields::new(format!("{NAME}.edits[{index}]"), edit)?;
        match edit.string("type")?.as_deref() {
            Some("clear_thinking_20251015") => preserve = keeps_all(&mut edit)?,
            Some(other) => {
                return Err(ApiError::unsupported(
                    edit.path("type"),
                    format_args!("must be \"clear_thinking_20251015\", not {other:?}"),
                ));
            }
            None => return Err(missing(edit.path("type"))),
        }
        edit.finish()?;
    }
    Ok(preserve)
}

fn keeps_all(edit: &mut Fields) -> Result<bool, ApiError> {
    let path = edit.path("keep");
    let last_only = json!({"type": "thinking_turns", "value": 1});
    match edit.value("keep") {
        None => Ok(false),
        Some(keep) if keep == last_only => Ok(false),
        Some(Value::String(keep)) if keep == "all" => Ok(true),
        Some(Value::Object(keep)) if keep.get("type") == Some(&json!("all")) => Ok(true),
        Some(_) => Err(ApiError::unsupported(
            path,
            "must be \"all\", or {\"type\": \"thinking_turns\", \"value\": 1}",
        )),
    }
}

fn output_config(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(value) = fields.value("output_config") else { return Ok(()) };
    let mut fields = Fields::new("output_config", value)?;
    // Ignored: a wish without a measure, and the model knows no levels of effort.
    match fields.string("effort")?.as_deref() {
        None | Some("low" | "medium" | "high" | "xhigh" | "max") => {}
        Some(other) => {
            return Err(ApiError::field(
                fields.path("effort"),
                format_args!("must be low, medium, high, xhigh or max, not {other:?}"),
            ));
        }
    }
    if fields.value("format").is_some() {
        return Err(ApiError::unsupported(fields.path("format"), "is not supported"));
    }
    fields.finish()
}

/// The tools in the form that templates take, and whether the turn ends after
/// one call.
fn tools(fields: &mut Fields) -> Result<(Option<Vec<Value>>, bool), ApiError> {
    let tools = fields.array("tools")?.unwrap_or_default();
    let tools: Vec<Value> = tools
        .into_iter()
        .enumerate()
        .map(|(index, tool)| function(&format!("tools[{index}]"), tool))
        .collect::<Result<_, _>>()?;
    let tools = Some(tools).filter(|tools| !tools.is_empty());
    let Some(choice) = fields.value("tool_choice") else { return Ok((tools, false)) };
    let mut choice = Fields::new("tool_choice", choice)?;
    let single = choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    let kind = choice.string("type")?.ok_or_else(|| missing(choice.path("type")))?;
    let offered = match kind.as_str() {
        "auto" => true,
        // The model cannot call what it is not told of.
        "none" => false,
        other => {
            return Err(ApiError::unsupported(
                choice.path("type"),
                format_args!("must be \"auto\" or \"none\": {other:?} is not supported"),
            ));
        }
    };
    choice.finish()?;
    Ok((tools.filter(|_| offered), single))
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
    tool_switches(&mut fields)?;
    fields.finish()?;
    Ok(json!({"type": "function", "function": function}))
}

fn tool_switches(fields: &mut Fields) -> Result<(), ApiError> {
    // Ignored: a hint for caches of other services; arguments are streamed in any case.
    fields.object("cache_control")?;
    fields.boolean("eager_input_streaming")?;
    for name in ["strict", "defer_loading"] {
        if fields.boolean(name)? == Some(true) {
            return Err(ApiError::unsupported(fields.path(name), "must be false"));
        }
    }
    let callers = fields.array("allowed_callers")?;
    if callers.is_some_and(|callers| !callers.contains(&json!("direct"))) {
        let path = fields.path("allowed_callers");
        return Err(ApiError::unsupported(path, "must contain \"direct\""));
    }
    Ok(())
}
