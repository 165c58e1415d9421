//! Errors, and the only place where they become HTTP.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use lily_engine::EngineError;
use lily_engine::SamplingError;
use lily_text::TextError;
use serde::Serialize;

use crate::generator::GenerateError;

/// Why the server itself could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address could not be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// Host and port as asked for.
        address: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The async runtime, the worker thread or the accept loop failed.
    #[error("cannot {action}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// There is nothing to generate with, as where memory for a session cannot be had.
    #[error("cannot begin to generate")]
    Generator(#[source] GenerateError),
    /// An API key holds characters that no HTTP header can carry.
    #[error("an API key must be visible ASCII without spaces")]
    InvalidApiKey,
    /// A file of API keys without any.
    #[error("there is no API key in it")]
    NoApiKeys,
    /// Other machines could use the server, and no key is asked for.
    #[error("other machines could use the server on {host} without an API key")]
    Unprotected {
        /// The address to listen on.
        host: IpAddr,
    },
    /// What should be an origin is none.
    #[error("{origin:?} is no origin, such as https://chat.example.org, and not *")]
    InvalidOrigin {
        /// The text.
        origin: String,
    },
    /// What should be a name of a host is none.
    #[error("{host:?} is no host name, such as mac.local: no port, no spaces, ASCII only")]
    InvalidHost {
        /// The text.
        host: String,
    },
    /// This processor lacks instructions that the cryptography is written in.
    #[error("TLS needs a processor with AES, and AVX2, BMI2 and ADX or NEON")]
    TlsProcessor,
    /// A certificate or key file cannot be read.
    #[error("cannot read {}", path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A certificate or key file holds none.
    #[error("{} does not hold {expected} in PEM form: {reason}", path.display())]
    TlsPem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificate and key are unusable, or do not belong together.
    #[error("cannot use certificate {} with key {}", certificate.display(), key.display())]
    Tls {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
        /// What is wrong with them.
        #[source]
        source: rustls::Error,
    },
}

/// Everything a request can be answered with instead of what it asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    Json(serde_json::Error),
    /// The body is nested too deeply.
    #[error("the body is nested deeper than 127 levels")]
    JsonDepth,
    /// A field is missing, unknown, unsupported, of the wrong type or out of range.
    #[error("{message}")]
    Field {
        /// Path of the field, such as `messages[1].content`.
        param: String,
        /// Full sentence that names the field.
        message: String,
        /// OpenAI error code.
        code: &'static str,
    },
    /// The model's template refuses the messages.
    #[error("{0}")]
    Messages(TextError),
    /// The messages render to nothing.
    #[error("the prompt is empty")]
    PromptEmpty,
    /// The prompt does not fit.
    #[error("{}", EngineError::PromptTooLong { tokens: *tokens, context: *context })]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The engine refuses the sampling parameters.
    #[error(transparent)]
    Sampling(SamplingError),
    /// The body is not declared as JSON.
    #[error("the request must have content-type application/json")]
    ContentType,
    /// The body is too large.
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The body could not be read to its end.
    #[error("the body could not be read")]
    BodyUnreadable,
    /// The client stopped sending.
    #[error("no part of the body came for {}", counted(*seconds, "second"))]
    BodyPause {
        /// How long was waited.
        seconds: u64,
    },
    /// The client sent too slowly.
    #[error("the body did not come within {}", counted(*seconds, "second"))]
    BodyTimeout {
        /// How long was waited.
        seconds: u64,
    },
    /// No key, or another one.
    #[error("a valid API key is required: Authorization: Bearer KEY, or x-api-key: KEY")]
    Unauthorized,
    /// The request calls the server by a name that may not be its own.
    #[error(
        "the host {host:?} is not known; `lily serve --allow-host NAME` or an API key lets it in"
    )]
    Host {
        /// The name.
        host: String,
    },
    /// A web page of another origin sent the request.
    #[error("pages of {origin:?} may not use this server; `lily serve --cors-origin` lets them")]
    Origin {
        /// The origin.
        origin: String,
    },
    /// No such route.
    #[error("there is no {method} {path}{}", instead_of(path))]
    UnknownRoute {
        /// Method of the request.
        method: String,
        /// Path of the request.
        path: String,
    },
    /// A route of OpenAI's API that a text model has nothing for.
    #[error("{endpoint} is not supported: this server answers with text only")]
    UnsupportedRoute {
        /// Path of the endpoint.
        endpoint: &'static str,
    },
    /// The route exists, the method does not.
    #[error("{path} does not take {method}")]
    Method {
        /// Method of the request.
        method: String,
        /// Path of the request.
        path: String,
    },
    /// `/v1/models/{id}` with another name.
    #[error("there is no model {name:?}")]
    UnknownModel {
        /// The name asked for.
        name: String,
    },
    /// `/v1/responses/{id}`: nothing is kept.
    #[error("there is no response {id:?}: this server stores none")]
    UnknownResponse {
        /// The id asked for.
        id: String,
    },
    /// The queue is full.
    #[error(
        "{} {} waiting already; try again later",
        counted(*waiting as u64, "request"),
        if *waiting == 1 { "is" } else { "are" }
    )]
    QueueFull {
        /// Requests in the queue.
        waiting: usize,
        /// In how many seconds there may be a place.
        retry_seconds: u64,
    },
    /// The request waited too long for its turn.
    #[error("the request waited {} for its turn; try again later", counted(*seconds, "second"))]
    QueueTimeout {
        /// How long it waited.
        seconds: u64,
        /// In how many seconds there may be a place.
        retry_seconds: u64,
    },
    /// The request took too long.
    #[error("the request took longer than this server allows, {}", counted(*seconds, "second"))]
    Deadline {
        /// How long it might take.
        seconds: u64,
    },
    /// The client reads too slowly.
    #[error("the answer was not read as fast as it was written")]
    SlowClient,
    /// The worker is not there yet.
    #[error("the model is loading")]
    Loading,
    /// The worker is gone.
    #[error("the generation worker has died; restart the server")]
    WorkerDead,
    /// The server is going down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// What the request holds its answer to cannot be followed to the end.
    #[error("the answer cannot be held to what the request asks for: {0}")]
    Constraint(EngineError),
    /// Generation failed.
    #[error("generation failed: {0}")]
    Generate(GenerateError),
    /// The text side of the model failed.
    #[error("the model's tokenizer or template failed: {0}")]
    Text(TextError),
    /// A fault of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

/// A number of things, with their name in singular or plural.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// What may have been meant by a path that no route has.
fn instead_of(path: &str) -> &'static str {
    match path {
        "/v1" | "/v1/" => "; what is below it is described at /openapi.json",
        _ if path.len() > 1 && path.ends_with('/') => "; paths end without a slash",
        _ => "",
    }
}

/// `Retry-After` of a server whose model is loading.
pub(crate) const LOADING_RETRY_SECONDS: u64 = 5;

/// [`ApiError::label`] of a response that is an error, among its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorCode(pub(crate) &'static str);

/// The error object of OpenAI's API.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody {
    error: ErrorObject,
}

#[derive(Debug, Serialize)]
struct ErrorObject {
    message: String,
    r#type: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

/// The error object of Anthropic's API.
#[derive(Debug, Serialize)]
pub(crate) struct AnthropicErrorBody {
    r#type: &'static str,
    error: AnthropicErrorObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

#[derive(Debug, Serialize)]
struct AnthropicErrorObject {
    r#type: &'static str,
    message: String,
}

impl ApiError {
    /// A field that is there but wrong: `'{param}' {complaint}`.
    pub(crate) fn field(param: impl Into<String>, complaint: impl std::fmt::Display) -> ApiError {
        let param = param.into();
        ApiError::Field { message: format!("'{param}' {complaint}"), param, code: "invalid_value" }
    }

    /// A field, or a value of it, that this server cannot honour.
    pub(crate) fn unsupported(
        param: impl Into<String>,
        complaint: impl std::fmt::Display,
    ) -> ApiError {
        let param = param.into();
        ApiError::Field {
            message: format!("'{param}' {complaint}"),
            param,
            code: "unsupported_value",
        }
    }

    /// Status, OpenAI error type and code of each error.
    fn class(&self) -> (StatusCode, &'static str, Option<&'static str>) {
        const REQUEST: &str = "invalid_request_error";
        match self {
            ApiError::Json(_) => (StatusCode::BAD_REQUEST, REQUEST, Some("invalid_json")),
            ApiError::JsonDepth => (StatusCode::BAD_REQUEST, REQUEST, Some("json_too_deep")),
            ApiError::Field { code, .. } => (StatusCode::BAD_REQUEST, REQUEST, Some(code)),
            ApiError::Messages(_) | ApiError::PromptEmpty => {
                (StatusCode::BAD_REQUEST, REQUEST, Some("invalid_messages"))
            }
            ApiError::PromptTooLong { .. } => {
                (StatusCode::BAD_REQUEST, REQUEST, Some("context_length_exceeded"))
            }
            ApiError::Sampling(_) => (StatusCode::BAD_REQUEST, REQUEST, Some("invalid_value")),
            ApiError::Constraint(_) => {
                (StatusCode::BAD_REQUEST, REQUEST, Some("constraint_too_complex"))
            }
            ApiError::BodyUnreadable => (StatusCode::BAD_REQUEST, REQUEST, None),
            ApiError::BodyPause { .. } | ApiError::BodyTimeout { .. } => {
                (StatusCode::REQUEST_TIMEOUT, REQUEST, Some("body_timeout"))
            }
            ApiError::SlowClient => (StatusCode::REQUEST_TIMEOUT, REQUEST, Some("slow_client")),
            ApiError::Host { .. } => (StatusCode::FORBIDDEN, REQUEST, Some("host_not_allowed")),
            ApiError::Origin { .. } => (StatusCode::FORBIDDEN, REQUEST, Some("origin_not_allowed")),
            ApiError::ContentType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, REQUEST, Some("unsupported_media_type"))
            }
            ApiError::BodyTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, REQUEST, Some("body_too_large"))
            }
            ApiError::Unauthorized => {
                (StatusCode::UNAUTHORIZED, "authentication_error", Some("invalid_api_key"))
            }
            ApiError::UnknownRoute { .. } => (StatusCode::NOT_FOUND, REQUEST, Some("unknown_url")),
            ApiError::UnsupportedRoute { .. } => {
                (StatusCode::NOT_FOUND, REQUEST, Some("unsupported_endpoint"))
            }
            ApiError::UnknownModel { .. } => {
                (StatusCode::NOT_FOUND, REQUEST, Some("model_not_found"))
            }
            ApiError::UnknownResponse { .. } => {
                (StatusCode::NOT_FOUND, REQUEST, Some("response_not_found"))
            }
            ApiError::Method { .. } => {
                (StatusCode::METHOD_NOT_ALLOWED, REQUEST, Some("method_not_supported"))
            }
            ApiError::QueueFull { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("queue_full"))
            }
            ApiError::QueueTimeout { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("queue_timeout"))
            }
            ApiError::Deadline { .. } => {
                (StatusCode::GATEWAY_TIMEOUT, "server_error", Some("request_timeout"))
            }
            ApiError::Loading => (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("loading")),
            ApiError::WorkerDead => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("worker_dead"))
            }
            ApiError::ShuttingDown => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("shutting_down"))
            }
            ApiError::Generate(_) | ApiError::Text(_) | ApiError::Internal(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None)
            }
        }
    }

    /// What logs and metrics call the error: its code, or else its type.
    pub(crate) fn label(&self) -> &'static str {
        let (_, kind, code) = self.class();
        code.unwrap_or(kind)
    }

    /// In how many seconds it makes sense to ask again.
    fn retry_seconds(&self) -> Option<u64> {
        match self {
            ApiError::QueueFull { retry_seconds, .. }
            | ApiError::QueueTimeout { retry_seconds, .. } => Some(*retry_seconds),
            ApiError::Loading => Some(LOADING_RETRY_SECONDS),
            _ => None,
        }
    }

    /// The body of the error, for a response or for an event of a stream.
    pub(crate) fn body(&self) -> ErrorBody {
        let (_, kind, code) = self.class();
        let param = match self {
            // The body as a whole has no name.
            ApiError::Field { param, .. } => Some(param.clone()).filter(|param| !param.is_empty()),
            ApiError::Messages(_) | ApiError::PromptEmpty | ApiError::PromptTooLong { .. } => {
                Some("messages".to_owned())
            }
            _ => None,
        };
        ErrorBody { error: ErrorObject { message: self.to_string(), r#type: kind, param, code } }
    }

    /// [`ApiError::body`] for a client of Anthropic's API.
    pub(crate) fn anthropic_body(&self, request_id: Option<String>) -> AnthropicErrorBody {
        let kind = match self.class().0 {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let message = match self {
            // Clients look for these words to shorten the conversation.
            ApiError::PromptTooLong { tokens, context } => {
                format!("prompt is too long: {tokens} tokens > {context} maximum")
            }
            error => error.to_string(),
        };
        let error = AnthropicErrorObject { r#type: kind, message };
        AnthropicErrorBody { r#type: "error", error, request_id }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> ApiError {
        if error.is_client_fault() { ApiError::Messages(error) } else { ApiError::Text(error) }
    }
}

impl From<GenerateError> for ApiError {
    fn from(error: GenerateError) -> ApiError {
        match error {
            GenerateError::Engine(EngineError::PromptTooLong { tokens, context }) => {
                ApiError::PromptTooLong { tokens, context }
            }
            GenerateError::Engine(EngineError::EmptyPrompt) => ApiError::PromptEmpty,
            GenerateError::Engine(EngineError::Sampling(error)) => ApiError::Sampling(error),
            GenerateError::Engine(
                error @ (EngineError::Guide { .. } | EngineError::NothingAllowed { .. }),
            ) => ApiError::Constraint(error),
            error => ApiError::Generate(error),
        }
    }
}

/// The shape is that of OpenAI's API. The error goes along with the response, for
/// [`shape_for_anthropic`].
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, ..) = self.class();
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(%status, error = %self, "request failed");
        }
        let mut response = (status, Json(self.body())).into_response();
        response.extensions_mut().insert(ErrorCode(self.label()));
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_seconds() {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if matches!(self, ApiError::Unauthorized) {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// Gives a response that is an error the body that Anthropic's clients read.
pub(crate) fn shape_for_anthropic(response: &mut Response, request_id: &str) {
    if let Some(error) = response.extensions_mut().remove::<Arc<ApiError>>() {
        let body = error.anthropic_body(Some(request_id.to_owned()));
        *response.body_mut() = Json(body).into_response().into_body();
    }
}
