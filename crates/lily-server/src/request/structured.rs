//! The fields that hold an answer to a form: what the content must be, which
//! functions are called, and how long the reasoning may be.
//!
//! A JSON schema is enforced whether or not `strict` is set: an answer that is
//! cut off by the token limit is the only one that does not keep to it. The
//! parameters of a function are enforced where it has `strict`, and wherever a
//! call is required.

use std::collections::HashSet;

use lily_text::Format;
use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;
use crate::guide::Constraints;
use crate::guide::OutputFormat;
use crate::guide::ToolChoice;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;
use crate::request::thinking;
use crate::request::tools::expect_type_function;

/// Reads all of it. `tools` are reduced to those that may be called, `kwargs`
/// are those of the template, from which a budget given there is taken.
pub(crate) fn constraints(
    fields: &mut Fields,
    tools: &mut Option<Vec<Value>>,
    kwargs: &mut Map<String, Value>,
) -> Result<Constraints, ApiError> {
    Ok(Constraints {
        output_format: output_format(fields)?,
        tool_choice: tool_choice(fields, tools)?,
        thinking_budget: thinking::budget(fields, kwargs)?,
    })
}

fn output_format(fields: &mut Fields) -> Result<Option<OutputFormat>, ApiError> {
    let mut formats: Vec<OutputFormat> = Vec::new();
    formats.extend(response_format(fields)?);
    formats.extend(structured_outputs(fields)?);
    // Names of other servers for the same, from before they were put together.
    for (name, kind) in [
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
    ] {
        if let Some(value) = fields.value(name) {
            formats.push(format_of(kind, name.to_owned(), value)?);
        }
    }
    match &formats[..] {
        [] | [_] => Ok(formats.pop()),
        [first, second, ..] => Err(ApiError::field(
            second.field.as_str(),
            format_args!("cannot be combined with '{}'", first.field),
        )),
    }
}

/// OpenAI's field.
fn response_format(fields: &mut Fields) -> Result<Option<OutputFormat>, ApiError> {
    const NAME: &str = "response_format";
    let Some(value) = fields.value(NAME) else { return Ok(None) };
    let mut format = Fields::new(NAME, value)?;
    let found = match format.string("type")?.as_deref() {
        None => return Err(missing(format.path("type"))),
        Some("text") => None,
        Some("json_object") => {
            Some(OutputFormat { format: Format::JsonObject, field: NAME.to_owned() })
        }
        Some("json_schema") => {
            let path = format.path("json_schema");
            let value = format.value("json_schema").ok_or_else(|| missing(&path))?;
            Some(json_schema(path, value)?)
        }
        Some(other) => {
            return Err(ApiError::unsupported(
                format.path("type"),
                format_args!("must be text, json_object or json_schema, not {other:?}"),
            ));
        }
    };
    format.finish()?;
    Ok(found)
}

fn json_schema(path: String, value: Value) -> Result<OutputFormat, ApiError> {
    let mut fields = Fields::new(path, value)?;
    let name = fields.string("name")?.ok_or_else(|| missing(fields.path("name")))?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        return Err(ApiError::field(
            fields.path("name"),
            "must be 1 to 64 letters, digits, underscores or hyphens",
        ));
    }
    // Ignored: a remark for readers of the request.
    fields.string("description")?;
    // Enforced either way.
    fields.boolean("strict")?;
    let field = fields.path("schema");
    let schema = fields.object("schema")?.ok_or_else(|| missing(&field))?;
    fields.finish()?;
    Ok(OutputFormat { format: Format::JsonSchema(Value::Object(schema)), field })
}

/// vLLM's field.
fn structured_outputs(fields: &mut Fields) -> Result<Option<OutputFormat>, ApiError> {
    const NAME: &str = "structured_outputs";
    let Some(value) = fields.value(NAME) else { return Ok(None) };
    let mut outputs = Fields::new(NAME, value)?;
    let mut found: Vec<OutputFormat> = Vec::new();
    for kind in ["json", "json_object", "regex", "choice", "grammar"] {
        let field = outputs.path(kind);
        match outputs.value(kind) {
            None => {}
            Some(Value::Bool(false)) if kind == "json_object" => {}
            Some(value) => found.push(format_of(kind, field, value)?),
        }
    }
    outputs.finish()?;
    match found.len() {
        1 => Ok(found.pop()),
        _ => Err(ApiError::field(
            NAME,
            "must hold one of json, json_object, regex, choice and grammar",
        )),
    }
}

fn format_of(kind: &str, field: String, value: Value) -> Result<OutputFormat, ApiError> {
    let format = match (kind, value) {
        ("json", value @ (Value::Object(_) | Value::Bool(_))) => Format::JsonSchema(value),
        // A schema written out, as some clients send it.
        ("json", Value::String(text)) => {
            let schema = serde_json::from_str(&text);
            Format::JsonSchema(schema.map_err(|error| {
                ApiError::field(field.as_str(), format_args!("is not JSON: {error}"))
            })?)
        }
        ("json", other) => return Err(wrong_type(field, "a JSON schema", &other)),
        ("json_object", Value::Bool(true)) => Format::JsonObject,
        ("json_object", other) => return Err(wrong_type(field, "a boolean", &other)),
        ("choice", Value::Array(values)) => {
            let text = |value| match value {
                Value::String(text) => Ok(text),
                other => Err(wrong_type(field.as_str(), "an array of strings", &other)),
            };
            Format::Choice(values.into_iter().map(text).collect::<Result<_, _>>()?)
        }
        ("choice", other) => return Err(wrong_type(field, "an array of strings", &other)),
        ("regex", Value::String(text)) => Format::Regex(text),
        ("grammar", Value::String(text)) => Format::Lark(text),
        (_, other) => return Err(wrong_type(field, "a string", &other)),
    };
    Ok(OutputFormat { format, field })
}

/// Which tools may be called; `tools` are reduced to those.
pub(crate) fn tool_choice(
    fields: &mut Fields,
    tools: &mut Option<Vec<Value>>,
) -> Result<ToolChoice, ApiError> {
    const NAME: &str = "tool_choice";
    let choice = match fields.value(NAME) {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => mode(NAME, &choice)?,
        Some(value @ Value::Object(_)) => {
            let mut choice = Fields::new(NAME, value)?;
            let read = match choice.string("type")?.as_deref() {
                Some("function") => {
                    ToolChoice::Named(function_name(&mut choice, &names(tools.as_deref()))?)
                }
                Some("allowed_tools") => allowed_tools(&mut choice, tools)?,
                Some(other) => {
                    return Err(ApiError::unsupported(
                        choice.path("type"),
                        format_args!("must be function or allowed_tools, not {other:?}"),
                    ));
                }
                None => return Err(missing(choice.path("type"))),
            };
            choice.finish()?;
            read
        }
        Some(other) => return Err(wrong_type(NAME, "a string or an object", &other)),
    };
    match choice {
        ToolChoice::Required if tools.is_none() => {
            Err(ApiError::field(NAME, "is \"required\", but there are no 'tools'"))
        }
        // The model cannot call what it is not told of.
        ToolChoice::None if tools.take().is_none() => Ok(ToolChoice::Auto),
        choice => Ok(choice),
    }
}

fn mode(field: &str, text: &str) -> Result<ToolChoice, ApiError> {
    match text {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => Err(ApiError::unsupported(
            field,
            format_args!("must be none, auto, required or name a function, not {other:?}"),
        )),
    }
}

fn names(tools: Option<&[Value]>) -> HashSet<&str> {
    tools.unwrap_or_default().iter().filter_map(name_of).collect()
}

fn name_of(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}

/// `{"function": {"name": …}}`, the name being one of those offered.
fn function_name(fields: &mut Fields, offered: &HashSet<&str>) -> Result<String, ApiError> {
    let path = fields.path("function");
    let function = fields.value("function").ok_or_else(|| missing(&path))?;
    let mut function = Fields::new(path, function)?;
    let name = function.string("name")?.ok_or_else(|| missing(function.path("name")))?;
    if !offered.contains(name.as_str()) {
        return Err(ApiError::field(
            function.path("name"),
            format_args!("is {name:?}, which is not one of the 'tools'"),
        ));
    }
    function.finish()?;
    Ok(name)
}

/// Some of the tools, of which one may or must be called.
fn allowed_tools(
    fields: &mut Fields,
    tools: &mut Option<Vec<Value>>,
) -> Result<ToolChoice, ApiError> {
    let path = fields.path("allowed_tools");
    let allowed = fields.value("allowed_tools").ok_or_else(|| missing(&path))?;
    let mut allowed = Fields::new(path, allowed)?;
    let choice = match allowed.string("mode")?.as_deref() {
        Some(text @ ("auto" | "required")) => mode(&allowed.path("mode"), text)?,
        Some(other) => {
            return Err(ApiError::field(
                allowed.path("mode"),
                format_args!("must be auto or required, not {other:?}"),
            ));
        }
        None => return Err(missing(allowed.path("mode"))),
    };
    let list = allowed.path("tools");
    let references = allowed.array("tools")?.ok_or_else(|| missing(&list))?;
    if references.is_empty() {
        return Err(ApiError::field(list, "must not be empty"));
    }
    let offered = names(tools.as_deref());
    let mut chosen = HashSet::new();
    for (index, reference) in references.into_iter().enumerate() {
        let mut reference = Fields::new(format!("{list}[{index}]"), reference)?;
        expect_type_function(&mut reference)?;
        chosen.insert(function_name(&mut reference, &offered)?);
        reference.finish()?;
    }
    allowed.finish()?;
    if let Some(tools) = tools {
        tools.retain(|tool| name_of(tool).is_some_and(|name| chosen.contains(name)));
    }
    Ok(choice)
}
