//! What is counted and timed, and how Prometheus reads it.
//!
//! Times of tokens are taken on the worker's thread, where a token appears,
//! not where a client takes it.

use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use prometheus_client::registry::Unit;

use crate::options::ServerOptions;
use crate::worker::Status;

/// `content-type` of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds in seconds, for waits from a demo model's to a long prefill's.
const WAITS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

/// Upper bounds in seconds, for the time between two tokens.
const STEPS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

/// Why a request ended before its answer was complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// The client left.
    Disconnect,
    /// It took longer than [`ServerOptions::request_timeout`].
    Deadline,
    /// It waited longer than [`ServerOptions::queue_timeout`].
    QueueTimeout,
    /// The client read slower than the model wrote, for too long.
    SlowClient,
    /// The server went down.
    Shutdown,
}

impl Cancelled {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cancelled::Disconnect => "disconnect",
            Cancelled::Deadline => "deadline",
            Cancelled::QueueTimeout => "queue_timeout",
            Cancelled::SlowClient => "slow_client",
            Cancelled::Shutdown => "shutdown",
        }
    }
}

/// What only the worker knows, at the time of asking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) status: Status,
    /// Requests in the queue.
    pub(crate) waiting: usize,
    pub(crate) running: usize,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Code {
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: &'static str,
}

/// All metrics of one server.
pub(crate) struct Metrics {
    registry: Registry,
    answered: Family<Answered, Counter>,
    errors: Family<Code, Counter>,
    cancelled: Family<Reason, Counter>,
    prompt_tokens: Counter,
    completion_tokens: Counter,
    duration: Histogram,
    queue_time: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    waiting: Gauge,
    running: Gauge,
    state: Family<State, Gauge>,
    connections: Gauge,
    resident: Gauge,
    model: Family<Kind, Gauge>,
}

impl Metrics {
    pub(crate) fn new(options: &ServerOptions) -> Metrics {
        let waits = || Histogram::new(WAITS);
        let mut metrics = Metrics {
            registry: Registry::default(),
            answered: Family::default(),
            errors: Family::default(),
            cancelled: Family::default(),
            prompt_tokens: Counter::default(),
            completion_tokens: Counter::default(),
            duration: waits(),
            queue_time: waits(),
            first_token: waits(),
            inter_token: Histogram::new(STEPS),
            waiting: Gauge::default(),
            running: Gauge::default(),
            state: Family::default(),
            connections: Gauge::default(),
            resident: Gauge::default(),
            model: Family::default(),
        };
        let mut registry = Registry::default();
        metrics.register(registry.sub_registry_with_prefix("lily"), options);
        metrics.register_process(registry.sub_registry_with_prefix("process"));
        metrics.registry = registry;
        metrics
    }

    fn register(&self, lily: &mut Registry, options: &ServerOptions) {
        let limit = Gauge::<i64>::default();
        limit.set(integer(options.queue_limit));
        let build = Info::new(vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("model", options.model_name.clone()),
        ]);
        lily.register("build", "The program and the served model", build);
        lily.register("requests", "Requests by route and status", self.answered.clone());
        lily.register("request_errors", "Requests answered with an error", self.errors.clone());
        lily.register(
            "requests_cancelled",
            "Requests that ended before their answer was complete",
            self.cancelled.clone(),
        );
        lily.register("prompt_tokens", "Tokens of prompts", self.prompt_tokens.clone());
        lily.register("completion_tokens", "Tokens of answers", self.completion_tokens.clone());
        lily.register("requests_waiting", "Requests in the queue", self.waiting.clone());
        lily.register("requests_running", "Requests the model works on", self.running.clone());
        lily.register("queue_limit", "Requests that may wait", limit);
        lily.register("worker_state", "1 for the state the worker is in", self.state.clone());
        lily.register("connections", "Open connections", self.connections.clone());
        for (name, help, histogram) in [
            ("queue_time", "From entering the queue to the first step", &self.queue_time),
            ("time_to_first_token", "From arrival to the first token", &self.first_token),
            ("inter_token_latency", "From a token to the next", &self.inter_token),
            ("request_duration", "From arrival to the last byte of the answer", &self.duration),
        ] {
            lily.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        let help = "Memory the model was planned with";
        lily.register_with_unit("model_memory", help, Unit::Bytes, self.model.clone());
    }

    fn register_process(&self, process: &mut Registry) {
        let start = Gauge::<i64>::default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        start.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        process.register_with_unit("start_time", "Start of the server", Unit::Seconds, start);
        let resident = self.resident.clone();
        process.register_with_unit("resident_memory", "Resident memory", Unit::Bytes, resident);
    }

    /// All metrics in the text format of OpenMetrics, which Prometheus reads.
    pub(crate) fn render(&self, load: Load) -> Result<String, std::fmt::Error> {
        self.waiting.set(integer(load.waiting));
        self.running.set(integer(load.running));
        for state in [Status::Loading, Status::Ready, Status::Closing, Status::Dead] {
            let gauge = self.state.get_or_create(&State { state: state.name() });
            gauge.set(i64::from(state == load.status));
        }
        if let Some(memory) = memory_stats::memory_stats() {
            self.resident.set(integer(memory.physical_mem));
        }
        let mut rendered = String::new();
        text::encode(&mut rendered, &self.registry)?;
        Ok(rendered)
    }

    /// A request has been answered, or its client has left (status 499).
    pub(crate) fn answered(&self, route: &str, status: u16, took: Duration) {
        let labels = Answered { route: route.to_owned(), status };
        self.answered.get_or_create(&labels).inc();
        self.duration.observe(took.as_secs_f64());
    }

    pub(crate) fn error(&self, code: &'static str) {
        self.errors.get_or_create(&Code { code }).inc();
    }

    pub(crate) fn cancelled(&self, reason: Cancelled) {
        self.cancelled.get_or_create(&Reason { reason: reason.name() }).inc();
    }

    pub(crate) fn started(&self, waited: Duration, prompt_tokens: usize) {
        self.queue_time.observe(waited.as_secs_f64());
        self.prompt_tokens.inc_by(prompt_tokens as u64);
    }

    /// A token came `since` its request's arrival if it is the first, or else
    /// since the one before.
    pub(crate) fn token(&self, since: Duration, first: bool) {
        self.completion_tokens.inc();
        let histogram = if first { &self.first_token } else { &self.inter_token };
        histogram.observe(since.as_secs_f64());
    }

    /// Bytes that the model was planned to take for one purpose.
    pub(crate) fn model_memory(&self, kind: &'static str, bytes: u64) {
        self.model.get_or_create(&Kind { kind }).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts a connection until what is given back is dropped.
    pub(crate) fn connection(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }
}

pub(crate) struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn integer(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
