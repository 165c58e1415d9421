//! Errors in the shape that the client's protocol has.

use axum::extract::Request;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;

use crate::error;
use crate::middleware::log::RequestId;

/// Under which Anthropic's clients look for the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Gives errors Anthropic's shape where its API is spoken: below `/v1/messages`,
/// and to whoever sends the header that all its clients send.
pub(crate) async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
    let anthropic = messages || request.headers().contains_key("anthropic-version");
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
