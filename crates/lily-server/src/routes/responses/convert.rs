//! From the events of a turn to responses.

use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use lily_text::OutputEvent;

use super::open::Open;
use super::tools::Tools;
use super::types::Echo;
use super::types::IncompleteDetails;
use super::types::InputTokensDetails;
use super::types::ItemPlace;
use super::types::Logprob;
use super::types::Numbered;
use super::types::OutputTokensDetails;
use super::types::RankedToken;
use super::types::Response;
use super::types::ResponseError;
use super::types::Status;
use super::types::StreamEvent;
use super::types::Usage;
use super::validate::Include;
use crate::error::ApiError;
use crate::routes::openai::LEAST_LOGPROB;
use crate::routes::openai::random_id;
use crate::sse::Encode;
use crate::sse::Frame;
use crate::turn::Event;
use crate::turn::Finish;
use crate::turn::Outcome;
use crate::turn::TokenLogprob;
use crate::turn::TokenText;
use crate::worker::Events;

/// What of the request shapes the answer.
#[derive(Debug)]
pub(super) struct Form {
    /// The name of the served model.
    pub(super) model: String,
    pub(super) echo: Echo,
    pub(super) tools: Tools,
    pub(super) include: Include,
}

/// Waits for the whole answer.
pub(super) async fn collect(mut events: Events, form: Form) -> Result<Response, ApiError> {
    let mut answer = Answer::new(form);
    while let Some(event) = events.next().await {
        match event {
            Event::Prefill { .. } | Event::Prompt { .. } | Event::Complete { .. } => {}
            Event::Output { event, logprobs, .. } => drop(answer.output(event, logprobs)),
            Event::Failed(error) => return Err(error),
            Event::Finished(outcome) => {
                answer.finish(outcome);
                return Ok(answer.response);
            }
        }
    }
    Err(ApiError::WorkerDead)
}

/// The answer as far as it has come. Streamed or not, it is put together here.
pub(super) struct Answer {
    tools: Tools,
    include: Include,
    response: Response,
    /// The item that may still grow.
    open: Option<Open>,
    sequence_number: u64,
}

impl Answer {
    pub(super) fn new(form: Form) -> Answer {
        let response = Response {
            id: random_id("resp_"),
            object: "response",
            created_at: now(),
            completed_at: None,
            status: Status::InProgress,
            error: None,
            incomplete_details: None,
            model: form.model,
            output: Vec::new(),
            usage: None,
            echo: form.echo,
        };
        let Form { tools, include, .. } = form;
        Answer { tools, include, response, open: None, sequence_number: 0 }
    }

    fn snapshot(&self) -> Box<Response> {
        Box::new(self.response.clone())
    }

    fn output(&mut self, event: OutputEvent, logprobs: Vec<TokenLogprob>) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        match event {
            OutputEvent::Reasoning(text) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    events.extend(self.begin(Open::reasoning(self.include)));
                }
                events.extend(self.grow(text, Vec::new()));
            }
            OutputEvent::Content(text) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    events.extend(self.begin(Open::message()));
                }
                let wanted = if self.include.logprobs { logprobs } else { Vec::new() };
                events.extend(self.grow(text, wanted.into_iter().map(logprob).collect()));
            }
            OutputEvent::ToolCallStart { name, .. } => {
                let open = Open::call(self.tools.find(&name), name);
                events.extend(self.begin(open));
            }
            OutputEvent::ToolCallArguments { fragment, .. } => {
                events.extend(self.grow(fragment, Vec::new()));
            }
            OutputEvent::ToolCallEnd { .. } => events.extend(self.end(Status::Completed)),
        }
        events
    }

    fn place(&self, open: &Open) -> ItemPlace {
        ItemPlace { item_id: open.id().to_owned(), output_index: self.response.output.len() }
    }

    fn begin(&mut self, open: Open) -> Vec<StreamEvent> {
        let mut events = self.end(Status::Completed);
        events.extend(open.begin(self.place(&open)));
        self.open = Some(open);
        events
    }

    fn grow(&mut self, text: String, logprobs: Vec<Logprob>) -> Option<StreamEvent> {
        let place = self.place(self.open.as_ref()?);
        self.open.as_mut()?.grow(place, text, logprobs)
    }

    /// Closes the item that is open, if there is one.
    fn end(&mut self, status: Status) -> Vec<StreamEvent> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let place = self.place(&open);
        let output_index = place.output_index;
        let (mut events, item) = open.end(place, status);
        self.response.output.push(item.clone());
        events.push(StreamEvent::ItemDone { output_index, item });
        events
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<StreamEvent> {
        // An answer that never came is incomplete, for which the API has this one reason that fits.
        let incomplete = matches!(outcome.finish, Finish::Length | Finish::Unanswered);
        // A call that was cut off is still open, whatever ended the answer.
        let cut = incomplete || matches!(self.open, Some(Open::Call { .. }));
        let mut events = self.end(if cut { Status::Incomplete } else { Status::Completed });
        self.response.usage = Some(usage(outcome));
        if incomplete {
            self.response.status = Status::Incomplete;
            self.response.incomplete_details =
                Some(IncompleteDetails { reason: "max_output_tokens" });
            events.push(StreamEvent::Incomplete { response: self.snapshot() });
        } else {
            self.response.status = Status::Completed;
            self.response.completed_at = Some(now());
            events.push(StreamEvent::Completed { response: self.snapshot() });
        }
        events
    }

    fn fail(&mut self, error: &ApiError) -> Vec<StreamEvent> {
        let code = error.label();
        let message = error.to_string();
        self.response.status = Status::Failed;
        self.response.error = Some(ResponseError { code, message: message.clone() });
        let failed = StreamEvent::Failed { response: self.snapshot() };
        vec![StreamEvent::Error { code, message, param: None }, failed]
    }

    fn frames(&mut self, events: Vec<StreamEvent>) -> Vec<Frame> {
        let mut frame = |event: &StreamEvent| {
            let sequence_number = self.sequence_number;
            self.sequence_number += 1;
            let numbered = Numbered { r#type: event.name(), sequence_number, event };
            Frame::event(event.name(), &numbered)
        };
        events.iter().map(&mut frame).collect()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn usage(outcome: Outcome) -> Usage {
    Usage {
        input_tokens: outcome.prompt_tokens,
        input_tokens_details: InputTokensDetails { cached_tokens: 0, cache_write_tokens: 0 },
        output_tokens: outcome.completion_tokens,
        output_tokens_details: OutputTokensDetails { reasoning_tokens: outcome.reasoning_tokens },
        total_tokens: outcome.prompt_tokens + outcome.completion_tokens,
    }
}

fn logprob(logprob: TokenLogprob) -> Logprob {
    let ranked = |(token, logprob): (TokenText, f32)| RankedToken {
        token: String::from_utf8_lossy(&token.0).into_owned(),
        logprob: logprob.max(LEAST_LOGPROB),
        bytes: token.0,
    };
    Logprob {
        token: ranked((logprob.token, logprob.logprob)),
        top_logprobs: logprob.top.into_iter().map(ranked).collect(),
    }
}

/// Writes the events of a turn as events of the API.
impl Encode for Answer {
    fn start(&mut self) -> Vec<Frame> {
        let events = vec![
            StreamEvent::Created { response: self.snapshot() },
            StreamEvent::InProgress { response: self.snapshot() },
        ];
        self.frames(events)
    }

    fn output(
        &mut self,
        _choice: usize,
        event: OutputEvent,
        logprobs: Vec<TokenLogprob>,
    ) -> Vec<Frame> {
        let events = Answer::output(self, event, logprobs);
        self.frames(events)
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<Frame> {
        let events = Answer::finish(self, outcome);
        self.frames(events)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        let events = Answer::fail(self, error);
        self.frames(events)
    }
}
