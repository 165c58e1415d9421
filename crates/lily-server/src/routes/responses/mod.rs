//! `POST /v1/responses`, without any state: nothing is stored.

mod convert;
mod items;
mod open;
mod tools;
mod types;
mod validate;

use axum::Json;
use axum::extract::Path;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::response::Response;

use crate::error::ApiError;
use crate::middleware::body::JsonBody;
use crate::model::Model;
use crate::request;
use crate::routes::AppState;
use crate::routes::Prepared;
use types::TokenCount;

pub(crate) async fn create(
    State(state): State<AppState>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let name = state.options().model_name.clone();
    let prepare = move |model: &Model| {
        let asked = validate::validate(body, model.tokenizer.len())?;
        let validate::Asked { chat, tools, include, mut echo } = asked;
        let stream = chat.stream;
        let turn = request::turn(chat, model)?;
        echo.temperature = turn.options.sampling.temperature;
        echo.top_p = turn.options.sampling.top_p;
        Ok::<_, ApiError>((turn, convert::Form { model: name, echo, tools, include }, stream))
    };
    let Prepared { arrival, value: (turn, form, stream) } = state.prepare(prepare).await?;
    state.answer(turn, arrival, form, stream, convert::Answer::new, convert::collect).await
}

/// `POST /v1/responses/input_tokens`: the length of the prompt.
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    JsonBody(body): JsonBody,
) -> Result<Json<TokenCount>, ApiError> {
    let count = move |model: &Model| {
        let asked = validate::validate(body, model.tokenizer.len())?;
        request::count(asked.chat, model)
    };
    let input_tokens = state.prepare(count).await?.value;
    Ok(Json(TokenCount { object: "response.input_tokens", input_tokens }))
}

/// Whatever is asked of an earlier response: there is none.
pub(crate) async fn unknown(id: Result<Path<String>, PathRejection>) -> ApiError {
    match id {
        Ok(Path(id)) => ApiError::UnknownResponse { id },
        Err(_) => ApiError::field("id", "is not valid UTF-8"),
    }
}
