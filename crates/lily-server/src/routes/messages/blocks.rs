//! The conversation: messages of content blocks become those that templates take.

use serde_json::Value;

use crate::error::ApiError;
use crate::json::Fields;
use crate::json::missing;
use crate::json::wrong_type;
use crate::request::history::History;
use crate::sealed;

/// A conversation in the form that templates take.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Value>,
    /// The path of the last message if it is the assistant's: the answer goes on
    /// where that leaves off.
    pub(super) begun: Option<String>,
}

/// Reads `system` and `messages`.
pub(super) fn conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    let mut history = History::default();
    if let Some(system) = fields.value("system") {
        for text in texts("system", system)? {
            history.system(&text);
        }
    }
    let messages = fields.array("messages")?.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "must not be empty"));
    }
    let last = format!("messages[{}]", messages.len() - 1);
    for (index, message) in messages.into_iter().enumerate() {
        read_message(&mut history, &format!("messages[{index}]"), message)?;
    }
    let begun = history.begun();
    let messages = history.finish()?;
    if begun == Some(false) {
        let complaint = "must not be blank: the answer would go on from it";
        return Err(ApiError::field(format!("{last}.content"), complaint));
    }
    Ok(Conversation { messages, begun: begun.map(|_| last) })
}

fn read_message(history: &mut History, path: &str, message: Value) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, message)?;
    let role = fields.string("role")?.ok_or_else(|| missing(fields.path("role")))?;
    let path = fields.path("content");
    let content = fields.value("content").ok_or_else(|| missing(&path))?;
    match role.as_str() {
        "user" => user(history, &path, content)?,
        "assistant" => assistant(history, &path, content)?,
        "system" => {
            for text in texts(&path, content)? {
                history.system(&text);
            }
        }
        other => {
            return Err(ApiError::field(
                fields.path("role"),
                format_args!("must be user, assistant or system, not {other:?}"),
            ));
        }
    }
    fields.finish()
}

/// A string, or an array of which each block is given with its path and type.
fn each_block(
    path: &str,
    content: Value,
    mut read: impl FnMut(Block) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let blocks = match content {
        Value::String(text) => {
            let fields = Fields::new(path, serde_json::json!({"text": text}))?;
            return read(Block { kind: "text".to_owned(), fields });
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong_type(path, "a string or an array of blocks", &other)),
    };
    for (index, block) in blocks.into_iter().enumerate() {
        let mut fields = Fields::new(format!("{path}[{index}]"), block)?;
        let kind = fields.string("type")?.ok_or_else(|| missing(fields.path("type")))?;
        // Ignored: a hint for caches of other services.
        fields.object("cache_control")?;
        read(Block { kind, fields })?;
    }
    Ok(())
}

struct Block {
    kind: String,
    fields: Fields,
}

impl Block {
    fn text(mut self) -> Result<String, ApiError> {
        let text = self.fields.string("text")?;
        let text = text.ok_or_else(|| missing(self.fields.path("text")))?;
        // Ignored: where the text came from is for people.
        self.fields.array("citations")?;
        self.fields.finish()?;
        Ok(text)
    }

    fn unsupported(self, expected: &str) -> ApiError {
        let kind = self.kind;
        ApiError::unsupported(
            self.fields.path("type"),
            format_args!("must be {expected}: {kind:?} blocks are not supported here"),
        )
    }
}

/// Content that may be nothing but text.
fn texts(path: &str, content: Value) -> Result<Vec<String>, ApiError> {
    let mut texts = Vec::new();
    each_block(path, content, |block| {
        match block.kind.as_str() {
            "text" => texts.push(block.text()?),
            _ => return Err(block.unsupported("\"text\"")),
        }
        Ok(())
    })?;
    Ok(texts)
}

fn user(history: &mut History, path: &str, content: Value) -> Result<(), ApiError> {
    let mut blank = true;
    each_block(path, content, |block| {
        match block.kind.as_str() {
            "text" => {
                let text = block.text()?;
                if !text.trim().is_empty() {
                    blank = false;
                    history.user(&text);
                }
            }
            "tool_result" => {
                blank = false;
                tool_result(history, block.fields)?;
            }
            _ => return Err(block.unsupported("\"text\" or \"tool_result\"")),
        }
        Ok(())
    })?;
    if blank { Err(ApiError::field(path, "must not be empty")) } else { Ok(()) }
}

fn tool_result(history: &mut History, mut fields: Fields) -> Result<(), ApiError> {
    let id_path = fields.path("tool_use_id");
    let id = fields.string("tool_use_id")?.ok_or_else(|| missing(&id_path))?;
    let mut text = match fields.value("content") {
        None => String::new(),
        Some(content) => texts(&fields.path("content"), content)?.join("\n\n"),
    };
    // Templates know results only; clients mark failed ones.
    if fields.boolean("is_error")? == Some(true) {
        text.insert_str(0, "Error: ");
    }
    fields.finish()?;
    history.result(&id_path, &id, text)
}

fn assistant(history: &mut History, path: &str, content: Value) -> Result<(), ApiError> {
    // An empty answer is a turn, too.
    history.answer("")?;
    each_block(path, content, |mut block| match block.kind.as_str() {
        "text" => history.answer(&block.text()?),
        "thinking" => {
            let fields = &mut block.fields;
            let signature = fields.string("signature")?.unwrap_or_default();
            let thinking =
                fields.string("thinking")?.ok_or_else(|| missing(fields.path("thinking")))?;
            block.fields.finish()?;
            // Thinking that was not shown is in the signature.
            let carried = if thinking.is_empty() { sealed::open(&signature) } else { None };
            history.reasoning(&carried.unwrap_or(thinking))
        }
        "redacted_thinking" => {
            // Ignored: what another service has sealed says nothing here.
            block.fields.string("data")?;
            block.fields.finish()
        }
        "tool_use" => tool_use(history, block.fields),
        _ => {
            Err(block.unsupported("\"text\", \"thinking\", \"redacted_thinking\" or \"tool_use\""))
        }
    })
}

fn tool_use(history: &mut History, mut fields: Fields) -> Result<(), ApiError> {
    let id = fields.string("id")?.ok_or_else(|| missing(fields.path("id")))?;
    let name = fields.string("name")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| missing(fields.path("name")))?;
    let input = fields.object("input")?.ok_or_else(|| missing(fields.path("input")))?;
    // Ignored: only the model itself calls here.
    fields.object("caller")?;
    let path = fields.path("id");
    fields.finish()?;
    history.call(&path, id, &name, Value::Object(input))
}
