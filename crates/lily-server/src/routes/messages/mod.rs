//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API.

mod blocks;
mod convert;
mod tools;
mod types;
mod validate;

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use crate::error::ApiError;
use crate::middleware::body::JsonBody;
use crate::model::Model;
use crate::request;
use crate::routes::AppState;
use crate::routes::Prepared;
use types::TokenCount;
use validate::Purpose;

pub(crate) async fn create(
    State(state): State<AppState>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let name = state.options().model_name.clone();
    let prepare = move |model: &Model| {
        let asked = validate::validate(body, Purpose::Answer)?;
        let (stream, omit_thinking) = (asked.chat.stream, asked.omit_thinking);
        let turn = request::turn(asked.chat, model)?;
        let form = convert::Form {
            model: name,
            prompt_tokens: turn.prompts.iter().map(Vec::len).sum(),
            max_tokens: turn.options.max_tokens,
            stop: turn.stop.clone(),
            omit_thinking,
        };
        Ok::<_, ApiError>((turn, form, stream))
    };
    let Prepared { arrival, value: (turn, form, stream) } = state.prepare(prepare).await?;
    state.answer(turn, arrival, form, stream, convert::Answer::new, convert::collect).await
}

pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    JsonBody(body): JsonBody,
) -> Result<Json<TokenCount>, ApiError> {
    let count = move |model: &Model| {
        let asked = validate::validate(body, Purpose::Count)?;
        request::count(asked.chat, model)
    };
    let input_tokens = state.prepare(count).await?.value;
    Ok(Json(TokenCount { input_tokens }))
}
