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
use crate::model::Model;
use crate::request;
use crate::routes::AppState;
use crate::routes::Prepared;
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
    let prepare = move |model: &Model| {
        let asked = validate::validate(body, model.tokenizer.len())?;
        let form = Form {
            stream: asked.stream,
            choices: asked.n.unwrap_or(1),
            include_usage: asked.include_usage,
            with_logprobs: asked.logprobs.is_some(),
        };
        request::turn(asked, model).map(|turn| (turn, form))
    };
    let Prepared { arrival, value: (turn, form) } = state.prepare(prepare).await?;
    let events = state.submit(turn, arrival).await?;
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
