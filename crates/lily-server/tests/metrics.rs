//! `/metrics` as Prometheus reads it, `/health` before there is a model, and memory over many requests.

mod common;

use std::io::Write as _;
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc;

use common::TestServer;
use common::chat;
use common::client::Client;
use common::demo;
use common::options;
use common::script::Reply;
use lily_server::Backend;
use lily_server::ServerError;
use lily_server::ServerOptions;
use lily_server::bind;
use serde_json::json;

/// Reads the exposition with the parser of Prometheus' own Python client and prints it as JSON.
const PARSER: &str = "\
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = {}
for family in text_string_to_metric_families(sys.stdin.read()):
    samples = [[s.name, s.labels, s.value] for s in family.samples]
    families[family.name] = {'type': family.type, 'help': family.documentation, 'samples': samples}
print(json.dumps(families))";

/// The exposition as Prometheus understands it; `None` where its client is missing.
fn parsed(text: &str) -> Option<serde_json::Value> {
    let found = Command::new("python3").args(["-c", "import prometheus_client"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        let required = std::env::var("LILY_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
        assert!(!required, "python3 with the prometheus_client package is missing");
        drop(writeln!(std::io::stderr(), "skipped: python3 with prometheus_client is missing"));
        return None;
    }
    let mut child = Command::new("python3")
        .args(["-c", PARSER])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{text}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[tokio::test]
async fn what_happens_is_counted_and_timed() {
    let replies = vec![Reply::Says("Hi there."), Reply::Says("Hi there."), Reply::FailsAfter("Hi")];
    let server = TestServer::start(replies).await;
    let whole = server.client.chat(&chat(json!({}))).await.json();
    server.client.chat(&chat(json!({"stream": true}))).await;
    server.client.chat(&chat(json!({"stream": true}))).await;
    server.client.chat(&chat(json!({"temperature": 9}))).await;
    server.client.get("/nowhere").await;
    server.client.get("/v1/models/other").await;
    let (prompt, tokens) = (&whole["usage"]["prompt_tokens"], &whole["usage"]["completion_tokens"]);
    let (prompt, tokens) = (prompt.as_f64().unwrap(), tokens.as_f64().unwrap());
    let failed_tokens = 1.0;
    for (sample, expected) in [
        ("lily_requests_total{route=\"/v1/chat/completions\",status=\"200\"}", 3.0),
        ("lily_requests_total{route=\"/v1/chat/completions\",status=\"400\"}", 1.0),
        ("lily_requests_total{route=\"unmatched\",status=\"404\"}", 1.0),
        ("lily_requests_total{route=\"/v1/models/{*name}\",status=\"404\"}", 1.0),
        ("lily_request_errors_total{code=\"invalid_value\"}", 1.0),
        ("lily_request_errors_total{code=\"server_error\"}", 1.0),
        ("lily_prompt_tokens_total", 3.0 * prompt),
        ("lily_completion_tokens_total", 2.0 * tokens + failed_tokens),
        ("lily_time_to_first_token_seconds_count", 3.0),
        ("lily_inter_token_latency_seconds_count", 2.0 * (tokens - 1.0)),
        ("lily_queue_time_seconds_count", 3.0),
        ("lily_requests_waiting", 0.0),
        ("lily_queue_limit", 16.0),
    ] {
        // A request is counted when its last byte has left, which its client sees a little earlier.
        server.client.until_metric(sample, expected).await;
    }
    assert!(server.client.metric("process_resident_memory_bytes").await.unwrap() > 1e6);
    let buckets = "lily_time_to_first_token_seconds_bucket{le=\"+Inf\"}";
    assert_eq!(server.client.metric(buckets).await, Some(3.0));
}

#[tokio::test]
async fn the_exposition_is_what_prometheus_reads() {
    let server = TestServer::start(vec![Reply::Says("Hi there."), Reply::PanicsAfter("Hi")]).await;
    server.client.chat(&chat(json!({}))).await;
    server.client.chat(&chat(json!({}))).await;
    server.client.until_metric("lily_worker_state{state=\"dead\"}", 1.0).await;
    let response = server.client.get("/metrics").await;
    assert!(response.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let Some(families) = parsed(&response.body) else { return };
    let names: Vec<&String> = families.as_object().unwrap().keys().collect();
    let kind = |name: &str| families[name]["type"].as_str().unwrap_or_default().to_owned();
    for (name, expected) in [
        ("lily_requests", "counter"),
        ("lily_requests_waiting", "gauge"),
        ("lily_inter_token_latency_seconds", "histogram"),
        ("process_resident_memory_bytes", "gauge"),
        ("lily_build", "info"),
    ] {
        assert_eq!(kind(name), expected, "{name} in {names:?}");
    }
    let undocumented = names.iter().filter(|name| families[name]["help"] == "");
    assert_eq!(undocumented.count(), 0);
}

#[test]
fn health_is_answered_while_the_model_loads_and_everything_else_told_to_come_back() {
    // The system's choice of port is not known before there is a model.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = ServerOptions { port, ..options() };
    let bound = bind(&options).unwrap();
    let (ask, asked) = mpsc::channel::<&str>();
    let (tell, told) = mpsc::channel();
    let asking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for path in asked {
            let client = Client { address: ([127, 0, 0, 1], port).into() };
            tell.send(runtime.block_on(client.get(path))).unwrap();
        }
    });
    let get = |path: &'static str| {
        ask.send(path).unwrap();
        told.recv().unwrap()
    };
    let result = lily_server::run::<ServerError>(
        bound,
        options,
        |progress| -> Result<Backend, ServerError> {
            let health = get("/health");
            assert_eq!((health.status, health.json()), (503, json!({"status": "loading"})));
            assert_eq!(health.header("retry-after"), Some("5"));
            progress.advance(250, 1000);
            assert_eq!(get("/health").json(), json!({"status": "loading", "progress": 0.25}));
            let chat = get("/v1/models");
            assert_eq!((chat.status, chat.error("code")), (503, json!("loading")));
            assert_eq!(chat.header("retry-after"), Some("5"));
            assert!(get("/metrics").body.contains("lily_worker_state{state=\"loading\"} 1"));
            Err(ServerError::InvalidApiKey)
        },
        |_| panic!("there is no model"),
    );
    drop(ask);
    asking.join().unwrap();
    assert!(matches!(result, Err(ServerError::InvalidApiKey)), "what loading gives is passed on");
}

/// Probe P17: what a request leaves behind is nothing.
#[tokio::test]
async fn sixty_short_requests_leave_the_memory_flat() {
    let client = demo::start(options()).await;
    client.until_metric("lily_worker_state{state=\"ready\"}", 1.0).await;
    let resident = async || client.metric("process_resident_memory_bytes").await.unwrap();
    let ask = async |number: usize| {
        let content = format!("What is {number} + {number}?");
        let messages = json!([{"role": "user", "content": content}]);
        let body =
            json!({"messages": messages, "max_tokens": 8, "stream": number.is_multiple_of(2)});
        assert_eq!(client.chat(&chat(body)).await.status, 200);
    };
    // What all grammars share is made beside the first requests, and belongs to none of them.
    let guided = json!({"guided_choice": ["a"], "max_tokens": 8});
    assert_eq!(client.chat(&chat(guided)).await.status, 200);
    for number in 0..20 {
        ask(number).await;
    }
    let before = resident().await;
    for number in 20..80 {
        ask(number).await;
    }
    let grown = resident().await - before;
    // The allocator may keep what one request took; sixty times that would be far more.
    assert!(grown < 8e6, "{grown} bytes more after 60 requests");
    assert!(client.metric("lily_model_memory_bytes{kind=\"weights\"}").await.unwrap() > 1e6);
}
