//! The conversation: items become the messages that templates take.

use serde_json::Value;
use serde_json::json;

use super::tools;
use crate::error::ApiError;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;
use crate::request::history::History;
use crate::sealed;

/// Reads `input`, after the `instructions`.
pub(super) fn conversation(
    fields: &mut Fields,
    instructions: Option<&str>,
) -> Result<Vec<Value>, ApiError> {
    const NAME: &str = "input";
    let mut history = History::default();
    if let Some(instructions) = instructions {
        history.system(instructions);
    }
    match fields.value(NAME).ok_or_else(|| missing(NAME))? {
        Value::String(text) if text.trim().is_empty() => {
            return Err(ApiError::field(NAME, "must not be empty"));
        }
        Value::String(text) => history.user(&text),
        Value::Array(items) if items.is_empty() => {
            return Err(ApiError::field(NAME, "must not be empty"));
        }
        Value::Array(items) => {
            for (index, item) in items.into_iter().enumerate() {
                read_item(&mut history, &format!("{NAME}[{index}]"), item)?;
            }
        }
        other => return Err(wrong_type(NAME, "a string or an array of items", &other)),
    }
    history.finish()
}

fn read_item(history: &mut History, path: &str, item: Value) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, item)?;
    // Ignored: names of what is not stored, and how its making went.
    fields.string("id")?;
    fields.string("status")?;
    let kind = fields.string("type")?;
    match kind.as_deref() {
        None | Some("message") => message(history, fields),
        Some("reasoning") => reasoning(history, fields),
        Some("function_call") => call(history, fields, false),
        Some("custom_tool_call") => call(history, fields, true),
        Some("function_call_output" | "custom_tool_call_output") => output(history, fields),
        Some("item_reference") => Err(ApiError::unsupported(
            fields.path("type"),
            "must not be \"item_reference\": nothing is stored, send the item itself",
        )),
        Some(other) => Err(ApiError::unsupported(
            fields.path("type"),
            format_args!(
                "must be message, reasoning, function_call, function_call_output, \
                 custom_tool_call or custom_tool_call_output: {other:?} is not supported"
            ),
        )),
    }
}

fn message(history: &mut History, mut fields: Fields) -> Result<(), ApiError> {
    let role = fields.string("role")?.ok_or_else(|| missing(fields.path("role")))?;
    let path = fields.path("content");
    let content = fields.value("content").ok_or_else(|| missing(&path))?;
    // Ignored: whether a text was the last word of its turn shows by what follows.
    fields.string("phase")?;
    let texts = texts(&path, content)?;
    match role.as_str() {
        "system" | "developer" => texts.iter().for_each(|text| history.system(text)),
        "user" => {
            if texts.iter().all(|text| text.trim().is_empty()) {
                return Err(ApiError::field(path, "must not be empty"));
            }
            texts.iter().for_each(|text| history.user(text));
        }
        "assistant" => {
            history.answer("")?;
            texts.iter().try_for_each(|text| history.answer(text))?;
        }
        other => {
            return Err(ApiError::field(
                fields.path("role"),
                format_args!("must be system, developer, user or assistant, not {other:?}"),
            ));
        }
    }
    fields.finish()
}

/// A string, or the texts of an array of parts.
fn texts(path: &str, content: Value) -> Result<Vec<String>, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(vec![text]),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(path, "a string or an array of parts", &other)),
    };
    let parts = parts.into_iter().enumerate();
    parts.map(|(index, part)| text_part(format!("{path}[{index}]"), part)).collect()
}

fn text_part(path: String, part: Value) -> Result<String, ApiError> {
    let mut fields = Fields::new(path, part)?;
    let name = match fields.string("type")?.as_deref() {
        Some("input_text" | "output_text" | "text") => "text",
        Some("reasoning_text" | "summary_text") => "text",
        Some("refusal") => "refusal",
        Some(other) => {
            return Err(ApiError::unsupported(
                fields.path("type"),
                format_args!("must be a text: {other:?} parts are not supported"),
            ));
        }
        None => return Err(missing(fields.path("type"))),
    };
    let text = fields.string(name)?.ok_or_else(|| missing(fields.path(name)))?;
    // Ignored: parts of our answers that clients send back, and hints for caches.
    fields.array("annotations")?;
    fields.array("logprobs")?;
    fields.object("prompt_cache_breakpoint")?;
    fields.finish()?;
    Ok(text)
}

/// Reasoning that was shown, or that the client carried without reading it.
fn reasoning(history: &mut History, mut fields: Fields) -> Result<(), ApiError> {
    let sealed = fields.string("encrypted_content")?.and_then(|text| sealed::open(&text));
    let mut shown = Vec::new();
    for name in ["content", "summary"] {
        if let Some(parts) = fields.array(name)? {
            shown.push(texts(&fields.path(name), Value::Array(parts))?.join("\n\n"));
        }
    }
    fields.finish()?;
    // What another service has sealed says nothing here: then the summary must do.
    let mut candidates = sealed.into_iter().chain(shown);
    match candidates.find(|text| !text.is_empty()) {
        Some(text) => history.reasoning(&text),
        None => Ok(()),
    }
}

fn call(history: &mut History, mut fields: Fields, custom: bool) -> Result<(), ApiError> {
    let path = fields.path("call_id");
    let id = fields.string("call_id")?.ok_or_else(|| missing(&path))?;
    let name = fields.string("name")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| missing(fields.path("name")))?;
    let namespace = fields.string("namespace")?;
    let arguments = if custom {
        let input = fields.string("input")?.ok_or_else(|| missing(fields.path("input")))?;
        json!({tools::INPUT: input})
    } else {
        // Any text: a client that replays what a model got wrong must not be locked out for it.
        let arguments = fields.string("arguments")?;
        arguments.ok_or_else(|| missing(fields.path("arguments")))?.into()
    };
    // Ignored: only the model itself calls here.
    fields.object("caller")?;
    fields.boolean("async")?;
    fields.finish()?;
    history.call(&path, id, &tools::full_name(namespace.as_deref(), &name), arguments)
}

fn output(history: &mut History, mut fields: Fields) -> Result<(), ApiError> {
    let path = fields.path("call_id");
    let id = fields.string("call_id")?.ok_or_else(|| missing(&path))?;
    let output = fields.value("output").ok_or_else(|| missing(fields.path("output")))?;
    let text = texts(&fields.path("output"), output)?.join("\n\n");
    // Ignored: the call has said them.
    fields.string("name")?;
    fields.string("namespace")?;
    fields.object("caller")?;
    fields.finish()?;
    history.result(&path, &id, text)
}
