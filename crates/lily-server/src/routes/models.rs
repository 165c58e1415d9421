//! `GET /v1/models` and `GET /v1/models/{name}`.

use axum::Json;
use axum::extract::Path;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use serde::Serialize;

use crate::error::ApiError;
use crate::routes::AppState;

#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: [ModelObject; 1],
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    /// When the server started, in seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// Tokens that prompt and answer may have together.
    context_length: usize,
    /// The same under the name that clients of vLLM read.
    max_model_len: usize,
}

fn served(state: &AppState) -> ModelObject {
    ModelObject {
        id: state.options().model_name.clone(),
        object: "model",
        created: state.started(),
        owned_by: "lily",
        context_length: state.model().context,
        max_model_len: state.model().context,
    }
}

pub(crate) async fn list(State(state): State<AppState>) -> Json<ModelList> {
    Json(ModelList { object: "list", data: [served(&state)] })
}

pub(crate) async fn retrieve(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelObject>, ApiError> {
    let Path(name) = name.map_err(|_| ApiError::field("name", "is not valid UTF-8"))?;
    if name == state.options().model_name {
        Ok(Json(served(&state)))
    } else {
        Err(ApiError::UnknownModel { name })
    }
}
