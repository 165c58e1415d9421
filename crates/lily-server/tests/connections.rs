//! What a client may hold on to: connections, heads, bodies, and for how long.

mod common;

use std::time::Duration;

use common::TestServer;
use common::chat;
use common::client::read;
use common::client::read_until;
use common::options;
use common::script::Reply;
use common::waiting;
use lily_server::Limits;
use lily_server::ServerOptions;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

const SOON: Duration = Duration::from_millis(50);

/// Far below the 30 seconds that each limit has by default.
const PROMPTLY: Duration = Duration::from_secs(15);

const HALF_A_HEAD: &str = "GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: ";

const HALF_A_BODY: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
    content-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"messages\": [";

async fn with_limits(limits: Limits) -> TestServer {
    let server = TestServer::with_options(ServerOptions { limits, ..options() }, Vec::new()).await;
    server.client.until_metric("lily_worker_state{state=\"ready\"}", 1.0).await;
    server
}

/// Whatever comes until the server closes the connection.
async fn rest(mut connection: TcpStream) -> String {
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = connection.read_to_end(&mut rest).await;
    String::from_utf8(rest).unwrap()
}

/// A connection whose first request has been answered.
async fn idle(server: &TestServer) -> TcpStream {
    let mut connection = server.client.raw("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut connection, "{\"status\":").await;
    connection
}

#[tokio::test]
async fn half_a_head_an_idle_and_a_silent_connection_are_closed_in_time() {
    // Enough for a whole head on a busy machine.
    let header_time = 10 * SOON;
    let server = with_limits(Limits { header_time, ..Limits::default() }).await;
    assert!(!rest(server.client.raw(HALF_A_HEAD).await).await.contains("200 OK"));
    assert_eq!(rest(server.client.raw("").await).await, "");
    assert_eq!(rest(idle(&server).await).await, "");
}

#[tokio::test]
async fn a_body_that_stalls_or_trickles_is_a_408() {
    for limits in [
        Limits { body_pause: SOON, ..Limits::default() },
        Limits { body_time: SOON, ..Limits::default() },
    ] {
        let server = with_limits(limits).await;
        let mut connection = server.client.raw(HALF_A_BODY).await;
        let answer = read_until(&mut connection, "body_timeout").await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
}

#[tokio::test]
async fn a_head_beyond_the_limit_is_a_431() {
    let server = with_limits(Limits { header_bytes: 1000, ..Limits::default() }).await;
    let long = "a".repeat(1000);
    for headers in [&[("x-long", long.as_str())][..], &[("x-many", "a"); 101]] {
        let answer = server.client.send("GET", "/health", headers, b"").await;
        assert_eq!(answer.status, 431);
    }
    assert_eq!(server.client.get("/health").await.status, 200);
}

#[tokio::test]
async fn what_is_not_http_is_refused_and_the_server_goes_on() {
    let server = with_limits(Limits::default()).await;
    for noise in ["\u{16}\u{3}\u{1}\u{2}\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n"] {
        let answer = rest(server.client.raw(noise).await).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{noise:?}: {answer}");
    }
    assert_eq!(server.client.get("/health").await.status, 200);
}

#[tokio::test]
async fn more_connections_than_may_be_open_wait_for_an_end() {
    let server = with_limits(Limits { connections: 1, ..Limits::default() }).await;
    let first = idle(&server).await;
    let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut second = server.client.raw(request).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(first);
    read_until(&mut second, "lily_connections 1\n").await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_those_that_ask_nothing() {
    let mut server = with_limits(Limits::default()).await;
    let silent = server.client.raw("").await;
    let half_a_head = server.client.raw(HALF_A_HEAD).await;
    let half_a_body = server.client.raw(HALF_A_BODY).await;
    let idle = idle(&server).await;
    server.client.until_metric("lily_connections", 5.0).await;
    server.shut_down();
    timeout(PROMPTLY, server.ended()).await.expect("it waited for idle connections").unwrap();
    for connection in [silent, half_a_head, half_a_body, idle] {
        rest(connection).await;
    }
}

#[tokio::test]
async fn shutdown_finishes_a_stream_on_a_connection_that_is_kept_alive() {
    let (reply, started, release) = waiting(Reply::Says("Bye."));
    let mut server = TestServer::start(vec![reply]).await;
    let body = serde_json::to_string(&chat(json!({"stream": true}))).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\n";
    let length = body.len();
    let request = format!("{head}content-length: {length}\r\n\r\n{body}");
    let mut stream = server.client.raw(&request).await;
    started.await.unwrap();
    server.shut_down();
    release.send(()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("[DONE]"), "{answer}");
    timeout(PROMPTLY, server.ended()).await.expect("the connection was kept").unwrap();
}

#[tokio::test]
async fn a_second_request_on_the_same_connection_is_answered() {
    let server = TestServer::start(Vec::new()).await;
    let mut connection = server.client.raw("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut connection, "{\"status\":").await;
    let last = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    connection.write_all(last.as_bytes()).await.unwrap();
    assert_eq!(read(&mut connection).await.status, 200);
}
