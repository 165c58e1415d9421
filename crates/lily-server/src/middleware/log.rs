//! One line for each request, once it has been answered.

use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;

use crate::worker::LastOutcome;

/// Logs method, path, status and time, and of an answer its tokens and why it ended.
pub(crate) async fn each_request(request: Request, next: Next) -> Response {
    let mut line = Line {
        start: Instant::now(),
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        status: None,
        outcome: None,
    };
    let response = next.run(request).await;
    line.status = Some(response.status());
    line.outcome = response.extensions().get::<LastOutcome>().cloned();
    // The body of a stream is still to be made: the line goes where the body goes, and is written
    // when that is dropped. Unlike other combinators this one keeps the body's length.
    response.map(|body| {
        Body::new(body.map_err(move |error| {
            let _ = &line;
            error
        }))
    })
}

/// Writes itself at its end, however that comes about.
struct Line {
    start: Instant,
    method: Method,
    path: String,
    /// `None` when the client left before there was one.
    status: Option<StatusCode>,
    /// `None` where there is no answer of the model.
    outcome: Option<LastOutcome>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let Line { method, path, .. } = &*self;
        let ms = self.start.elapsed().as_millis();
        let status = self.status.map(|status| status.as_u16());
        match self.outcome.as_ref().map(LastOutcome::get) {
            Some(Some(outcome)) => tracing::info!(
                %method,
                path,
                status,
                ms,
                prompt_tokens = outcome.prompt_tokens,
                tokens = outcome.completion_tokens,
                finish = outcome.finish.name(),
                "request"
            ),
            // The stream broke off, or whoever asked went away.
            Some(None) => tracing::info!(%method, path, status, ms, finish = "none", "request"),
            None if status.is_none() => {
                tracing::info!(%method, path, ms, status = "client left", "request");
            }
            None => tracing::info!(%method, path, status, ms, "request"),
        }
    }
}
