//! OpenAI chat messages to the form chat templates are written for.

use serde_json::{Map, Value};

use crate::error::TextError;
use crate::template::drop_nulls_and_rename_reasoning;

/// Parameter name under which unreadable arguments of an earlier call are
/// shown to the model.
const RAW_ARGUMENTS: &str = "arguments";

/// What happens to image, video and audio parts of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaParts {
    /// They are refused by name: the model reads text only.
    Refuse,
    /// They reach the template as they are, for looking at what it makes of them.
    Keep,
}

/// Brings a request's messages into the form the template renders.
///
/// - Fields that are null are dropped; `thinking` and `reasoning` become
///   `reasoning_content`.
/// - Role `developer` is `system`. Templates accept one system message, at the
///   beginning: all system messages, wherever they stand, are merged into one
///   there, in order, blank ones left out, separated by an empty line.
/// - A list of text parts becomes their concatenation. Parts of any other type
///   are refused by name.
/// - The `arguments` of a tool call, a string in OpenAI's form, become a
///   mapping. Absent, null, empty and `"null"` mean no arguments. A string that
///   is not JSON is what some model once produced and what a client will send
///   again with every request: it is not refused, but shown to the model as one
///   parameter named `arguments` with that text. JSON of another kind (a list,
///   a number) is refused.
///
/// Everything else in a message is passed on.
///
/// # Errors
/// All are the client's fault ([`TextError::is_client_fault`]) and name the
/// message: [`TextError::NoMessages`], [`TextError::MessageForm`],
/// [`TextError::MessageField`], [`TextError::UnknownRole`],
/// [`TextError::UnsupportedPart`].
pub fn normalise_messages(messages: &[Value]) -> Result<Vec<Value>, TextError> {
    normalise_messages_with(messages, MediaParts::Refuse)
}

/// [`normalise_messages`], with a choice for media parts.
///
/// # Errors
/// As [`normalise_messages`].
pub fn normalise_messages_with(
    messages: &[Value],
    media: MediaParts,
) -> Result<Vec<Value>, TextError> {
    if messages.is_empty() {
        return Err(TextError::NoMessages);
    }
    let mut system: Option<String> = None;
    let mut normalised = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let message = Message::normalise(index, message, media)?;
        if message.role == Role::System {
            merge_system(&mut system, message.text());
        } else {
            normalised.push(Value::Object(message.fields));
        }
    }
    if let Some(text) = system {
        let mut fields = Map::new();
        fields.insert("role".to_owned(), "system".into());
        fields.insert("content".to_owned(), text.into());
        normalised.insert(0, Value::Object(fields));
    }
    Ok(normalised)
}

fn merge_system(merged: &mut Option<String>, text: &str) {
    let merged = merged.get_or_insert_default();
    if merged.trim().is_empty() {
        text.clone_into(merged);
    } else if !text.trim().is_empty() {
        merged.push_str("\n\n");
        merged.push_str(text);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
}

struct Message {
    index: usize,
    role: Role,
    fields: Map<String, Value>,
}

impl Message {
    fn normalise(index: usize, message: &Value, media: MediaParts) -> Result<Self, TextError> {
        let Value::Object(fields) = message else {
            return Err(TextError::MessageForm { index, found: kind(message) });
        };
        let mut fields = fields.clone();
        drop_nulls_and_rename_reasoning(&mut fields);
        let role = role(index, fields.get("role"))?;
        let mut message = Self { index, role, fields };
        message.content(media)?;
        if role == Role::Assistant {
            message.reasoning()?;
            message.tool_calls()?;
        }
        Ok(message)
    }

    fn text(&self) -> &str {
        self.fields.get("content").and_then(Value::as_str).unwrap_or_default()
    }

    fn content(&mut self, media: MediaParts) -> Result<(), TextError> {
        let text = match self.fields.get("content") {
            None | Some(Value::String(_)) => return Ok(()),
            Some(Value::Array(parts))
                if media == MediaParts::Keep && parts.iter().any(is_media) =>
            {
                return Ok(());
            }
            Some(Value::Array(parts)) => parts
                .iter()
                .enumerate()
                .map(|(part, value)| self.text_part(part, value))
                .collect::<Result<String, _>>()?,
            Some(other) => {
                return Err(self.field("content", "a string or a list of text parts", kind(other)));
            }
        };
        self.fields.insert("content".to_owned(), text.into());
        Ok(())
    }

    fn text_part<'v>(&self, part: usize, value: &'v Value) -> Result<&'v str, TextError> {
        let path = format!("content[{part}]");
        let Value::Object(fields) = value else {
            return Err(self.field(&path, "an object with a `type`", kind(value)));
        };
        match fields.get("type").and_then(Value::as_str) {
            Some("text" | "input_text" | "output_text") => {
                let text = fields.get("text").unwrap_or(&Value::Null);
                text.as_str()
                    .ok_or_else(|| self.field(&format!("{path}.text"), "a string", kind(text)))
            }
            Some(kind) => {
                Err(TextError::UnsupportedPart { index: self.index, part, kind: kind.to_owned() })
            }
            None => {
                let found = fields.get("type").map_or("missing", kind);
                Err(self.field(&format!("{path}.type"), "a string", found))
            }
        }
    }

    fn reasoning(&self) -> Result<(), TextError> {
        match self.fields.get("reasoning_content") {
            None | Some(Value::String(_)) => Ok(()),
            Some(other) => Err(self.field("reasoning_content", "a string", kind(other))),
        }
    }

    fn tool_calls(&mut self) -> Result<(), TextError> {
        if let Some(call) = self.fields.get("function_call") {
            let expected = "absent: send `tool_calls` instead";
            return Err(self.field("function_call", expected, kind(call)));
        }
        let calls = match self.fields.get("tool_calls") {
            None => return Ok(()),
            Some(Value::Array(calls)) => calls
                .iter()
                .enumerate()
                .map(|(position, call)| self.tool_call(position, call))
                .collect::<Result<Vec<_>, _>>()?,
            Some(other) => return Err(self.field("tool_calls", "a list", kind(other))),
        };
        self.fields.insert("tool_calls".to_owned(), calls.into());
        Ok(())
    }

    fn tool_call(&self, position: usize, call: &Value) -> Result<Value, TextError> {
        let mut call = call.clone();
        let mut path = format!("tool_calls[{position}]");
        let found = kind(&call);
        let mut function =
            call.as_object_mut().ok_or_else(|| self.field(&path, "an object", found))?;
        // Both OpenAI's wrapper and the flat form of other interfaces are in use.
        if function.contains_key("function") {
            path.push_str(".function");
            let found = kind(&function["function"]);
            function = function["function"]
                .as_object_mut()
                .ok_or_else(|| self.field(&path, "an object", found))?;
        }
        match function.get("name") {
            Some(Value::String(name)) if !name.is_empty() => {}
            other => {
                let found = match other {
                    Some(Value::String(_)) => "empty",
                    other => other.map_or("missing", kind),
                };
                return Err(self.field(&format!("{path}.name"), "a function name", found));
            }
        }
        let arguments = self.arguments(&path, function.get("arguments"))?;
        function.insert("arguments".to_owned(), Value::Object(arguments));
        Ok(call)
    }

    fn arguments(
        &self,
        path: &str,
        arguments: Option<&Value>,
    ) -> Result<Map<String, Value>, TextError> {
        let parsed = match arguments {
            None | Some(Value::Null) => return Ok(Map::new()),
            Some(Value::String(text)) if text.trim().is_empty() => return Ok(Map::new()),
            Some(Value::String(text)) => match serde_json::from_str(text) {
                Ok(value) => value,
                Err(_) => {
                    return Ok(Map::from_iter([(RAW_ARGUMENTS.to_owned(), text.as_str().into())]));
                }
            },
            Some(other) => other.clone(),
        };
        match parsed {
            Value::Object(arguments) => Ok(arguments),
            Value::Null => Ok(Map::new()),
            other => Err(self.field(
                &format!("{path}.arguments"),
                "a JSON object, or the text of one",
                kind(&other),
            )),
        }
    }

    fn field(&self, field: &str, expected: &'static str, found: &str) -> TextError {
        TextError::MessageField {
            index: self.index,
            field: field.to_owned(),
            expected,
            found: found.to_owned(),
        }
    }
}

fn is_media(part: &Value) -> bool {
    // Templates of this family know a part by its type or by the key that carries it.
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    ["image", "video"].iter().any(|media| kind.starts_with(media) || part.get(media).is_some())
        || part.get("image_url").is_some()
}

fn role(index: usize, role: Option<&Value>) -> Result<Role, TextError> {
    match role {
        Some(Value::String(role)) => match role.as_str() {
            "system" | "developer" => Ok(Role::System),
            "user" => Ok(Role::User),
            "assistant" => Ok(Role::Assistant),
            "tool" => Ok(Role::Tool),
            _ => Err(TextError::UnknownRole { index, role: role.clone() }),
        },
        other => Err(TextError::MessageField {
            index,
            field: "role".to_owned(),
            expected: "a string",
            found: other.map_or("missing", kind).to_owned(),
        }),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
