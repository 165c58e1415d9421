//! `POST /v1/chat/completions`.

mod convert;
mod types;
mod validate;

use axum::extract::State;
use axum::response::Response;

use crate::error::ApiError;
use crate::middleware::body::JsonBody;
use crate::model::Model;
use crate::request;
use crate::routes::AppState;
use crate::routes::Prepared;
use crate::routes::openai::Envelope;

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
    let stream = form.stream;
    let form = (Envelope::new("chatcmpl-", &state.options().model_name), form);
    let encode = |(envelope, form): (_, Form)| convert::ChunkEncoder::new(envelope, &form);
    let collect = |events, (envelope, form): (_, Form)| {
        convert::collect(events, envelope, form.with_logprobs)
    };
    state.answer(turn, arrival, form, stream, encode, collect).await
}
