//! From a JSON body to a [`ChatRequest`], or to an error that names the field.
//!
//! Every field is read by name here; what is left over is refused. A field that
//! would change the answer but cannot be honoured is refused too.

use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::wrong_type;
use crate::request::ChatRequest;
use crate::request::SamplingRequest;

/// Stop strings a request may give; OpenAI takes 4.
const MAX_STOP_STRINGS: usize = 16;

/// Rivals of each token whose log probabilities may be asked for.
const MAX_TOP_LOGPROBS: i64 = 20;

/// Checks a request body. `vocabulary` bounds the ids of `logit_bias`.
pub(super) fn validate(body: Value, vocabulary: usize) -> Result<ChatRequest, ApiError> {
    let mut fields = Fields::new("", body)?;
    ignore(&mut fields)?;
    refuse(&mut fields)?;
    let messages = messages(&mut fields)?;
    let (tools, single_tool_call) = tools(&mut fields)?;
    let (stream, include_usage) = stream(&mut fields)?;
    let request = ChatRequest {
        messages,
        tools,
        single_tool_call,
        template_kwargs: template_kwargs(&mut fields)?,
        max_tokens: max_tokens(&mut fields)?,
        stop: stop(&mut fields)?,
        sampling: sampling(&mut fields, vocabulary)?,
        logprobs: logprobs(&mut fields)?,
        stream,
        include_usage,
    };
    fields.finish()?;
    Ok(request)
}

/// Fields that are checked for their type and then have no effect.
fn ignore(fields: &mut Fields) -> Result<(), ApiError> {
    // Ignored: one model is loaded, and local clients call it by many names.
    fields.string("model")?;
    // Ignored: labels and routing hints for services with many users.
    fields.string("user")?;
    fields.string("safety_identifier")?;
    fields.string("prompt_cache_key")?;
    fields.object("metadata")?;
    // Ignored: nothing is ever stored, whichever way it is set.
    fields.boolean("store")?;
    // Ignored: there is one tier.
    fields.string("service_tier")?;
    Ok(())
}

/// Fields of the API that cannot be honoured, unless they ask for the default.
fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    if fields.integer("n", 1, i64::MAX)?.is_some_and(|n| n != 1) {
        return Err(ApiError::unsupported("n", "must be 1: one answer is made per request"));
    }
    if let Some(mut format) = fields
        .value("response_format")
        .map(|value| Fields::new("response_format", value))
        .transpose()?
    {
        match format.string("type")?.as_deref() {
            Some("text") => format.finish()?,
            Some(other) => {
                return Err(ApiError::unsupported(
                    "response_format.type",
                    format_args!("must be \"text\": {other:?} is not supported"),
                ));
            }
            None => return Err(missing("response_format.type")),
        }
    }
    if let Some(modalities) = fields.array("modalities")?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(ApiError::unsupported("modalities", "must be [\"text\"]"));
    }
    for name in
        ["audio", "function_call", "functions", "prediction", "verbosity", "web_search_options"]
    {
        if fields.value(name).is_some() {
            return Err(ApiError::unsupported(name, "is not supported"));
        }
    }
    Ok(())
}

fn messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let messages = fields.array("messages")?.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "must not be empty"));
    }
    for (index, message) in messages.iter().enumerate() {
        check_message(&format!("messages[{index}]"), message.clone())?;
    }
    Ok(messages)
}

fn check_message(path: &str, message: Value) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, message)?;
    let role = fields.string("role")?.ok_or_else(|| missing(fields.path("role")))?;
    let blank = check_content(&fields.path("content"), fields.value("content"))?;
    // Ignored: the template has no place for the name of a speaker.
    fields.string("name")?;
    match role.as_str() {
        "system" | "developer" => {}
        "user" if blank => {
            return Err(ApiError::field(fields.path("content"), "must not be empty"));
        }
        "user" => {}
        // Ignored: results are matched to calls by their order.
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
    // Ignored: results are matched to calls by their order.
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

fn expect_type_function(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.string("type")?.as_deref() {
        None | Some("function") => Ok(()),
        Some(other) => Err(ApiError::unsupported(
            fields.path("type"),
            format_args!("must be \"function\", not {other:?}"),
        )),
    }
}

/// The tools, and whether the turn ends after one call.
fn tools(fields: &mut Fields) -> Result<(Option<Vec<Value>>, bool), ApiError> {
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

fn check_tool(path: &str, tool: Value) -> Result<(), ApiError> {
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

/// Whether to stream, and whether the stream ends with the usage.
fn stream(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(options) = fields.value("stream_options") else { return Ok((stream, false)) };
    let mut options = Fields::new("stream_options", options)?;
    if !stream {
        return Err(ApiError::field("stream_options", "needs 'stream' to be true"));
    }
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    if options.boolean("include_obfuscation")? == Some(true) {
        return Err(ApiError::unsupported("stream_options.include_obfuscation", "must be false"));
    }
    options.finish()?;
    Ok((stream, include_usage))
}

/// The variables of the template. Thinking may be switched in three places,
/// which must agree.
fn template_kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
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

fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.integer("max_tokens", 1, i64::MAX)?;
    let new = fields.integer("max_completion_tokens", 1, i64::MAX)?;
    if old.is_some() && new.is_some() && old != new {
        return Err(ApiError::field("max_tokens", "contradicts 'max_completion_tokens'"));
    }
    Ok(new.or(old).map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let values = match fields.value("stop") {
        None => Vec::new(),
        Some(Value::Array(values)) => values,
        Some(value @ Value::String(_)) => vec![value],
        Some(other) => return Err(wrong_type("stop", "a string or an array of strings", &other)),
    };
    if values.len() > MAX_STOP_STRINGS {
        return Err(ApiError::field(
            "stop",
            format_args!("must hold at most {MAX_STOP_STRINGS} strings, not {}", values.len()),
        ));
    }
    let check = |(index, value)| match value {
        Value::String(text) if text.is_empty() => Err(ApiError::field("stop", "must not be empty")),
        Value::String(text) => Ok(text),
        other => Err(wrong_type(format!("stop[{index}]"), "a string", &other)),
    };
    values.into_iter().enumerate().map(check).collect()
}

fn sampling(fields: &mut Fields, vocabulary: usize) -> Result<SamplingRequest, ApiError> {
    // Other servers take -1 for "off", which is 0 here.
    let top_k = fields.integer("top_k", -1, i64::MAX)?;
    Ok(SamplingRequest {
        temperature: fields.number("temperature", 0.0, 2.0)?,
        top_p: positive(fields.number("top_p", 0.0, 1.0)?, "top_p")?,
        top_k: top_k.map(|top_k| usize::try_from(top_k).unwrap_or(0)),
        min_p: fields.number("min_p", 0.0, 1.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?,
        repetition_penalty: positive(
            fields.number("repetition_penalty", 0.0, 10.0)?,
            "repetition_penalty",
        )?,
        logit_bias: logit_bias(fields, vocabulary)?,
        seed: fields.integer("seed", i64::MIN, i64::MAX)?.map(i64::cast_unsigned),
    })
}

fn positive(value: Option<f32>, name: &str) -> Result<Option<f32>, ApiError> {
    if value == Some(0.0) {
        return Err(ApiError::field(name, "must be greater than 0"));
    }
    Ok(value)
}

fn logit_bias(fields: &mut Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let names: Vec<String> = biases.keys().cloned().collect();
    let mut biases = Fields::new("logit_bias", Value::Object(biases))?;
    let mut read = Vec::with_capacity(names.len());
    for name in names {
        let id = name.parse().ok().filter(|&id: &u32| (id as usize) < vocabulary);
        let Some(id) = id else {
            return Err(ApiError::field(
                biases.path(&name),
                format_args!("must have a token id below {vocabulary} as its key"),
            ));
        };
        read.extend(biases.number(&name, -100.0, 100.0)?.map(|bias| (id, bias)));
    }
    Ok(read)
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(ApiError::field("top_logprobs", "needs 'logprobs' to be true"));
    }
    Ok(wanted.then(|| usize::try_from(top.unwrap_or(0)).unwrap_or(0)))
}

fn missing(param: impl Into<String>) -> ApiError {
    let param = param.into();
    ApiError::Field { message: format!("'{param}' is missing"), param, code: "missing_field" }
}
