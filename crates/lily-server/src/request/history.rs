//! A conversation that comes as blocks or items, put together to the messages
//! that templates take.

use std::collections::HashMap;

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::error::ApiError;

/// What stands between two texts of one message.
const GAP: &str = "\n\n";

/// Takes the parts of a conversation in order.
///
/// Parts of one speaker that follow one another become one message. Templates
/// match the results of tool calls to the calls by their order, clients by ids:
/// results are brought into the order of the calls, and each call must have one.
#[derive(Debug, Default)]
pub(crate) struct History {
    system: Vec<Value>,
    messages: Vec<Value>,
    open: Open,
    /// The calls of the latest assistant message.
    calls: Vec<Call>,
    /// Where in `calls` each id is.
    places: HashMap<String, usize>,
}

/// The message that may still grow.
#[derive(Debug, Default)]
enum Open {
    #[default]
    Nothing,
    User(String),
    Assistant(Assistant),
    /// Results with the positions of their calls.
    Results(Vec<(usize, String)>),
}

#[derive(Debug, Default)]
struct Assistant {
    reasoning: String,
    text: String,
    calls: Vec<Value>,
}

#[derive(Debug)]
struct Call {
    id: String,
    /// Where the request makes the call.
    path: String,
    answered: bool,
}

impl History {
    /// An instruction. Templates take them at the beginning only.
    pub(crate) fn system(&mut self, text: &str) {
        self.system.push(json!({"role": "system", "content": text}));
    }

    pub(crate) fn user(&mut self, text: &str) {
        if !matches!(self.open, Open::User(_)) {
            self.close();
            self.open = Open::User(String::new());
        }
        if let Open::User(all) = &mut self.open {
            append(all, text);
        }
    }

    /// What the model thought.
    ///
    /// # Errors
    /// A call of the assistant message before has no result; so for all parts
    /// of an assistant message.
    pub(crate) fn reasoning(&mut self, text: &str) -> Result<(), ApiError> {
        append(&mut self.assistant()?.reasoning, text);
        Ok(())
    }

    /// What the model said.
    pub(crate) fn answer(&mut self, text: &str) -> Result<(), ApiError> {
        append(&mut self.assistant()?.text, text);
        Ok(())
    }

    /// What the model called; `path` says where in the request.
    pub(crate) fn call(
        &mut self,
        path: &str,
        id: String,
        name: &str,
        arguments: Value,
    ) -> Result<(), ApiError> {
        let function = json!({"name": name, "arguments": arguments});
        self.assistant()?.calls.push(json!({"type": "function", "function": function}));
        if self.places.insert(id.clone(), self.calls.len()).is_some() {
            return Err(ApiError::field(path, format_args!("has the id of another call: {id:?}")));
        }
        self.calls.push(Call { id, path: path.to_owned(), answered: false });
        Ok(())
    }

    /// What came of a call; `path` is the field that holds the call's id.
    pub(crate) fn result(&mut self, path: &str, id: &str, text: String) -> Result<(), ApiError> {
        let place = self.places.get(id).copied();
        let Some((place, call)) = place.and_then(|at| Some((at, self.calls.get_mut(at)?))) else {
            let complaint = format_args!("names no tool call of the turn before: {id:?}");
            return Err(ApiError::field(path, complaint));
        };
        if std::mem::replace(&mut call.answered, true) {
            let complaint = format_args!("names a tool call that has a result: {id:?}");
            return Err(ApiError::field(path, complaint));
        }
        if !matches!(self.open, Open::Results(_)) {
            self.close();
            self.open = Open::Results(Vec::new());
        }
        if let Open::Results(results) = &mut self.open {
            results.push((place, text));
        }
        Ok(())
    }

    /// Where the model spoke last: whether it said anything that an answer could go on from.
    pub(crate) fn begun(&self) -> Option<bool> {
        match &self.open {
            Open::Assistant(assistant) => Some(!assistant.text.trim().is_empty()),
            _ => None,
        }
    }

    /// The messages.
    ///
    /// # Errors
    /// A call has no result.
    pub(crate) fn finish(mut self) -> Result<Vec<Value>, ApiError> {
        self.expect_results()?;
        self.close();
        let mut messages = self.system;
        messages.append(&mut self.messages);
        Ok(messages)
    }

    fn assistant(&mut self) -> Result<&mut Assistant, ApiError> {
        if !matches!(self.open, Open::Assistant(_)) {
            self.expect_results()?;
            self.close();
            self.calls.clear();
            self.places.clear();
            self.open = Open::Assistant(Assistant::default());
        }
        match &mut self.open {
            Open::Assistant(assistant) => Ok(assistant),
            _ => Err(ApiError::Internal("no assistant message is open".to_owned())),
        }
    }

    fn expect_results(&self) -> Result<(), ApiError> {
        match self.calls.iter().find(|call| !call.answered) {
            None => Ok(()),
            Some(call) => Err(ApiError::field(
                &call.path,
                format_args!("is a tool call without a result: {:?}", call.id),
            )),
        }
    }

    fn close(&mut self) {
        match std::mem::take(&mut self.open) {
            Open::Nothing => {}
            Open::User(text) => self.messages.push(json!({"role": "user", "content": text})),
            Open::Assistant(assistant) => self.messages.push(assistant.message()),
            Open::Results(mut results) => {
                results.sort_by_key(|(place, _)| *place);
                let messages = results.into_iter().map(|(_, text)| text);
                self.messages.extend(messages.map(|text| json!({"role": "tool", "content": text})));
            }
        }
    }
}

impl Assistant {
    fn message(self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), self.text.into());
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), self.reasoning.into());
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), self.calls.into());
        }
        Value::Object(message)
    }
}

fn append(all: &mut String, text: &str) {
    if !all.is_empty() && !text.is_empty() {
        all.push_str(GAP);
    }
    all.push_str(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_speaker_become_one_message_and_instructions_come_first() {
        let mut history = History::default();
        history.user("Hello.");
        history.system("Be brief.");
        history.user("What is 2 + 3?");
        history.reasoning("A sum.").unwrap();
        history.answer("It is").unwrap();
        history.answer("5.").unwrap();
        history.user("Thanks.");
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello.\n\nWhat is 2 + 3?"},
            {"role": "assistant", "content": "It is\n\n5.", "reasoning_content": "A sum."},
            {"role": "user", "content": "Thanks."},
        ]);
        assert_eq!(Value::from(history.finish().unwrap()), expected);
    }

    fn two_calls() -> History {
        let mut history = History::default();
        history.user("Go.");
        history.call("c[0]", "a".to_owned(), "f", json!({})).unwrap();
        history.call("c[1]", "b".to_owned(), "g", json!({})).unwrap();
        history
    }

    #[test]
    fn results_come_in_the_order_of_their_calls() {
        let mut history = two_calls();
        history.result("r[0]", "b", "second".to_owned()).unwrap();
        history.result("r[1]", "a", "first".to_owned()).unwrap();
        let messages = history.finish().unwrap();
        let tools: Vec<&Value> = messages.iter().filter(|m| m["role"] == "tool").collect();
        assert_eq!(tools[0]["content"], "first");
        assert_eq!(tools[1]["content"], "second");
    }

    fn message<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn calls_and_results_that_do_not_match_are_refused_where_they_stand() {
        let mut history = two_calls();
        history.result("r[0]", "a", String::new()).unwrap();
        assert!(message(history.result("r[1]", "a", String::new())).starts_with("'r[1]'"));
        assert!(message(history.result("r[2]", "x", String::new())).starts_with("'r[2]'"));
        assert!(message(history.answer("Done.")).starts_with("'c[1]'"));
        assert!(message(history.finish()).starts_with("'c[1]'"));
        let again = two_calls().call("c[2]", "a".to_owned(), "f", json!({}));
        assert!(message(again).starts_with("'c[2]'"));
    }
}
