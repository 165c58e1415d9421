//! `GET /openapi.json`: what the server takes and gives.

use axum::Json;
use axum::extract::State;
use serde_json::Value;

use crate::openapi;
use crate::routes::AppState;

pub(crate) async fn describe(State(state): State<AppState>) -> Json<Value> {
    Json(openapi::document(state.model()))
}
