//! `GET /health`: is there a worker that takes requests?

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::IntoResponse;
use axum::response::Response;
use serde::Serialize;

use crate::error::LOADING_RETRY_SECONDS;
use crate::routes::AppState;
use crate::site::Front;
use crate::worker::Status;

/// `{"status": "ready"}`, or why the server does not answer chats.
#[derive(Debug, Serialize)]
struct Health {
    /// `loading`, `ready`, `stopping` or `dead`.
    status: &'static str,
    /// The loaded part of the weights, between 0 and 1, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<f64>,
}

pub(crate) async fn health(State(state): State<AppState>) -> Response {
    respond(state.worker().status(), None)
}

/// Before there is a worker.
pub(crate) async fn loading(State(front): State<Front>) -> Response {
    // Three digits say enough.
    let progress = front.loading.fraction().map(|part| (part * 1000.0).floor() / 1000.0);
    respond(Status::Loading, progress)
}

fn respond(status: Status, progress: Option<f64>) -> Response {
    let code = match status {
        Status::Ready => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = Json(Health { status: status.name(), progress });
    let mut response = (code, body).into_response();
    if status == Status::Loading {
        response.headers_mut().insert(RETRY_AFTER, LOADING_RETRY_SECONDS.into());
    }
    response
}
