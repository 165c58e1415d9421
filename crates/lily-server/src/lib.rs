//! The OpenAI-compatible HTTP server of lily.
//!
//! One thread, the worker, owns the model's session and answers one request
//! after another; a bounded queue stands in front of it. Everything else is
//! translation: a route checks a body field by field (`validate`), makes tokens
//! of it (`convert`), and writes what the worker sends back, as one body or as
//! server-sent events. Both forms read the same events, so both hold the same
//! text.
//!
//! What cannot be honoured is refused by name: an unknown field, a value out of
//! range or a feature that is not there is a 4xx that names the field, never
//! something silently ignored. Fields without effect (`user`, `metadata`, …) are
//! listed with the reason where they are read: in the `validate` module of the
//! route, or in `request`, which holds what several routes read alike.
//!
//! Deliberately absent: anything about tensors, loading a model, batching, and
//! any state between requests.
//!
//! # Routes
//! | | |
//! |---|---|
//! | `POST /v1/chat/completions` | streaming or not, tools, thinking, answers in a form, log probabilities, several answers |
//! | `POST /v1/completions` | text that goes on from a prompt |
//! | `POST /tokenize`, `POST /detokenize` | text or a conversation to tokens, and back |
//! | `POST /v1/messages` | Anthropic's API: streaming or not, tools, thinking |
//! | `POST /v1/messages/count_tokens` | the length of a prompt |
//! | `POST /v1/responses` | the same by OpenAI's other API, without stored state |
//! | `POST /v1/responses/input_tokens` | the length of a prompt |
//! | `GET /v1/models`, `GET /v1/models/{name}` | the one served model |
//! | `GET /openapi.json` | all of this for programs: `openapi/` holds a file for each group of routes |
//! | `GET /` | the chat page |
//! | `GET /health` | 200 `ready`, or 503 `loading`, `stopping` or `dead` |
//! | `GET /metrics` | counters and histograms for Prometheus |
//!
//! # Under load
//! Who comes when the queue is full is told when to come back (429). A client
//! that leaves ends its request within one step, whether it waits, is in prefill
//! or reads a stream. The worker never waits for a client: what a slow one leaves
//! unread is bounded in number and in time, and so is every other thing a client
//! may hold on to ([`Limits`]). What a request takes before it enters the queue is
//! done beside the threads that answer, counts towards its time, and what compiles
//! a form or strict tools does so two at a time.

#![forbid(unsafe_code)]

mod connections;
mod error;
mod generator;
mod guide;
mod job;
mod json;
mod keys;
mod metrics;
mod middleware;
mod model;
mod openapi;
mod options;
mod request;
mod routes;
mod sealed;
mod serve;
mod site;
mod sse;
mod turn;
mod watch;
mod worker;

pub use error::ServerError;
pub use generator::GenerateError;
pub use generator::Generator;
pub use generator::Sink;
pub use generator::Step;
pub use guide::engine_guide;
pub use keys::ApiKeys;
pub use model::Model;
pub use options::Cors;
pub use options::Limits;
pub use options::ServerOptions;
pub use options::TlsFiles;
pub use routes::AppState;
pub use routes::router;
pub use serve::Backend;
pub use serve::Bound;
pub use serve::bind;
pub use serve::run;
pub use serve::serve;
pub use serve::serve_state;
pub use site::LoadProgress;
