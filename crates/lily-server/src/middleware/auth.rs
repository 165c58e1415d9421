//! The API key.

use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;

use crate::error::ApiError;
use crate::site::Front;

/// Lets a request through if no key is set or it carries one of them, as
/// `Authorization: Bearer KEY` or, as Anthropic's clients do, `x-api-key: KEY`.
pub(crate) async fn require_key(
    State(front): State<Front>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &front.options.api_keys;
    if keys.is_empty() || given(request.headers()).any(|key| keys.admit(key)) {
        Ok(next.run(request).await)
    } else {
        Err(ApiError::Unauthorized)
    }
}

fn given(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let authorization = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    let api_key = headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii());
    authorization.into_iter().chain(api_key)
}

/// The key of an `Authorization: Bearer KEY` header; the scheme has no case.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = header.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}
