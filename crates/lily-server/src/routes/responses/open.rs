//! The item of a response that still grows.

use serde_json::Map;
use serde_json::Value;

use super::tools::INPUT;
use super::tools::Offered;
use super::types::Item;
use super::types::ItemPlace;
use super::types::Logprob;
use super::types::Part;
use super::types::Place;
use super::types::Status;
use super::types::StreamEvent;
use super::types::SummaryPlace;
use super::validate::Include;
use crate::routes::openai::random_id;
use crate::sealed;

/// An item before its end.
pub(super) enum Open {
    Reasoning { id: String, text: String, include: Include },
    Message { id: String, text: String, logprobs: Vec<Logprob> },
    Call(Call),
}

/// A call; the arguments are the text of a JSON object once it has ended.
pub(super) struct Call {
    id: String,
    call_id: String,
    namespace: Option<String>,
    name: String,
    custom: bool,
    arguments: String,
}

impl Open {
    pub(super) fn reasoning(include: Include) -> Open {
        Open::Reasoning { id: random_id("rs_"), text: String::new(), include }
    }

    pub(super) fn message() -> Open {
        Open::Message { id: random_id("msg_"), text: String::new(), logprobs: Vec::new() }
    }

    /// A call of `tool`, or of one that does not exist.
    pub(super) fn call(tool: Option<&Offered>, name: String) -> Open {
        let custom = tool.is_some_and(|tool| tool.custom);
        Open::Call(Call {
            id: random_id(if custom { "ctc_" } else { "fc_" }),
            call_id: random_id("call_"),
            namespace: tool.and_then(|tool| tool.namespace.clone()),
            name: tool.map_or(name, |tool| tool.name.clone()),
            custom,
            arguments: String::new(),
        })
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Open::Reasoning { id, .. } | Open::Message { id, .. } => id,
            Open::Call(call) => &call.id,
        }
    }

    /// What announces the item.
    pub(super) fn begin(&self, at: ItemPlace) -> Vec<StreamEvent> {
        let added = StreamEvent::ItemAdded { output_index: at.output_index, item: self.empty() };
        let mut events = vec![added];
        match self {
            Open::Reasoning { include, .. } if include.summary => {
                let part = Part::Summary { text: String::new() };
                events.push(StreamEvent::SummaryPartAdded { at: summary(at), part });
            }
            Open::Reasoning { .. } => {
                let part = Part::Reasoning { text: String::new() };
                events.push(StreamEvent::PartAdded { at: content(at), part });
            }
            Open::Message { .. } => {
                let part = output_text(String::new(), Vec::new());
                events.push(StreamEvent::PartAdded { at: content(at), part });
            }
            Open::Call(_) => {}
        }
        events
    }

    fn empty(&self) -> Item {
        let status = Status::InProgress;
        match self {
            Open::Reasoning { id, .. } => Item::Reasoning {
                id: id.clone(),
                summary: Vec::new(),
                content: Vec::new(),
                encrypted_content: None,
                status,
            },
            Open::Message { id, .. } => {
                Item::Message { id: id.clone(), status, role: "assistant", content: Vec::new() }
            }
            Open::Call(call) => call.item(String::new(), status),
        }
    }

    /// Takes more of the text or the arguments. The input of a custom tool shows
    /// at its end only: until then it is part of a JSON text.
    pub(super) fn grow(
        &mut self,
        at: ItemPlace,
        delta: String,
        more: Vec<Logprob>,
    ) -> Option<StreamEvent> {
        match self {
            Open::Reasoning { text, include, .. } => {
                text.push_str(&delta);
                Some(if include.summary {
                    StreamEvent::SummaryDelta { at: summary(at), delta }
                } else {
                    StreamEvent::ReasoningDelta { at: content(at), delta }
                })
            }
            Open::Message { text, logprobs, .. } => {
                text.push_str(&delta);
                logprobs.extend_from_slice(&more);
                Some(StreamEvent::TextDelta { at: content(at), delta, logprobs: more })
            }
            Open::Call(call) => {
                call.arguments.push_str(&delta);
                (!call.custom).then_some(StreamEvent::ArgumentsDelta { at, delta })
            }
        }
    }

    /// The item, and the events before that which hands it over.
    pub(super) fn end(self, at: ItemPlace, status: Status) -> (Vec<StreamEvent>, Item) {
        match self {
            Open::Reasoning { id, text, include } => reasoning(id, text, include, at, status),
            Open::Message { id, text, logprobs } => {
                let at = content(at);
                let part = output_text(text.clone(), logprobs.clone());
                let events = vec![
                    StreamEvent::TextDone { at: at.clone(), text, logprobs },
                    StreamEvent::PartDone { at, part: part.clone() },
                ];
                (events, Item::Message { id, status, role: "assistant", content: vec![part] })
            }
            Open::Call(call) => call.end(at, status),
        }
    }
}

fn reasoning(
    id: String,
    text: String,
    include: Include,
    at: ItemPlace,
    status: Status,
) -> (Vec<StreamEvent>, Item) {
    let encrypted_content = include.encrypted_reasoning.then(|| sealed::seal(&text));
    let (events, summary, content) = if include.summary {
        let at = summary(at);
        let part = Part::Summary { text: text.clone() };
        let events = vec![
            StreamEvent::SummaryDone { at: at.clone(), text },
            StreamEvent::SummaryPartDone { at, part: part.clone() },
        ];
        (events, vec![part], Vec::new())
    } else {
        let at = content(at);
        let part = Part::Reasoning { text: text.clone() };
        let events = vec![
            StreamEvent::ReasoningDone { at: at.clone(), text },
            StreamEvent::PartDone { at, part: part.clone() },
        ];
        (events, Vec::new(), vec![part])
    };
    (events, Item::Reasoning { id, summary, content, encrypted_content, status })
}

impl Call {
    fn item(&self, text: String, status: Status) -> Item {
        let Call { id, call_id, namespace, name, .. } = self;
        let (id, call_id, namespace, name) =
            (id.clone(), call_id.clone(), namespace.clone(), name.clone());
        if self.custom {
            Item::CustomToolCall { id, call_id, namespace, name, input: text, status }
        } else {
            Item::FunctionCall { id, call_id, namespace, name, arguments: text, status }
        }
    }

    fn end(self, at: ItemPlace, status: Status) -> (Vec<StreamEvent>, Item) {
        if self.custom {
            let input = input(&self.arguments);
            let events = vec![
                StreamEvent::InputDelta { at: at.clone(), delta: input.clone() },
                StreamEvent::InputDone { at, input: input.clone() },
            ];
            return (events, self.item(input, status));
        }
        let (name, arguments) = (self.name.clone(), self.arguments.clone());
        let events = vec![StreamEvent::ArgumentsDone { at, name, arguments: arguments.clone() }];
        (events, self.item(arguments, status))
    }
}

/// The one argument of a custom tool. A model that made up other parameters has
/// them shown as they are; of a call that was cut off nothing is.
fn input(arguments: &str) -> String {
    match serde_json::from_str::<Map<String, Value>>(arguments) {
        Err(_) => String::new(),
        Ok(object) => match object.get(INPUT) {
            Some(Value::String(text)) if object.len() == 1 => text.clone(),
            _ => arguments.to_owned(),
        },
    }
}

fn output_text(text: String, logprobs: Vec<Logprob>) -> Part {
    Part::Output { text, annotations: [], logprobs }
}

/// Items of an answer have one part.
fn content(item: ItemPlace) -> Place {
    Place { item, content_index: 0 }
}

fn summary(item: ItemPlace) -> SummaryPlace {
    SummaryPlace { item, summary_index: 0 }
}
