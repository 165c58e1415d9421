//! Each request has an id, and one line once it has been answered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;
use std::time::Instant;

use axum::body::Body;
use axum::body::Bytes;
use axum::body::HttpBody;
use axum::extract::MatchedPath;
use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::http::Method;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::Frame;
use hyper::body::SizeHint;
use tracing::Instrument;
use tracing::Span;

use crate::error::ErrorCode;
use crate::metrics::Metrics;
use crate::middleware::headers;
use crate::site::Front;
use crate::worker::LastOutcome;

/// The header that carries a request's id, both ways.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// Longest id that is taken over from a client.
const ID_LENGTH: usize = 128;

/// Status in the metrics for a client that left before there was one.
const CLIENT_LEFT: u16 = 499;

/// The id of a request; every request has one among its extensions.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

impl RequestId {
    /// The client's own, or else a random one.
    fn of(headers: &HeaderMap) -> RequestId {
        let sane = |id: &&str| {
            let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
            (1..=ID_LENGTH).contains(&id.len()) && id.bytes().all(known)
        };
        match headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(sane) {
            Some(id) => RequestId(id.into()),
            None => {
                let random = std::iter::repeat_with(fastrand::alphanumeric).take(24);
                RequestId("req_".chars().chain(random).collect::<String>().into())
            }
        }
    }
}

/// Logs method, path, status and time, and of an answer its tokens and why it
/// ended; gives the answer the request's id and what protects browsers.
pub(crate) async fn each_request(
    State(front): State<Front>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = RequestId::of(request.headers());
    // Whatever is logged on behalf of the request bears its id.
    let span = tracing::error_span!("http", id = &*id.0);
    let mut line = Line {
        start: Instant::now(),
        span: span.clone(),
        metrics: front.metrics,
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        route: request.extensions().get::<MatchedPath>().cloned(),
        status: None,
        outcome: None,
        error: None,
    };
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).instrument(span).await;
    line.status = Some(response.status());
    line.outcome = response.extensions().get::<LastOutcome>().cloned();
    line.error = response.extensions().get::<ErrorCode>().copied();
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(HeaderName::from_static(REQUEST_ID), value);
    }
    headers::secure(response.headers_mut());
    // The body of a stream is still to be made: the line goes where the body goes, and is written
    // when that is dropped.
    response.map(|body| Body::new(Logged { body, line }))
}

/// The body of an answer, with the line that its end writes.
struct Logged {
    // First, so that what its end changes is known when the line is written.
    body: Body,
    line: Line,
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let _inside = this.line.span.enter();
        Pin::new(&mut this.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Writes itself at its end, however that comes about.
struct Line {
    start: Instant,
    span: Span,
    metrics: Arc<Metrics>,
    method: Method,
    path: String,
    /// `None` where there is no such route.
    route: Option<MatchedPath>,
    /// `None` when the client left before there was one.
    status: Option<StatusCode>,
    /// `None` where there is no answer of the model.
    outcome: Option<LastOutcome>,
    /// Of an answer that is an error.
    error: Option<ErrorCode>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let took = self.start.elapsed();
        let route = self.route.as_ref().map_or("unmatched", MatchedPath::as_str);
        let status = self.status.map(|status| status.as_u16());
        self.metrics.answered(route, status.unwrap_or(CLIENT_LEFT), took);
        let failed = self.outcome.as_ref().and_then(LastOutcome::error);
        let error = self.error.map(|ErrorCode(code)| code).or(failed);
        if let Some(code) = error {
            self.metrics.error(code);
        }
        let _inside = self.span.enter();
        let Line { method, path, .. } = &*self;
        let ms = millis(took);
        let Some(outcome) = &self.outcome else {
            match status {
                Some(status) => tracing::info!(%method, path, status, ms, error, "request"),
                None => tracing::info!(%method, path, ms, status = "client left", "request"),
            }
            return;
        };
        let (queue_ms, ttft_ms) = (outcome.waited().map(millis), outcome.first_token().map(millis));
        match outcome.get() {
            Some(done) => tracing::info!(
                %method,
                path,
                status,
                ms,
                queue_ms,
                ttft_ms,
                prompt_tokens = done.prompt_tokens,
                tokens = done.completion_tokens,
                finish = done.finish.name(),
                "request"
            ),
            // The stream broke off, or whoever asked went away.
            None => tracing::info!(
                %method,
                path,
                status,
                ms,
                queue_ms,
                ttft_ms,
                tokens = outcome.tokens(),
                finish = "none",
                cause = outcome.broken_by(),
                "request"
            ),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_id_of_the_client_is_kept_and_another_replaced() {
        let id = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(text.as_bytes()).unwrap());
            RequestId::of(&headers).0
        };
        assert_eq!(&*id("trace-1.a:B_2"), "trace-1.a:B_2");
        for odd in ["", "two words", "a\tb", "<b>", "ümlaut", &"x".repeat(129)] {
            assert!(id(odd).starts_with("req_"), "{odd:?}");
        }
        assert_ne!(RequestId::of(&HeaderMap::new()).0, RequestId::of(&HeaderMap::new()).0);
    }
}
