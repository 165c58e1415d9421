//! `POST /v1/chat/completions`.

mod convert;
mod types;
mod validate;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::Response;

use crate::error::ApiError;
use crate::middleware::body::JsonBody;
use crate::request;
use crate::routes::AppState;
use crate::routes::openai::Envelope;
use crate::sse;

/// What the form of the response depends on.
struct Form {
    stream: bool,
    choices: usize,
    include_usage: bool,
    with_logprobs: bool,
}

pub(crate) async fn create(
    State(state): State<AppState>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let model = state.model().clone();
    // Validating copies messages and rendering tokenises them: up to a second
    // for a full context.
    let prepared = tokio::task::spawn_blocking(move || {
        let asked = validate::validate(body, model.tokenizer.len())?;
        let form = Form {
            stream: asked.stream,
            choices: asked.n.unwrap_or(1),
            include_usage: asked.include_usage,
            with_logprobs: asked.logprobs.is_some(),
        };
        request::turn(asked, &model).map(|turn| (turn, form))
    });
    let (turn, form) = prepared.await.map_err(|error| ApiError::Internal(error.to_string()))??;
    let events = state.worker().submit(turn)?;
    let outcome = events.outcome();
    let envelope = Envelope::new("chatcmpl-", &state.options().model_name);
    let mut response = if form.stream {
        let encoder = convert::ChunkEncoder::new(envelope, &form);
        sse::response(events, encoder, state.options().keep_alive)
    } else {
        Json(convert::collect(events, envelope, form.with_logprobs).await?).into_response()
    };
    // For the line of the log, which is written when the last byte has left.
    response.extensions_mut().insert(outcome);
    Ok(response)
}
