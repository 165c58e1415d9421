//! From a JSON body to a [`ChatRequest`], or to an error that names the field.
//!
//! Every field is read by name here; what is left over is refused.

use lily_text::Format;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::items;
use super::tools::Tools;
use super::types::Echo;
use super::types::Reasoning;
use super::types::TextConfig;
use crate::error::ApiError;
use crate::guide::Constraints;
use crate::guide::OutputFormat;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;
use crate::request::ChatRequest;
use crate::request::sampling;
use crate::request::thinking;

const EFFORT: &str = "reasoning.effort";

/// Rivals of each token whose log probabilities may be asked for.
const MAX_TOP_LOGPROBS: i64 = 20;

/// A validated request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) chat: ChatRequest,
    pub(super) tools: Tools,
    pub(super) include: Include,
    /// What the response repeats; of the sampling it knows only the request.
    pub(super) echo: Echo,
}

/// What a response may hold beyond its text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Include {
    pub(super) logprobs: bool,
    /// Reasoning in a form that the client sends back without reading it.
    pub(super) encrypted_reasoning: bool,
    /// Reasoning is shown as its own summary.
    pub(super) summary: bool,
}

/// Checks a request body. `vocabulary` bounds the ids of `logit_bias`.
pub(super) fn validate(body: Value, vocabulary: usize) -> Result<Asked, ApiError> {
    let mut fields = Fields::new("", body)?;
    let mut echo = labels(&mut fields)?;
    refuse(&mut fields)?;
    echo.instructions = fields.string("instructions")?;
    let messages = items::conversation(&mut fields, echo.instructions.as_deref())?;
    let mut tools = Tools::read(&mut fields)?;
    echo.tools.clone_from(&tools.echo);
    let choice = fields.value("tool_choice").unwrap_or_else(|| json!("auto"));
    echo.tool_choice = choice.clone();
    let tool_choice = tools.choose(choice)?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    echo.parallel_tool_calls = parallel;
    let mut include = include(&mut fields)?;
    let top_logprobs = top_logprobs(&mut fields)?;
    include.logprobs |= top_logprobs.is_some();
    echo.top_logprobs = top_logprobs.unwrap_or(0);
    let thinking = reasoning(&mut fields)?;
    let mut template_kwargs = template_kwargs(&mut fields, &thinking)?;
    let thinking_budget = thinking::budget(&mut fields, &mut template_kwargs)?;
    echo.reasoning = thinking.echo;
    include.summary = echo.reasoning.summary.is_some();
    let (text, output_format) = text(&mut fields)?;
    echo.text = text;
    echo.max_output_tokens = max_output_tokens(&mut fields)?;
    let chat = ChatRequest {
        messages,
        tools: tools.functions(),
        single_tool_call: !parallel,
        constraints: Constraints { output_format, tool_choice, thinking_budget },
        template_kwargs,
        max_tokens: echo.max_output_tokens,
        sampling: sampling::sampling(&mut fields, vocabulary)?,
        logprobs: include.logprobs.then_some(echo.top_logprobs),
        stream: stream(&mut fields)?,
        ..ChatRequest::default()
    };
    fields.finish()?;
    Ok(Asked { chat, tools, include, echo })
}

/// Fields that are checked for their type, repeated where the API does so, and
/// have no other effect.
fn labels(fields: &mut Fields) -> Result<Echo, ApiError> {
    // Ignored: one model is loaded, and local clients call it by many names.
    fields.string("model")?;
    // Ignored: nothing is ever stored, whichever way it is set; the response says so.
    fields.boolean("store")?;
    // Ignored: there is one tier.
    fields.string("service_tier")?;
    // Ignored: hints for caches of other services, and what Codex knows of itself.
    fields.string("prompt_cache_retention")?;
    fields.object("prompt_cache_options")?;
    fields.object("client_metadata")?;
    Ok(Echo {
        metadata: fields.object("metadata")?.unwrap_or_default(),
        // Ignored: labels and routing hints for services with many users.
        user: fields.string("user")?,
        safety_identifier: fields.string("safety_identifier")?,
        prompt_cache_key: fields.string("prompt_cache_key")?,
        service_tier: "default",
        truncation: "disabled",
        ..Echo::default()
    })
}

/// Fields of the API that cannot be honoured, unless they ask for the default.
fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["previous_response_id", "conversation"] {
        if fields.value(name).is_some() {
            let complaint = "is not supported: nothing is stored, send the items themselves";
            return Err(ApiError::unsupported(name, complaint));
        }
    }
    if fields.boolean("background")? == Some(true) {
        let complaint = "must be false: a response lives as long as its request";
        return Err(ApiError::unsupported("background", complaint));
    }
    match fields.string("truncation")?.as_deref() {
        None | Some("disabled") => {}
        Some(other) => {
            return Err(ApiError::unsupported(
                "truncation",
                format_args!("must be \"disabled\", not {other:?}: no item is ever left out"),
            ));
        }
    }
    for name in
        ["background_options", "context_management", "max_tool_calls", "moderation", "prompt"]
    {
        if fields.value(name).is_some() {
            return Err(ApiError::unsupported(name, "is not supported"));
        }
    }
    Ok(())
}

fn max_output_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let limit = fields.integer("max_output_tokens", 1, i64::MAX)?;
    Ok(limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn stream(fields: &mut Fields) -> Result<bool, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(options) = fields.value("stream_options") else { return Ok(stream) };
    let mut options = Fields::new("stream_options", options)?;
    if options.boolean("include_obfuscation")? == Some(true) {
        return Err(ApiError::unsupported("stream_options.include_obfuscation", "must be false"));
    }
    options.finish()?;
    Ok(stream)
}

fn include(fields: &mut Fields) -> Result<Include, ApiError> {
    let mut include = Include::default();
    for (index, name) in fields.array("include")?.unwrap_or_default().into_iter().enumerate() {
        let path = format!("include[{index}]");
        match name.as_str() {
            Some("message.output_text.logprobs") => include.logprobs = true,
            Some("reasoning.encrypted_content") => include.encrypted_reasoning = true,
            // Such items never come up here, so there is nothing to leave out.
            Some(
                "file_search_call.results"
                | "web_search_call.results"
                | "web_search_call.action.sources"
                | "message.input_image.image_url"
                | "computer_call_output.output.image_url"
                | "code_interpreter_call.outputs",
            ) => {}
            Some(other) => {
                let complaint = format!("is not known: {other:?}");
                return Err(ApiError::unsupported(path, complaint));
            }
            None => return Err(wrong_type(path, "a string", &name)),
        }
    }
    Ok(include)
}

fn top_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    // Zero is the default, and asks for nothing.
    Ok(top.filter(|&top| top > 0).and_then(|top| usize::try_from(top).ok()))
}

/// What `reasoning` asks for.
#[derive(Debug, Default)]
struct Thinking {
    echo: Reasoning,
    /// Whether to think, if it says so.
    enabled: Option<bool>,
    /// Whether the reasoning of earlier turns stays in the prompt.
    preserve: bool,
}

fn reasoning(fields: &mut Fields) -> Result<Thinking, ApiError> {
    let Some(value) = fields.value("reasoning") else { return Ok(Thinking::default()) };
    let mut fields = Fields::new("reasoning", value)?;
    let effort = fields.string("effort")?;
    let enabled = thinking::effort(EFFORT, effort.as_deref())?;
    let old = fields.string("generate_summary")?;
    let summary = fields.string("summary")?.or(old);
    match summary.as_deref() {
        None | Some("auto" | "concise" | "detailed") => {}
        Some(other) => {
            return Err(ApiError::field(
                "reasoning.summary",
                format_args!("must be auto, concise or detailed, not {other:?}"),
            ));
        }
    }
    let preserve = match fields.string("context")?.as_deref() {
        None | Some("auto" | "current_turn") => false,
        Some("all_turns") => true,
        Some(other) => {
            return Err(ApiError::field(
                "reasoning.context",
                format_args!("must be auto, current_turn or all_turns, not {other:?}"),
            ));
        }
    };
    fields.finish()?;
    Ok(Thinking { echo: Reasoning { effort, summary }, enabled, preserve })
}

/// The variables of the template, by `reasoning` and by what all endpoints take.
fn template_kwargs(
    fields: &mut Fields,
    thinking: &Thinking,
) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = thinking::template_kwargs(fields)?;
    if let Some(enabled) = thinking.enabled.map(Value::Bool) {
        match kwargs.get("enable_thinking") {
            Some(other) if *other != enabled => {
                return Err(ApiError::field(EFFORT, "contradicts another switch for thinking"));
            }
            _ => drop(kwargs.insert("enable_thinking".to_owned(), enabled)),
        }
    }
    if thinking.preserve {
        kwargs.insert("preserve_thinking".to_owned(), true.into());
    }
    Ok(kwargs)
}

/// What `text` repeats, and the form that it gives the content.
fn text(fields: &mut Fields) -> Result<(TextConfig, Option<OutputFormat>), ApiError> {
    let mut config = TextConfig { format: json!({"type": "text"}), verbosity: None };
    let Some(value) = fields.value("text") else { return Ok((config, None)) };
    let mut fields = Fields::new("text", value)?;
    let mut form = None;
    if let Some(format) = fields.value("format") {
        config.format = format.clone();
        form = output_format(Fields::new("text.format", format)?)?;
    }
    match fields.string("verbosity")? {
        None => {}
        // The default: the model says as much as it says.
        Some(medium) if medium == "medium" => config.verbosity = Some(medium),
        Some(other) => {
            return Err(ApiError::unsupported(
                "text.verbosity",
                format_args!("must be \"medium\": the model knows no {other:?}"),
            ));
        }
    }
    fields.finish()?;
    Ok((config, form))
}

fn output_format(mut fields: Fields) -> Result<Option<OutputFormat>, ApiError> {
    let kind = fields.string("type")?.ok_or_else(|| missing(fields.path("type")))?;
    let form = match kind.as_str() {
        "text" => None,
        "json_object" => Some((Format::JsonObject, fields.path("type"))),
        "json_schema" => {
            fields.string("name")?.ok_or_else(|| missing(fields.path("name")))?;
            // Ignored: a remark for readers of the request. The schema is enforced either way.
            fields.string("description")?;
            fields.boolean("strict")?;
            let path = fields.path("schema");
            let schema = fields.object("schema")?.ok_or_else(|| missing(&path))?;
            Some((Format::JsonSchema(Value::Object(schema)), path))
        }
        other => {
            return Err(ApiError::unsupported(
                fields.path("type"),
                format_args!("must be text, json_object or json_schema, not {other:?}"),
            ));
        }
    };
    fields.finish()?;
    Ok(form.map(|(format, field)| OutputFormat { format, field }))
}
