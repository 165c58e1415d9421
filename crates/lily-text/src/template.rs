//! The checkpoint's chat template: messages to the text of a prompt.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use crate::error::TextError;
use crate::json_python;

/// Name under which the one template is compiled.
const NAME: &str = "chat_template";

/// Inputs that belong to [`RenderOptions`] itself.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// Steps any rendering may take. A published template needs some hundred for a
/// message; the rest is room for unusual ones.
const BASE_FUEL: u64 = 2_000_000;

/// Further steps per JSON value of the input, and per 64 bytes of its text.
const FUEL_PER_VALUE: u64 = 2_000;

/// A compiled chat template.
///
/// The environment is that of Hugging Face `transformers`: `trim_blocks` and
/// `lstrip_blocks`, Python string methods, Python-style `tojson`,
/// `raise_exception`. Not provided: `strftime_now` (a prompt should not depend
/// on the clock) and template inclusion.
///
/// Work per rendering is bounded by a budget that grows with the input, so a
/// hostile template ends with an error.
pub struct ChatTemplate {
    environment: Environment<'static>,
}

/// Inputs of one rendering.
#[derive(Debug, Clone, Copy)]
pub struct RenderOptions<'a> {
    /// The conversation, usually out of [`normalise_messages`](crate::normalise_messages).
    pub messages: &'a [Value],
    /// The tools, each as the request gives it.
    pub tools: Option<&'a [Value]>,
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further template variables, for example `enable_thinking`.
    pub kwargs: &'a Map<String, Value>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles the contents of a `chat_template.jinja`.
    ///
    /// # Errors
    /// [`TextError::Template`] if it does not parse.
    pub fn new(source: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| template_error(&error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| template_error(&error))?;
        Ok(Self { environment })
    }

    /// Renders a conversation as it is: apart from what `transformers` does
    /// before rendering (message keys that are null are dropped, `thinking` and
    /// `reasoning` become `reasoning_content`) the template sees the messages
    /// unchanged, and refuses what it does not like. What a server wants to
    /// accept beyond that is [`normalise_messages`](crate::normalise_messages)'
    /// business.
    ///
    /// # Errors
    /// [`TextError::TemplateRaised`] with the template's own message if it
    /// refuses the conversation; [`TextError::Render`] if the messages do not
    /// have the form it works with; [`TextError::ReservedArgument`];
    /// [`TextError::Template`] and [`TextError::TemplateBudget`] if the
    /// template itself is at fault.
    pub fn render(&self, options: &RenderOptions<'_>) -> Result<String, TextError> {
        if let Some(name) = RESERVED.into_iter().find(|name| options.kwargs.contains_key(*name)) {
            return Err(TextError::ReservedArgument { name: name.to_owned() });
        }
        let messages: Vec<Value> = options.messages.iter().cloned().map(pre_render).collect();
        let fuel = fuel(&messages, options);

        let mut context = options.kwargs.clone();
        context.insert("messages".to_owned(), Value::Array(messages));
        context.insert("tools".to_owned(), options.tools.map_or(Value::Null, Value::from));
        context.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());

        // The budget belongs to the environment; its templates are shared, so the copy is cheap.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        environment
            .get_template(NAME)
            .and_then(|template| template.render(minijinja::Value::from(Serde(&context))))
            .map_err(|error| render_error(&error, fuel))
    }
}

/// What `transformers` does to a message before the template sees it.
fn pre_render(mut message: Value) -> Value {
    if let Value::Object(fields) = &mut message {
        drop_nulls_and_rename_reasoning(fields);
    }
    message
}

/// Drops keys that are null and stores reasoning under the name templates read.
pub(crate) fn drop_nulls_and_rename_reasoning(fields: &mut Map<String, Value>) {
    fields.retain(|_, value| !value.is_null());
    for name in ["thinking", "reasoning"] {
        if !fields.contains_key("reasoning_content")
            && let Some(reasoning) = fields.get(name)
        {
            fields.insert("reasoning_content".to_owned(), reasoning.clone());
        }
    }
}

fn fuel(messages: &[Value], options: &RenderOptions<'_>) -> u64 {
    let inputs = messages
        .iter()
        .chain(options.tools.unwrap_or_default())
        .chain(options.kwargs.values())
        .map(size)
        .fold(0, u64::saturating_add);
    BASE_FUEL.saturating_add(inputs.saturating_mul(FUEL_PER_VALUE))
}

/// Number of values in `value`, a long text counting as several.
fn size(value: &Value) -> u64 {
    match value {
        Value::String(text) => 1 + text.len() as u64 / 64,
        Value::Array(items) => items.iter().map(size).sum::<u64>() + 1,
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| size(value) + 1 + key.len() as u64 / 64).sum::<u64>()
                + 1
        }
        _ => 1,
    }
}

fn tojson(value: &minijinja::Value, kwargs: Kwargs) -> Result<minijinja::Value, Error> {
    let indent = kwargs.get::<Option<usize>>("indent")?;
    // `ensure_ascii=False` may be spelt out, and is what happens anyway.
    if kwargs.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(ErrorKind::TooManyArguments, "tojson cannot escape to ASCII"));
    }
    kwargs.assert_all_used()?;
    json_python::dumps(value, indent.map(|spaces| spaces.min(16))).map(minijinja::Value::from)
}

/// Marks an error as raised by the template, as opposed to the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<minijinja::Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The message of `raise_exception`, if that is where `error` began.
fn raised(error: &Error) -> Option<String> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        source = error.source();
    }
    None
}

fn reason(error: &Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

fn template_error(error: &Error) -> TextError {
    TextError::Template { reason: reason(error), line: error.line().unwrap_or(0) }
}

fn render_error(error: &Error, fuel: u64) -> TextError {
    if let Some(message) = raised(error) {
        return TextError::TemplateRaised { message };
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TextError::TemplateBudget { fuel },
        ErrorKind::SyntaxError
        | ErrorKind::TemplateNotFound
        | ErrorKind::TooManyArguments
        | ErrorKind::MissingArgument
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownTest
        | ErrorKind::BadEscape
        | ErrorKind::BadInclude
        | ErrorKind::EvalBlock => template_error(error),
        _ => TextError::Render { reason: reason(error), line: error.line().unwrap_or(0) },
    }
}
