//! The messages of a conversation in OpenAI's form.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;
use crate::request::tools::expect_type_function;

/// The conversation, which must not be empty.
pub(crate) fn messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let mut messages = fields.array("messages")?.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "must not be empty"));
    }
    for (index, message) in messages.iter().enumerate() {
        check_message(&format!("messages[{index}]"), message.clone())?;
    }
    order_results(&mut messages)?;
    Ok(messages)
}

/// Brings the results of tool calls into the order of the calls, by which templates match them;
/// clients match them by ids.
///
/// # Errors
/// A result right behind calls, all with ids of their own, names none of them. Where there are no such
/// calls, it is taken: clients cut long histories at their beginning, between calls and results.
fn order_results(messages: &mut [Value]) -> Result<(), ApiError> {
    for at in 0..messages.len() {
        let (before, behind) = messages.split_at_mut(at + 1);
        let Some(ids) = call_ids(&before[at]) else { continue };
        let count = behind.iter().take_while(|message| message["role"] == "tool").count();
        let results = &mut behind[..count];
        let id = |result: &Value| result["tool_call_id"].as_str().unwrap_or_default().to_owned();
        for (offset, result) in results.iter().enumerate() {
            let id = id(result);
            if !id.is_empty() && !ids.contains_key(&id) {
                let param = format!("messages[{}].tool_call_id", at + 1 + offset);
                let complaint = format_args!("names no tool call of the message before: {id:?}");
                return Err(ApiError::field(param, complaint));
            }
        }
        // One without an id is where its client put it, and so are then the others.
        if results.iter().all(|result| ids.contains_key(&id(result))) {
            results.sort_by_cached_key(|result| ids[&id(result)]);
        }
    }
    Ok(())
}

/// Ids of the calls of a message with their places; `None` unless there are calls, each with an id of
/// its own.
fn call_ids(message: &Value) -> Option<HashMap<String, usize>> {
    let calls = message["tool_calls"].as_array().filter(|calls| !calls.is_empty())?;
    let id = |(place, call): (usize, &Value)| Some((call["id"].as_str()?.to_owned(), place));
    let ids: HashMap<_, _> = calls.iter().enumerate().filter_map(id).collect();
    (ids.len() == calls.len() && !ids.contains_key("")).then_some(ids)
}

/// Whether the answer goes on where the last message leaves off, which two
/// switches must agree on.
pub(crate) fn continues(fields: &mut Fields) -> Result<bool, ApiError> {
    let continues = fields.boolean("continue_final_message")?.unwrap_or(false);
    match fields.boolean("add_generation_prompt")? {
        Some(generation_prompt) if generation_prompt == continues => Err(ApiError::field(
            "add_generation_prompt",
            "must be true, or false with 'continue_final_message'",
        )),
        _ => Ok(continues),
    }
}

fn check_message(path: &str, message: Value) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, message)?;
    let role = fields.string("role")?.ok_or_else(|| missing(fields.path("role")))?;
    let content = fields.value("content");
    let absent = content.is_none();
    let blank = check_content(&fields.path("content"), content)?;
    // Ignored: the template has no place for the name of a speaker.
    fields.string("name")?;
    match role.as_str() {
        "system" | "developer" => {}
        "user" if absent => return Err(missing(fields.path("content"))),
        "user" if blank => {
            return Err(ApiError::field(fields.path("content"), "must not be empty"));
        }
        "user" => {}
        "tool" => drop(fields.string("tool_call_id")?),
        "assistant" => {
            fields.string("reasoning_content")?;
            fields.string("reasoning")?;
            fields.string("thinking")?;
            // Ignored: parts of OpenAI's answers that clients send back as they came.
            fields.string("refusal")?;
            fields.array("annotations")?;
            let calls = fields.array("tool_calls")?.unwrap_or_default();
            for (index, call) in calls.into_iter().enumerate() {
                check_tool_call(&format!("{path}.tool_calls[{index}]"), call)?;
            }
        }
        other => {
            return Err(ApiError::field(
                fields.path("role"),
                format_args!("must be system, developer, user, assistant or tool, not {other:?}"),
            ));
        }
    }
    fields.finish()
}

/// Checks the content of a message; true if it holds nothing but white space.
fn check_content(path: &str, content: Option<Value>) -> Result<bool, ApiError> {
    let parts = match content {
        None => return Ok(true),
        Some(Value::String(text)) => return Ok(text.trim().is_empty()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(wrong_type(path, "a string or an array of parts", &other)),
    };
    let mut blank = true;
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::new(format!("{path}[{index}]"), part)?;
        match fields.string("type")?.as_deref() {
            Some("text") => {}
            Some(other) => {
                return Err(ApiError::unsupported(
                    fields.path("type"),
                    format_args!("must be \"text\": {other:?} parts are not supported"),
                ));
            }
            None => return Err(missing(fields.path("type"))),
        }
        let text = fields.string("text")?.ok_or_else(|| missing(fields.path("text")))?;
        blank &= text.trim().is_empty();
        // Ignored: a hint for caches of other services.
        fields.object("cache_control")?;
        fields.finish()?;
    }
    Ok(blank)
}

/// Checks a tool call in the history. The arguments may be any text: a client
/// that replays what a model got wrong must not be locked out for it.
fn check_tool_call(path: &str, call: Value) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, call)?;
    fields.string("id")?;
    fields.integer("index", 0, i64::MAX)?;
    expect_type_function(&mut fields)?;
    let function = fields.value("function").ok_or_else(|| missing(fields.path("function")))?;
    fields.finish()?;
    let mut function = Fields::new(format!("{path}.function"), function)?;
    function.string("name")?.ok_or_else(|| missing(function.path("name")))?;
    function.value("arguments");
    function.finish()
}
