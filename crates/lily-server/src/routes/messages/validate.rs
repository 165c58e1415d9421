//! From a JSON body to a [`ChatRequest`], or to an error that names the field.
//!
//! Every field is read by name here; what is left over is refused. What a beta
//! header announces is a field of the body, so the header itself has no effect.

use lily_text::Format;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::blocks;
use super::blocks::Conversation;
use super::tools;
use super::tools::Offer;
use crate::error::ApiError;
use crate::guide::Constraints;
use crate::guide::OutputFormat;
use crate::guide::ToolChoice;
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
    let Offer { tools, choice: tool_choice, single } = tools::offer(&mut fields)?;
    let mut template_kwargs = Map::new();
    let thinking = thinking(&mut fields)?;
    let output_format = output_format(&mut fields)?;
    let constraints = Constraints { output_format, tool_choice, thinking_budget: thinking.budget };
    if let Some(path) = &begun {
        goes_with_a_beginning(path, &thinking, &constraints)?;
    }
    template_kwargs.insert("enable_thinking".to_owned(), thinking.enabled.into());
    if context_management(&mut fields)? {
        template_kwargs.insert("preserve_thinking".to_owned(), true.into());
    }
    let chat = ChatRequest {
        messages,
        tools,
        single_tool_call: single,
        constraints,
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

/// An answer that has begun, in the last message, can neither think first nor
/// be held to a form from its start.
fn goes_with_a_beginning(
    path: &str,
    thinking: &Thinking,
    constraints: &Constraints,
) -> Result<(), ApiError> {
    let forced = matches!(constraints.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let other = match constraints {
        _ if thinking.enabled => "thinking",
        Constraints { output_format: Some(_), .. } => "output_config.format",
        _ if forced => "tool_choice",
        _ => return Ok(()),
    };
    Err(ApiError::unsupported(
        format!("{path}.role"),
        format_args!("must not be \"assistant\" in the last message together with '{other}'"),
    ))
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

/// Whether and how much to think, and whether to show it.
#[derive(Debug, Default)]
struct Thinking {
    enabled: bool,
    /// In tokens.
    budget: Option<usize>,
    omitted: bool,
}

/// Thinking must be asked for: whoever does not expects an answer at once.
fn thinking(fields: &mut Fields) -> Result<Thinking, ApiError> {
    let Some(value) = fields.value("thinking") else { return Ok(Thinking::default()) };
    let mut fields = Fields::new("thinking", value)?;
    let kind = fields.string("type")?.ok_or_else(|| missing(fields.path("type")))?;
    let mut thinking = Thinking { enabled: true, ..Thinking::default() };
    match kind.as_str() {
        "disabled" => thinking.enabled = false,
        // How much it thinks is the model's affair anyway.
        "adaptive" => {}
        "enabled" => {
            let budget = fields.integer("budget_tokens", 1, i64::MAX)?;
            let budget = budget.ok_or_else(|| missing(fields.path("budget_tokens")))?;
            thinking.budget = Some(usize::try_from(budget).unwrap_or(usize::MAX));
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

/// The form of the content, under its name or its older one.
fn output_format(fields: &mut Fields) -> Result<Option<OutputFormat>, ApiError> {
    let mut format = None;
    if let Some(value) = fields.value("output_config") {
        let mut config = Fields::new("output_config", value)?;
        effort(&mut config)?;
        if let Some(value) = config.value("format") {
            format = Some(json_schema(config.path("format"), value)?);
        }
        config.finish()?;
    }
    let Some(value) = fields.value("output_format") else { return Ok(format) };
    let older = json_schema("output_format".to_owned(), value)?;
    match format {
        Some(OutputFormat { format, .. }) if format != older.format => {
            Err(ApiError::field("output_format", "contradicts 'output_config.format'"))
        }
        _ => Ok(Some(older)),
    }
}

/// Checked and without effect: a wish without a measure, and the model knows no
/// levels of effort.
fn effort(config: &mut Fields) -> Result<(), ApiError> {
    match config.string("effort")?.as_deref() {
        None | Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(()),
        Some(other) => Err(ApiError::field(
            config.path("effort"),
            format_args!("must be low, medium, high, xhigh or max, not {other:?}"),
        )),
    }
}

fn json_schema(path: String, value: Value) -> Result<OutputFormat, ApiError> {
    let mut fields = Fields::new(path, value)?;
    match fields.string("type")?.as_deref() {
        Some("json_schema") => {}
        Some(other) => {
            return Err(ApiError::unsupported(
                fields.path("type"),
                format_args!("must be \"json_schema\", not {other:?}"),
            ));
        }
        None => return Err(missing(fields.path("type"))),
    }
    let field = fields.path("schema");
    let schema = fields.object("schema")?.ok_or_else(|| missing(&field))?;
    fields.finish()?;
    Ok(OutputFormat { format: Format::JsonSchema(Value::Object(schema)), field })
}
