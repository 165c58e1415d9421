//! JSON bodies: declared as such, within the size limit, syntactically right.

use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequest;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use axum::http::header::CONTENT_TYPE;
use axum::http::header::EXPECT;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::routes::AppState;

/// How many times the limit is read and thrown away before the connection is
/// closed on a client that keeps sending.
const DISCARDED_LIMITS: usize = 8;

/// The body of a request as JSON, not yet checked for its fields.
pub(crate) struct JsonBody(pub(crate) Value);

impl FromRequest<AppState> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<JsonBody, ApiError> {
        let limit = state.options().max_body_bytes;
        let (head, body) = request.into_parts();
        check_head(&head.headers, limit)?;
        let limits = state.options().limits;
        let slow = ApiError::BodyTimeout { seconds: limits.body_time.as_secs() };
        let bytes = timeout(limits.body_time, read(body, limit, limits.body_pause));
        let bytes = bytes.await.map_err(|_| slow)??;
        if state.options().log_prompts {
            tracing::info!(body = %String::from_utf8_lossy(&bytes), "prompt");
        }
        serde_json::from_slice(&bytes).map(JsonBody).map_err(refusal)
    }
}

/// The parser stops at 128 levels, so that no body can make it run out of stack;
/// only its words tell that from other mistakes.
fn refusal(error: serde_json::Error) -> ApiError {
    match error.to_string().starts_with("recursion limit") {
        true => ApiError::JsonDepth,
        false => ApiError::Json(error),
    }
}

/// What the headers tell before the body is read.
fn check_head(headers: &HeaderMap, limit: usize) -> Result<(), ApiError> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let media_type = header(CONTENT_TYPE).and_then(|value| value.split(';').next());
    if !media_type.is_some_and(|value| value.trim().eq_ignore_ascii_case("application/json")) {
        return Err(ApiError::ContentType);
    }
    // Whoever waits for leave to send the body can be told at once, and so can whoever announces
    // more than would ever be read.
    let announced = header(CONTENT_LENGTH).and_then(|value| value.parse().ok());
    let most = if headers.contains_key(EXPECT) { limit } else { limit * DISCARDED_LIMITS };
    if announced.is_some_and(|length: u64| length > most as u64) {
        return Err(ApiError::BodyTooLarge { limit });
    }
    Ok(())
}

/// Reads at most `limit` bytes. What comes beyond is thrown away, for most
/// clients only look for the answer once they have sent everything.
async fn read(mut body: Body, limit: usize, pause: Duration) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut length = 0_usize;
    loop {
        let stalled = |_| ApiError::BodyPause { seconds: pause.as_secs() };
        let Some(frame) = timeout(pause, body.frame()).await.map_err(stalled)? else { break };
        let frame = frame.map_err(|_| ApiError::BodyUnreadable)?;
        let Some(data) = frame.data_ref() else { continue };
        length = length.saturating_add(data.len());
        if length <= limit {
            bytes.extend_from_slice(data);
        } else if length > limit.saturating_mul(DISCARDED_LIMITS) {
            break;
        }
    }
    if length <= limit { Ok(bytes) } else { Err(ApiError::BodyTooLarge { limit }) }
}
