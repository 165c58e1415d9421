//! Clients that leave, deadlines, and what a client hears while it waits.

mod common;

use std::time::Duration;

use common::TestServer;
use common::chat;
use common::client::read;
use common::client::read_until;
use common::endless;
use common::options;
use common::script::Reply;
use common::waiting;
use common::weather_tool;
use lily_server::Limits;
use lily_server::ServerOptions;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;

const SOON: Option<Duration> = Some(Duration::from_millis(50));

/// A prefill without end, and what tells of its beginning and its cancellation.
fn endless_prefill() -> (Reply, oneshot::Receiver<()>, oneshot::Receiver<()>) {
    let (started, has_started) = oneshot::channel();
    let (cancelled, was_cancelled) = oneshot::channel();
    (Reply::PrefillsOn { started, cancelled }, has_started, was_cancelled)
}

#[tokio::test]
async fn a_client_that_leaves_during_prefill_ends_its_request_streaming_or_not() {
    for stream in [false, true] {
        let (reply, started, cancelled) = endless_prefill();
        let server = TestServer::start(vec![reply, Reply::Says("Next.")]).await;
        let connection = server.client.begin_chat(&chat(json!({"stream": stream}))).await;
        started.await.unwrap();
        drop(connection);
        cancelled.await.unwrap();
        let next = server.client.chat(&chat(json!({}))).await.json();
        assert_eq!(next["choices"][0]["message"]["content"], "Next.");
        server
            .client
            .until_metric("lily_requests_cancelled_total{reason=\"disconnect\"}", 1.0)
            .await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_never_reaches_the_model() {
    for stream in [false, true] {
        let (reply, started, release) = waiting(Reply::Says("First."));
        let server = TestServer::start(vec![reply, Reply::Says("Third.")]).await;
        let mut first = server.client.begin_chat(&chat(json!({}))).await;
        started.await.unwrap();
        let second = server.client.begin_chat(&chat(json!({"stream": stream}))).await;
        server.client.until_metric("lily_requests_waiting", 1.0).await;
        drop(second);
        server.client.until_metric("lily_requests_waiting", 0.0).await;
        release.send(()).unwrap();
        assert_eq!(read(&mut first).await.status, 200);
        let third = server.client.chat(&chat(json!({}))).await.json();
        assert_eq!(third["choices"][0]["message"]["content"], "Third.");
        assert_eq!(server.calls.try_iter().count(), 2);
    }
}

#[tokio::test]
async fn a_place_in_a_full_queue_is_free_once_its_client_has_left() {
    let (reply, started, release) = waiting(Reply::Says("First."));
    let options = ServerOptions { queue_limit: 1, ..options() };
    let server = TestServer::with_options(options, vec![reply]).await;
    let mut first = server.client.begin_chat(&chat(json!({}))).await;
    started.await.unwrap();
    let second = server.client.begin_chat(&chat(json!({}))).await;
    server.client.until_metric("lily_requests_waiting", 1.0).await;
    assert_eq!(server.client.chat(&chat(json!({}))).await.status, 429);
    drop(second);
    server.client.until_metric("lily_requests_waiting", 0.0).await;
    let mut third = server.client.begin_chat(&chat(json!({}))).await;
    server.client.until_metric("lily_requests_waiting", 1.0).await;
    release.send(()).unwrap();
    assert_eq!(read(&mut first).await.status, 200);
    assert_eq!(read(&mut third).await.status, 200);
}

#[tokio::test]
async fn a_request_past_its_deadline_is_cancelled_and_told_so() {
    let (whole, _, whole_cancelled) = endless();
    let (stream, _, stream_cancelled) = endless_prefill();
    let options = ServerOptions { request_timeout: SOON, ..options() };
    let server = TestServer::with_options(options, vec![whole, stream]).await;
    let response = server.client.chat(&chat(json!({}))).await;
    assert_eq!((response.status, response.error("code")), (504, json!("request_timeout")));
    whole_cancelled.await.unwrap();
    let response = server.client.chat(&chat(json!({"stream": true}))).await;
    assert_eq!(response.status, 200);
    assert!(response.body.contains("request_timeout"), "{}", response.body);
    assert!(!response.body.contains("[DONE]"), "{}", response.body);
    stream_cancelled.await.unwrap();
    server.client.until_metric("lily_requests_cancelled_total{reason=\"deadline\"}", 2.0).await;
    assert_eq!(server.client.chat(&chat(json!({}))).await.status, 200);
}

#[tokio::test]
async fn a_waiting_request_past_its_deadline_does_not_wait_for_the_worker() {
    let (reply, started, release) = waiting(Reply::Says("First."));
    let options = ServerOptions { request_timeout: SOON, ..options() };
    let server = TestServer::with_options(options, vec![reply]).await;
    let _first = server.client.begin_chat(&chat(json!({}))).await;
    started.await.unwrap();
    let second = server.client.chat(&chat(json!({}))).await;
    assert_eq!((second.status, second.error("code")), (504, json!("request_timeout")));
    release.send(()).unwrap();
    assert_eq!(server.calls.try_iter().count(), 1);
}

#[tokio::test]
async fn a_request_that_waits_too_long_is_told_when_to_come_back() {
    let (reply, started, release) = waiting(Reply::Says("First."));
    let options = ServerOptions { queue_timeout: SOON, ..options() };
    let server = TestServer::with_options(options, vec![reply]).await;
    let mut first = server.client.begin_chat(&chat(json!({}))).await;
    started.await.unwrap();
    let second = server.client.chat(&chat(json!({}))).await;
    assert_eq!((second.status, second.error("code")), (503, json!("queue_timeout")));
    assert!(second.header("retry-after").unwrap().parse::<u64>().is_ok_and(|s| s >= 1));
    release.send(()).unwrap();
    // Only the wait is limited, not the answer.
    assert_eq!(read(&mut first).await.status, 200);
}

#[tokio::test]
async fn a_stream_that_waits_hears_of_its_place_and_then_of_its_prefill() {
    let options = ServerOptions { keep_alive: Duration::from_millis(10), ..options() };
    let (blocking, started, release) = waiting(Reply::Says("First."));
    let (prefill, prefilling, _cancelled) = endless_prefill();
    let server = TestServer::with_options(options, vec![blocking, prefill]).await;
    let _first = server.client.begin_chat(&chat(json!({}))).await;
    started.await.unwrap();
    let mut second = server.client.begin_chat(&chat(json!({"stream": true}))).await;
    read_until(&mut second, "\n: queue 1\n").await;
    release.send(()).unwrap();
    prefilling.await.unwrap();
    // The step tells of it once, then each silence does.
    read_until(&mut second, "\n: prefill 1/").await;
    read_until(&mut second, "\n: prefill 1/").await;
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_bounded_in_events() {
    let (cancelled, was_cancelled) = oneshot::channel();
    let limits = Limits { stream_events: 64, ..Limits::default() };
    let server = TestServer::with_options(
        ServerOptions { limits, ..options() },
        vec![Reply::Floods { cancelled }],
    );
    let server = server.await;
    let mut connection = server.client.begin_chat(&chat(json!({"stream": true}))).await;
    was_cancelled.await.unwrap();
    let mut rest = String::new();
    connection.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("slow_client") && !rest.contains("[DONE]"), "{rest}");
    server.client.until_metric("lily_requests_cancelled_total{reason=\"slow_client\"}", 1.0).await;
    assert_eq!(server.client.chat(&chat(json!({}))).await.status, 200);
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_bounded_in_time() {
    let (cancelled, was_cancelled) = oneshot::channel();
    let limits = Limits {
        stream_events: usize::MAX,
        write_pause: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = TestServer::with_options(
        ServerOptions { limits, ..options() },
        vec![Reply::Floods { cancelled }],
    );
    let server = server.await;
    let _unread = server.client.begin_chat(&chat(json!({"stream": true}))).await;
    was_cancelled.await.unwrap();
    assert_eq!(server.client.chat(&chat(json!({}))).await.status, 200);
}

#[tokio::test]
async fn what_one_answer_leaves_half_does_not_show_in_the_next() {
    let half = "<tool_call>\n<function=get_weather>\n<parameter=city>\nLis";
    let text = "ď 👋 and </think> so on.";
    let (first, started, release) = waiting(Reply::RunsOutAfter(half));
    let server = TestServer::start(vec![first, Reply::Says(text)]).await;
    let calling = chat(json!({"stream": true, "tools": weather_tool(), "max_tokens": 20}));
    let mut first = server.client.begin_chat(&calling).await;
    started.await.unwrap();
    let mut second = server.client.begin_chat(&chat(json!({"stream": true}))).await;
    server.client.until_metric("lily_requests_waiting", 1.0).await;
    release.send(()).unwrap();
    let (first, second) = (read(&mut first).await, read(&mut second).await);
    assert!(first.body.contains("get_weather"), "{}", first.body);
    let deltas = second.events().into_iter().map(|event| event["choices"][0]["delta"].clone());
    let deltas: Vec<_> = deltas.collect();
    let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(content, text);
    assert!(deltas.iter().all(|delta| delta.get("tool_calls").is_none()));
}

#[tokio::test]
async fn the_time_of_a_request_begins_before_it_is_prepared() {
    let options = ServerOptions { request_timeout: Some(Duration::from_nanos(1)), ..options() };
    let server = TestServer::with_options(options, Vec::new()).await;
    let messages = json!([{"role": "user", "content": "word ".repeat(100_000)}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/completions", json!({"prompt": "word ".repeat(100_000)})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1})),
        ("/v1/responses", json!({"input": messages})),
        ("/tokenize", json!({"messages": messages})),
    ] {
        let response = server.client.post(path, &body).await;
        assert_eq!(response.status, 504, "{path}: {}", response.body);
    }
    assert_eq!(server.calls.try_iter().count(), 0);
}
