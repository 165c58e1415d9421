//! The bearer key.

use axum::extract::Request;
use axum::extract::State;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use crate::error::ApiError;
use crate::routes::AppState;

/// Lets a request through if no key is set or it carries the right one.
pub(crate) async fn require_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(key) = &state.options().api_key {
        let given = request.headers().get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let right = given.is_some_and(|given| bool::from(given.ct_eq(key.as_bytes())));
        if !right {
            return Err(ApiError::Unauthorized);
        }
    }
    Ok(next.run(request).await)
}

/// The key of an `Authorization: Bearer KEY` header; the scheme has no case.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = header.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}
