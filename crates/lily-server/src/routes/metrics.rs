//! `GET /metrics`: counters, gauges and histograms for Prometheus.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::response::Response;

use crate::error::ApiError;
use crate::metrics;
use crate::metrics::Load;
use crate::metrics::Metrics;
use crate::routes::AppState;
use crate::site::Front;
use crate::worker::Status;

pub(crate) async fn metrics(State(state): State<AppState>) -> Result<Response, ApiError> {
    render(&state.front().metrics, state.worker().load())
}

/// Before there is a worker.
pub(crate) async fn loading(State(front): State<Front>) -> Result<Response, ApiError> {
    render(&front.metrics, Load { status: Status::Loading, waiting: 0, running: 0 })
}

fn render(metrics: &Metrics, load: Load) -> Result<Response, ApiError> {
    let text = metrics.render(load).map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}
