//! JSON bodies: declared as such, within the size limit, syntactically right.

use axum::body::to_bytes;
use axum::extract::FromRequest;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::error::ApiError;
use crate::routes::AppState;

/// The body of a request as JSON, not yet checked for its fields.
pub(crate) struct JsonBody(pub(crate) Value);

impl FromRequest<AppState> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<JsonBody, ApiError> {
        let limit = state.options().max_body_bytes;
        check_head(&request, limit)?;
        let bytes = match to_bytes(request.into_body(), limit).await {
            Ok(bytes) => bytes,
            Err(error) if exceeds_limit(&error) => return Err(ApiError::BodyTooLarge { limit }),
            Err(_) => return Err(ApiError::BodyUnreadable),
        };
        serde_json::from_slice(&bytes).map(JsonBody).map_err(ApiError::Json)
    }
}

/// What the headers tell before the body is read.
fn check_head(request: &Request, limit: usize) -> Result<(), ApiError> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let media_type = header(CONTENT_TYPE).and_then(|value| value.split(';').next());
    if !media_type.is_some_and(|value| value.trim().eq_ignore_ascii_case("application/json")) {
        return Err(ApiError::ContentType);
    }
    let announced = header(CONTENT_LENGTH).and_then(|value| value.parse().ok());
    if announced.is_some_and(|length: u64| length > limit as u64) {
        return Err(ApiError::BodyTooLarge { limit });
    }
    Ok(())
}

/// A body without a length is only known to be too large once it is.
fn exceeds_limit(error: &axum::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if inner.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = inner.source();
    }
    false
}
