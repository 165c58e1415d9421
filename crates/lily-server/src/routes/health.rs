//! `GET /health`: is there a worker that takes requests?

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use crate::error::ApiError;
use crate::routes::AppState;
use crate::worker::Status;

#[derive(Debug, Serialize)]
pub(crate) struct Health {
    status: &'static str,
}

pub(crate) async fn health(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    match state.worker().status() {
        Status::Ready => Ok(Json(Health { status: "ok" })),
        Status::Loading => Err(ApiError::Loading),
        Status::Closing => Err(ApiError::ShuttingDown),
        Status::Dead => Err(ApiError::WorkerDead),
    }
}
