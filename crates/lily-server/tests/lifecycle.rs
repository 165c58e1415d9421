//! Queue, disconnects, worker death and shutdown.

mod common;

use std::io::ErrorKind;
use std::sync::mpsc;
use std::time::Duration;

use common::TestServer;
use common::chat;
use common::client::read;
use common::endless;
use common::model;
use common::options;
use common::script::Reply;
use common::script::Scripted;
use common::tokenizer;
use common::waiting;
use lily_server::ApiKeys;
use lily_server::AppState;
use lily_server::GenerateError;
use lily_server::ServerError;
use lily_server::ServerOptions;
use lily_server::bind;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

#[tokio::test]
async fn a_client_that_leaves_ends_its_generation_streaming_or_not() {
    for stream in [false, true] {
        let (reply, started, cancelled) = endless();
        let server = TestServer::start(vec![reply, Reply::Says("Next.")]).await;
        let connection = server.client.begin_chat(&chat(json!({"stream": stream}))).await;
        started.await.unwrap();
        drop(connection);
        cancelled.await.unwrap();
        let next = server.client.chat(&chat(json!({}))).await.json();
        assert_eq!(next["choices"][0]["message"]["content"], "Next.");
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_stream_ends_its_generation() {
    let (reply, _, cancelled) = endless();
    let server = TestServer::start(vec![reply]).await;
    let mut connection = server.client.begin_chat(&chat(json!({"stream": true}))).await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("\"content\":\"a\"") {
        assert_ne!(connection.read_buf(&mut seen).await.unwrap(), 0);
    }
    drop(connection);
    cancelled.await.unwrap();
}

#[tokio::test]
async fn beyond_the_queue_a_request_is_told_to_come_back_later() {
    let (reply, started, release) = waiting(Reply::Says("First."));
    let options = ServerOptions { queue_limit: 1, ..options() };
    let server = TestServer::with_options(options, vec![reply]).await;
    let mut running = server.client.begin_chat(&chat(json!({}))).await;
    started.await.unwrap();
    // One of these waits, the other is turned away; which is which is open.
    let body = chat(json!({}));
    let (mut one, mut other) =
        (server.client.begin_chat(&body).await, server.client.begin_chat(&body).await);
    let refused = {
        let (one, other) = (read(&mut one), read(&mut other));
        tokio::pin!(one, other);
        let refused = tokio::select! { one = &mut one => one, other = &mut other => other };
        release.send(()).unwrap();
        refused
    };
    assert_eq!(refused.status, 429);
    assert_eq!(refused.error("code"), "queue_full");
    assert_eq!(refused.header("retry-after"), Some("5"));
    assert_eq!(read(&mut running).await.status, 200);
}

#[tokio::test]
async fn a_panic_fails_every_waiting_request_and_the_health() {
    let (reply, started, release) = waiting(Reply::PanicsAfter("Hi"));
    let server = TestServer::start(vec![reply]).await;
    let body = chat(json!({}));
    let mut running = server.client.begin_chat(&body).await;
    started.await.unwrap();
    let mut whole = server.client.begin_chat(&body).await;
    let mut stream = server.client.begin_chat(&chat(json!({"stream": true}))).await;
    // Its first event shows that the stream is in the queue.
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("assistant") {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    release.send(()).unwrap();
    for connection in [&mut running, &mut whole] {
        let response = read(connection).await;
        assert_eq!((response.status, response.error("code")), (503, json!("worker_dead")));
    }
    stream.read_to_end(&mut seen).await.unwrap();
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.contains("worker_dead") && !seen.contains("[DONE]"), "{seen}");
    let health = server.client.get("/health").await;
    assert_eq!((health.status, health.json()), (503, json!({"status": "dead"})));
    assert_eq!(server.client.chat(&body).await.status, 503);
    assert_eq!(server.client.get("/v1/models").await.status, 200);
}

#[tokio::test]
async fn a_lost_generator_is_a_dead_worker() {
    let server = TestServer::start(vec![Reply::IsLost]).await;
    assert_eq!(server.client.chat(&chat(json!({}))).await.status, 503);
    assert_eq!(server.client.get("/health").await.status, 503);
}

#[tokio::test]
async fn health_tells_loading_from_ready_from_failed() {
    let (go, gone) = mpsc::channel::<Option<Scripted>>();
    let state = AppState::new(options(), model(tokenizer()), move || {
        gone.recv().unwrap().ok_or_else(|| GenerateError::Failed("no memory".to_owned()))
    });
    let server = TestServer::with_state(state.unwrap()).await;
    let health = server.client.get("/health").await;
    assert_eq!((health.status, health.json()), (503, json!({"status": "loading"})));
    assert_eq!(health.header("retry-after"), Some("5"));
    let mut waiting = server.client.begin_chat(&chat(json!({}))).await;
    let generator = Scripted::new(tokenizer(), vec![Reply::Says("Hi.")], mpsc::channel().0);
    go.send(Some(generator)).unwrap();
    assert_eq!(read(&mut waiting).await.status, 200);
    let health = server.client.get("/health").await;
    assert_eq!((health.status, health.json()), (200, json!({"status": "ready"})));

    let (go, gone) = mpsc::channel::<Option<Scripted>>();
    let state = AppState::new(options(), model(tokenizer()), move || {
        gone.recv().unwrap().ok_or_else(|| GenerateError::Failed("no memory".to_owned()))
    });
    let server = TestServer::with_state(state.unwrap()).await;
    go.send(None).unwrap();
    assert_eq!(server.client.chat(&chat(json!({}))).await.status, 503);
    assert_eq!(server.client.get("/health").await.status, 503);
}

#[tokio::test]
async fn shutdown_lets_the_running_request_end() {
    let (reply, started, release) = waiting(Reply::Says("Bye."));
    let mut server = TestServer::start(vec![reply]).await;
    let mut running = server.client.begin_chat(&chat(json!({}))).await;
    started.await.unwrap();
    server.shut_down();
    release.send(()).unwrap();
    let response = read(&mut running).await.json();
    assert_eq!(response["choices"][0]["message"]["content"], "Bye.");
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn shutdown_cancels_what_outlasts_the_grace_period() {
    let (reply, started, cancelled) = endless();
    let options = ServerOptions { shutdown_grace: Duration::ZERO, ..options() };
    let mut server = TestServer::with_options(options, vec![reply]).await;
    let mut running = server.client.begin_chat(&chat(json!({}))).await;
    started.await.unwrap();
    server.shut_down();
    cancelled.await.unwrap();
    let response = read(&mut running).await;
    assert_eq!((response.status, response.error("code")), (503, json!("shutting_down")));
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn an_address_that_is_taken_is_refused_before_there_is_a_model() {
    // Also by a server that is still loading its model.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let loading = ServerOptions { port: free.port(), ..options() };
    let _loading = bind(&loading).unwrap();
    assert!(matches!(bind(&loading), Err(ServerError::Listen { .. })));

    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let options = ServerOptions { port: address.port(), ..options() };
    match bind(&options).map(drop) {
        Err(ServerError::Listen { address: named, source }) => {
            assert_eq!(named, address.to_string());
            assert_eq!(source.kind(), ErrorKind::AddrInUse);
        }
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn a_key_that_no_header_can_carry_is_refused() {
    for key in ["", "two words", "schlüssel", "line\n"] {
        let found = ApiKeys::new(["good", key]);
        assert!(matches!(found, Err(ServerError::InvalidApiKey)), "{key:?}");
    }
}

#[tokio::test]
async fn an_address_of_the_network_is_refused_without_a_key() {
    let options = ServerOptions { host: [0, 0, 0, 0].into(), port: 0, ..options() };
    assert!(matches!(bind(&options), Err(ServerError::Unprotected { .. })));
    let start = || Err::<Scripted, _>(GenerateError::Failed("not needed".to_owned()));
    let result = AppState::new(options, model(tokenizer()), start);
    assert!(matches!(result, Err(ServerError::Unprotected { .. })));
}
