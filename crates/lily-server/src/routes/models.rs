//! `GET /v1/models` and `GET /v1/models/{name}`, in OpenAI's shape or in Anthropic's.

use axum::Json;
use axum::extract::Path;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use serde::Serialize;

use crate::error::ApiError;
use crate::middleware::protocol::speaks_anthropic;
use crate::routes::AppState;

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum ModelList {
    OpenAi { object: &'static str, data: [ModelObject; 1] },
    Anthropic { data: [ModelObject; 1], has_more: bool, first_id: String, last_id: String },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum ModelObject {
    OpenAi(OpenAiModel),
    Anthropic(AnthropicModel),
}

#[derive(Debug, Serialize)]
pub(crate) struct OpenAiModel {
    id: String,
    object: &'static str,
    /// When the server started, in seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// Tokens that prompt and answer may have together.
    context_length: usize,
    /// The same under the name that clients of vLLM read.
    max_model_len: usize,
    /// Tokens of the longest context that the model could be served with.
    max_context_length: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct AnthropicModel {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    display_name: String,
    /// When the model was released.
    created_at: &'static str,
    lifecycle: &'static str,
    /// Tokens that prompt and answer may have together.
    max_input_tokens: usize,
    /// The same: an answer may fill what the prompt leaves.
    max_tokens: usize,
}

/// What stands for a date of release that nobody knows: a checkpoint does not tell its own.
const UNKNOWN_DATE: &str = "1970-01-01T00:00:00Z";

fn served(state: &AppState, headers: &HeaderMap) -> ModelObject {
    let id = state.options().model_name.clone();
    let context = state.model().context;
    if speaks_anthropic(headers) {
        return ModelObject::Anthropic(AnthropicModel {
            kind: "model",
            display_name: id.clone(),
            id,
            created_at: UNKNOWN_DATE,
            lifecycle: "active",
            max_input_tokens: context,
            max_tokens: context,
        });
    }
    ModelObject::OpenAi(OpenAiModel {
        id,
        object: "model",
        created: state.started(),
        owned_by: "lily",
        context_length: context,
        max_model_len: context,
        max_context_length: state.model().max_context,
    })
}

pub(crate) async fn list(State(state): State<AppState>, headers: HeaderMap) -> Json<ModelList> {
    let data = [served(&state, &headers)];
    Json(if speaks_anthropic(&headers) {
        let id = &state.options().model_name;
        let (first_id, last_id) = (id.clone(), id.clone());
        ModelList::Anthropic { data, has_more: false, first_id, last_id }
    } else {
        ModelList::OpenAi { object: "list", data }
    })
}

pub(crate) async fn retrieve(
    State(state): State<AppState>,
    headers: HeaderMap,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelObject>, ApiError> {
    let Path(name) = name.map_err(|_| ApiError::field("name", "is not valid UTF-8"))?;
    if name == state.options().model_name {
        Ok(Json(served(&state, &headers)))
    } else {
        Err(ApiError::UnknownModel { name })
    }
}
