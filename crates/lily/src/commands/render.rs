//! `lily render`: what a chat request looks like to the model.

use anyhow::{Context, Result};
use lily_text::{MediaParts, RenderOptions, TextError, normalise_messages_with};
use serde_json::{Map, Value};

use super::output::{print, read_text};
use crate::args::RenderArgs;
use crate::failure::UsageError;
use crate::model;

pub(crate) fn run(args: &RenderArgs) -> Result<()> {
    let template = model::template(&args.model)?;
    let text = read_text(&args.request)?;
    let request = Request::parse(&text)
        .with_context(|| format!("{} is not a chat request", args.request.display()))?;
    let messages = normalise_messages_with(&request.messages, MediaParts::Keep);
    let rendered = messages.and_then(|messages| {
        template.render(&RenderOptions {
            messages: &messages,
            tools: request.tools.as_deref(),
            add_generation_prompt: request.add_generation_prompt,
            kwargs: &request.kwargs,
        })
    });
    match rendered {
        Ok(prompt) => Ok(print(&prompt)?),
        Err(error) => Err(classified(error)),
    }
}

/// What the request got wrong ends with code 2, a broken template with 1.
fn classified(error: TextError) -> anyhow::Error {
    if error.is_client_fault() { UsageError(error.into()).into() } else { error.into() }
}

/// The fields of a chat completion request that reach the template; sampling fields do not.
#[derive(Debug)]
struct Request {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    kwargs: Map<String, Value>,
    add_generation_prompt: bool,
}

impl Request {
    fn parse(text: &str) -> Result<Self> {
        let mut body: Map<String, Value> = serde_json::from_str(text)?;
        let messages = array(&mut body, "messages")?.context("messages is missing")?;
        let tools = array(&mut body, "tools")?.filter(|tools| !tools.is_empty());
        let mut kwargs = match body.remove("chat_template_kwargs") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(kwargs)) => kwargs,
            Some(_) => anyhow::bail!("chat_template_kwargs is not an object"),
        };
        thinking(&mut body, &mut kwargs)?;
        // Both places are in use among clients; the more specific one wins.
        let flag = kwargs.remove("add_generation_prompt").or(body.remove("add_generation_prompt"));
        let add_generation_prompt = match flag {
            None | Some(Value::Null) => true,
            Some(Value::Bool(flag)) => flag,
            Some(_) => anyhow::bail!("add_generation_prompt is not a boolean"),
        };
        Ok(Request { messages, tools, kwargs, add_generation_prompt })
    }
}

/// The two top-level ways to switch thinking that the server knows; the template's own argument
/// wins over them.
fn thinking(body: &mut Map<String, Value>, kwargs: &mut Map<String, Value>) -> Result<()> {
    let enabled = match (body.remove("enable_thinking"), body.remove("reasoning_effort")) {
        (Some(Value::Bool(enabled)), _) => enabled,
        (None | Some(Value::Null), Some(Value::String(effort))) if effort == "none" => false,
        (None | Some(Value::Null), _) => return Ok(()),
        (Some(_), _) => anyhow::bail!("enable_thinking is not a boolean"),
    };
    kwargs.entry("enable_thinking").or_insert(enabled.into());
    Ok(())
}

fn array(body: &mut Map<String, Value>, field: &str) -> Result<Option<Vec<Value>>> {
    match body.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => anyhow::bail!("{field} is not an array"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_prompt_is_added_unless_refused() {
        let flag = |body: &str| Request::parse(body).unwrap().add_generation_prompt;
        assert!(flag(r#"{"messages": []}"#));
        assert!(!flag(r#"{"messages": [], "add_generation_prompt": false}"#));
        assert!(!flag(
            r#"{"messages": [], "chat_template_kwargs": {"add_generation_prompt": false}}"#
        ));
    }

    #[test]
    fn thinking_can_be_switched_at_the_top_level() {
        let enabled = |body: &str| Request::parse(body).unwrap().kwargs.remove("enable_thinking");
        assert_eq!(enabled(r#"{"messages": []}"#), None);
        assert_eq!(enabled(r#"{"messages": [], "enable_thinking": false}"#), Some(false.into()));
        assert_eq!(enabled(r#"{"messages": [], "reasoning_effort": "none"}"#), Some(false.into()));
        let both = r#"{"messages": [], "enable_thinking": false,
            "chat_template_kwargs": {"enable_thinking": true}}"#;
        assert_eq!(enabled(both), Some(true.into()));
    }

    #[test]
    fn fields_of_the_wrong_type_are_named() {
        for (body, field) in [
            ("{}", "messages"),
            (r#"{"messages": "hi"}"#, "messages"),
            (r#"{"messages": [], "tools": {}}"#, "tools"),
            (r#"{"messages": [], "chat_template_kwargs": 1}"#, "chat_template_kwargs"),
        ] {
            assert!(Request::parse(body).unwrap_err().to_string().contains(field), "{body}");
        }
    }
}
