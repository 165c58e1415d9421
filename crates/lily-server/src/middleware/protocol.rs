//! Errors in the shape that the client's protocol has.

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;

use crate::error;
use crate::middleware::log::RequestId;

/// Under which Anthropic's clients look for the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Whether the client is one of Anthropic's: all of them send this header.
pub(crate) fn speaks_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// Gives errors Anthropic's shape where its API is spoken: below `/v1/messages`,
/// and to its clients.
pub(crate) async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
    let anthropic = messages || speaks_anthropic(request.headers());
    let id = request.extensions().get::<RequestId>().cloned();
    let mut response = next.run(request).await;
    if let Some(RequestId(id)) = id.filter(|_| anthropic) {
        error::shape_for_anthropic(&mut response, &id);
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
    }
    response
}
