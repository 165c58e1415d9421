//! The routes, one folder each, and what they share.

mod chat_completions;
mod completions;
mod describe;
pub(crate) mod health;
mod messages;
pub(crate) mod metrics;
mod models;
mod openai;
pub(crate) mod page;
mod responses;
mod tokenize;

use std::sync::Arc;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::Router;
use axum::http::HeaderMap;
use axum::http::Method;
use axum::http::Uri;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::get;
use axum::routing::post;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::error::ServerError;
use crate::generator::GenerateError;
use crate::generator::Generator;
use crate::model::Model;
use crate::options::ServerOptions;
use crate::site::Front;
use crate::sse;
use crate::sse::Encode;
use crate::turn::Turn;
use crate::worker::Events;
use crate::worker::Worker;

/// Constraints that are compiled at once: most take milliseconds, hostile ones up to a second of a
/// processor and tens of megabytes. Requests without any do not wait for them.
const COMPILED_AT_ONCE: usize = 2;

/// What every request handler sees; cheap to clone.
#[derive(Clone)]
pub struct AppState {
    shared: Arc<Shared>,
    worker: Worker,
}

struct Shared {
    front: Front,
    model: Model,
    started: u64,
    /// Who may compile constraints now.
    compiling: Arc<Semaphore>,
}

impl AppState {
    /// Starts the worker thread, on which `start` makes the generator.
    ///
    /// # Errors
    /// [`ServerError::Unprotected`] or [`ServerError::InvalidHost`], or [`ServerError::Io`] if no
    /// thread could be started.
    pub fn new<G, F>(
        options: ServerOptions,
        model: Model,
        start: F,
    ) -> Result<AppState, ServerError>
    where
        G: Generator,
        F: FnOnce() -> Result<G, GenerateError> + Send + 'static,
    {
        options.check()?;
        AppState::behind(Front::new(options), model, start)
    }

    /// [`AppState::new`] with what has stood in front while the model was loaded.
    pub(crate) fn behind<G, F>(
        front: Front,
        model: Model,
        start: F,
    ) -> Result<AppState, ServerError>
    where
        G: Generator,
        F: FnOnce() -> Result<G, GenerateError> + Send + 'static,
    {
        let worker = Worker::spawn(start, &front.options, Arc::clone(&front.metrics))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let compiling = Arc::new(Semaphore::new(COMPILED_AT_ONCE));
        let shared = Shared { front, model, started: now.as_secs(), compiling };
        Ok(AppState { shared: Arc::new(shared), worker })
    }

    pub(crate) fn options(&self) -> &ServerOptions {
        &self.shared.front.options
    }

    pub(crate) fn front(&self) -> &Front {
        &self.shared.front
    }

    pub(crate) fn model(&self) -> &Model {
        &self.shared.model
    }

    /// When the server started, in seconds since 1970.
    pub(crate) fn started(&self) -> u64 {
        self.shared.started
    }

    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Runs what is done for a request before it enters the queue, away from the threads that answer
    /// others: validating copies messages and rendering tokenises them, which takes up to a second
    /// for a full context. The time counts towards that of the request.
    ///
    /// # Errors
    /// Those of `work`, or [`ApiError::Deadline`].
    pub(crate) async fn prepare<T, F>(&self, work: F) -> Result<Prepared<T>, ApiError>
    where
        T: Send + 'static,
        F: FnOnce(&Model) -> Result<T, ApiError> + Send + 'static,
    {
        let arrival = Instant::now();
        let state = self.clone();
        let value = self.in_time(arrival, blocking(move || work(state.model()))).await?;
        Ok(Prepared { arrival, value })
    }

    /// Compiles what the answer is held to, and puts the turn into the queue.
    ///
    /// # Errors
    /// The constraints cannot be kept, the time of the request is over, or there is no place.
    pub(crate) async fn submit(&self, turn: Turn, arrival: Instant) -> Result<Events, ApiError> {
        if turn.constraints.are_empty(turn.tools.as_deref()) {
            return self.worker.submit(turn, arrival);
        }
        let compiling = Arc::clone(&self.shared.compiling);
        let compiled = async move {
            let permit = compiling.acquire_owned().await;
            blocking(move || {
                // Until the work is done, even if nobody waits for it any more.
                let _permit = permit;
                turn.compile()
            })
            .await
        };
        let turn = self.in_time(arrival, compiled).await?;
        self.worker.submit(turn, arrival)
    }

    /// Submits the turn and answers with what comes of it: event by event, or whole. `form` is what
    /// the response depends on besides.
    ///
    /// # Errors
    /// Those of [`AppState::submit`], and of the turn where it is answered whole.
    pub(crate) async fn answer<F, E, B, W>(
        &self,
        turn: Turn,
        arrival: Instant,
        form: F,
        stream: bool,
        encode: impl FnOnce(F) -> E,
        collect: impl FnOnce(Events, F) -> W,
    ) -> Result<Response, ApiError>
    where
        E: Encode,
        B: Serialize,
        W: Future<Output = Result<B, ApiError>>,
    {
        let events = self.submit(turn, arrival).await?;
        let outcome = events.outcome();
        let mut response = match stream {
            true => sse::response(events, encode(form), self.options().keep_alive),
            false => Json(collect(events, form).await?).into_response(),
        };
        // For the line of the log, which is written when the last byte has left.
        response.extensions_mut().insert(outcome);
        Ok(response)
    }

    async fn in_time<T>(
        &self,
        arrival: Instant,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let Some(limit) = self.options().request_timeout else { return work.await };
        let left = limit.saturating_sub(arrival.elapsed());
        let late = |_| ApiError::Deadline { seconds: limit.as_secs_f64().ceil() as u64 };
        timeout(left, work).await.map_err(late)?
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::Internal(error.to_string()))?
}

/// What has been made of a request, and when the server began with it.
pub(crate) struct Prepared<T> {
    pub(crate) arrival: Instant,
    pub(crate) value: T,
}

/// All routes of the server.
pub fn router(state: AppState) -> Router {
    // A key protects what uses the model or tells of its use; supervisors ask for
    // the health without one.
    let front = state.front().clone();
    let api = Router::new()
        .route("/v1/chat/completions", post(chat_completions::create))
        .route("/v1/completions", post(completions::create))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::count_tokens))
        .route("/v1/responses/{id}", get(responses::unknown).delete(responses::unknown))
        .route("/v1/responses/{id}/cancel", post(responses::unknown))
        .route("/v1/responses/{id}/input_items", get(responses::unknown))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::retrieve))
        .route("/metrics", get(metrics::metrics));
    let routes = Router::new()
        .route("/health", get(health::health))
        .route("/openapi.json", get(describe::describe))
        .merge(front.protect(api))
        .merge(page::routes())
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(state);
    front.guard(routes)
}

/// What OpenAI's API has and this server has not.
const UNSUPPORTED: [&str; 17] = [
    "/v1/assistants",
    "/v1/audio",
    "/v1/batches",
    "/v1/containers",
    "/v1/conversations",
    "/v1/embeddings",
    "/v1/evals",
    "/v1/files",
    "/v1/fine_tuning",
    "/v1/images",
    "/v1/moderations",
    "/v1/realtime",
    "/v1/rerank",
    "/v1/threads",
    "/v1/uploads",
    "/v1/vector_stores",
    "/v1/videos",
];

async fn unknown_route(method: Method, uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    if let Some(response) = page::instead_of_api(&method, &uri, &headers) {
        return Ok(response);
    }
    let path = uri.path();
    let below = |prefix: &&str| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if let Some(endpoint) = UNSUPPORTED.into_iter().find(below) {
        return Err(ApiError::UnsupportedRoute { endpoint });
    }
    Err(ApiError::UnknownRoute { method: method.to_string(), path: path.to_owned() })
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::Method { method: method.to_string(), path: uri.path().to_owned() }
}
