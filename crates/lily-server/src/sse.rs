//! Server-sent events: the events of a turn as a response body.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;
use std::task::ready;
use std::time::Duration;

use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::response::Sse;
use axum::response::sse;
use futures_core::Stream;
use lily_text::OutputEvent;
use serde::Serialize;
use tokio::time::Instant;
use tokio::time::Sleep;

use crate::error::ApiError;
use crate::turn::Event;
use crate::turn::Finish;
use crate::turn::Outcome;
use crate::turn::PromptToken;
use crate::turn::TokenLogprob;
use crate::worker::Events;

/// One event of a stream as it goes over the wire.
pub(crate) struct Frame(sse::Event);

impl Frame {
    /// `data:` with a JSON value.
    pub(crate) fn json(value: &impl Serialize) -> Frame {
        Frame::with_data(sse::Event::default(), value)
    }

    /// `event:` with a name, and `data:` with a JSON value.
    pub(crate) fn event(name: &str, value: &impl Serialize) -> Frame {
        // Some clients expect the name before the data.
        Frame::with_data(sse::Event::default().event(name), value)
    }

    fn with_data(event: sse::Event, value: &impl Serialize) -> Frame {
        match serde_json::to_string(value) {
            Ok(text) => Frame(event.data(text)),
            Err(error) => Frame::error(&ApiError::Internal(error.to_string())),
        }
    }

    /// The same frame with a comment before it, which clients skip.
    pub(crate) fn commented(self, text: String) -> Frame {
        Frame(self.0.comment(text))
    }

    /// `data:` with plain text.
    pub(crate) fn text(text: impl AsRef<str>) -> Frame {
        Frame(sse::Event::default().data(text))
    }

    /// An error after the stream began, when no status can be sent any more.
    fn error(error: &ApiError) -> Frame {
        Frame(sse::Event::default().data(serde_json::json!(error.body()).to_string()))
    }

    /// A comment, which clients skip.
    fn comment(text: String) -> Frame {
        Frame(sse::Event::default().comment(text))
    }
}

/// How an endpoint writes the events of a turn.
pub(crate) trait Encode: Send + 'static {
    /// What goes out before anything has happened.
    fn start(&mut self) -> Vec<Frame>;
    /// The prompt of a choice, token by token, where its log probabilities are asked for.
    fn prompt(&mut self, _choice: usize, _tokens: Vec<PromptToken>) -> Vec<Frame> {
        Vec::new()
    }
    /// A piece of an answer. Only turns with several answers have a `choice` that is not 0.
    fn output(
        &mut self,
        choice: usize,
        event: OutputEvent,
        logprobs: Vec<TokenLogprob>,
    ) -> Vec<Frame>;
    /// The end of one answer. Where there is one only, [`Encode::finish`] follows at once and tells
    /// as much.
    fn complete(&mut self, _choice: usize, _finish: Finish) -> Vec<Frame> {
        Vec::new()
    }
    /// The end of all answers and of the stream.
    fn finish(&mut self, outcome: Outcome) -> Vec<Frame>;
    /// The end of the stream after a failure.
    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::error(error)]
    }
    /// What is sent when nothing else has been for a while; `progress` says in
    /// words where the request stands.
    fn keep_alive(&self, progress: String) -> Frame {
        Frame::comment(progress)
    }
}

/// Streams a turn. A failure becomes an error event, after which the stream ends
/// without the usual last event.
pub(crate) fn response<E: Encode>(
    events: Events,
    mut encoder: E,
    keep_alive: Duration,
) -> Response {
    let ready = VecDeque::from(encoder.start());
    let silence = Box::pin(tokio::time::sleep(keep_alive));
    let frames = Frames { events, encoder: Box::new(encoder), ready, keep_alive, silence };
    // nginx and its kin would otherwise gather the stream before passing it on.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    ([unbuffered], Sse::new(frames)).into_response()
}

struct Frames {
    events: Events,
    encoder: Box<dyn Encode>,
    ready: VecDeque<Frame>,
    keep_alive: Duration,
    /// Ends when nothing has been sent for `keep_alive`.
    silence: Pin<Box<Sleep>>,
}

impl Frames {
    fn send(&mut self, Frame(event): Frame) -> Poll<Option<Result<sse::Event, Infallible>>> {
        let next = Instant::now().checked_add(self.keep_alive);
        if let Some(next) = next {
            self.silence.as_mut().reset(next);
        }
        Poll::Ready(Some(Ok(event)))
    }
}

impl Stream for Frames {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return self.send(frame);
            }
            let event = match self.events.poll_next(context) {
                Poll::Pending => {
                    ready!(self.silence.as_mut().poll(context));
                    let sign = self.encoder.keep_alive(self.events.progress());
                    return self.send(sign);
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(event)) => event,
            };
            let frames = match event {
                Event::Prefill { done, total } if done < total => {
                    vec![Frame::comment(format!("prefill {done}/{total}"))]
                }
                Event::Prefill { .. } => Vec::new(),
                Event::Prompt { choice, tokens } => self.encoder.prompt(choice, tokens),
                Event::Output { choice, event, logprobs } => {
                    self.encoder.output(choice, event, logprobs)
                }
                Event::Complete { choice, finish } => self.encoder.complete(choice, finish),
                Event::Finished(outcome) => self.encoder.finish(outcome),
                Event::Failed(error) => {
                    tracing::warn!(%error, "a stream failed");
                    self.encoder.fail(&error)
                }
            };
            self.ready.extend(frames);
        }
    }
}
