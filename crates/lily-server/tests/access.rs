//! Who may use the server, under which name, from which page; and TLS.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::TestServer;
use common::chat;
use common::client::Response;
use common::client::read;
use common::client::read_until;
use common::options;
use common::script::Reply;
use lily_server::ApiKeys;
use lily_server::Cors;
use lily_server::ServerError;
use lily_server::ServerOptions;
use lily_server::TlsFiles;
use lily_server::bind;
use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Sends a request with these headers and no others.
async fn ask(server: &TestServer, method: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = format!("{method} /v1/models HTTP/1.1\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    read(&mut server.client.raw(&format!("{request}\r\n")).await).await
}

async fn with_cors(origins: &[&str]) -> TestServer {
    let cors = Cors::parse(origins).unwrap();
    TestServer::with_options(ServerOptions { cors, ..options() }, Vec::new()).await
}

#[tokio::test]
async fn each_of_several_keys_is_let_in_by_either_header() {
    let api_keys = ApiKeys::new(["first", "second"]).unwrap();
    let server =
        TestServer::with_options(ServerOptions { api_keys, ..options() }, Vec::new()).await;
    for path in ["/v1/models", "/metrics"] {
        for (name, value, status) in [
            ("authorization", "Bearer first", 200),
            ("authorization", "Bearer second", 200),
            ("x-api-key", "second", 200),
            ("x-api-key", "third", 401),
            ("x-api-key", "", 401),
            ("x-key", "first", 401),
        ] {
            let answer = server.client.send("GET", path, &[(name, value)], b"").await;
            assert_eq!(answer.status, status, "{path} {name}: {value}");
        }
        // The clients of one vendor always send a header of their own, mostly with a placeholder.
        let both = [("authorization", "Bearer unused"), ("x-api-key", "first")];
        assert_eq!(server.client.send("GET", path, &both, b"").await.status, 200);
    }
    assert_ne!(server.client.get("/health").await.status, 401);
}

#[tokio::test]
async fn without_a_key_a_foreign_name_is_refused() {
    let allowed_hosts = vec!["mac.local".to_owned()];
    let server =
        TestServer::with_options(ServerOptions { allowed_hosts, ..options() }, Vec::new()).await;
    for host in ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "mac.local:8000"] {
        assert_eq!(ask(&server, "GET", &[("host", host)]).await.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example:8000", "other.local", ""] {
        let answer = ask(&server, "GET", &[("host", host)]).await;
        assert_eq!((answer.status, answer.error("code")), (403, json!("host_not_allowed")));
    }
    // Neither a second name nor one in the target gets around it.
    let two = ask(&server, "GET", &[("host", "localhost"), ("host", "evil.example")]).await;
    assert!(matches!(two.status, 400 | 403), "{}", two.status);
    let target = "GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\n\
        connection: close\r\n\r\n";
    assert_eq!(read(&mut server.client.raw(target).await).await.status, 403);
    let health = "GET /health HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(read(&mut server.client.raw(health).await).await.status, 403);
}

#[tokio::test]
async fn with_a_key_any_name_will_do() {
    let api_keys = ApiKeys::new(["secret"]).unwrap();
    let server =
        TestServer::with_options(ServerOptions { api_keys, ..options() }, Vec::new()).await;
    let headers = [("host", "lily.example"), ("authorization", "Bearer secret")];
    assert_eq!(ask(&server, "GET", &headers).await.status, 200);
}

#[tokio::test]
async fn pages_of_other_origins_are_refused_and_those_of_the_server_are_not() {
    let server = TestServer::start(Vec::new()).await;
    let host = ("host", "localhost:8000");
    assert_eq!(ask(&server, "GET", &[host, ("origin", "http://localhost:8000")]).await.status, 200);
    for origin in ["http://localhost:3000", "https://evil.example", "null", "app://x", "", "\u{e9}"]
    {
        for method in ["GET", "OPTIONS"] {
            let answer = ask(&server, method, &[host, ("origin", origin)]).await;
            assert_eq!(answer.status, 403, "{origin:?}");
            assert_eq!(answer.error("code"), "origin_not_allowed");
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
    }
    // What a form of another page can send without a preflight.
    let body = serde_json::to_vec(&chat(json!({}))).unwrap();
    let headers = [("content-type", "text/plain"), ("origin", "https://evil.example")];
    let answer = server.client.send("POST", "/v1/chat/completions", &headers, &body).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn a_named_origin_passes_its_preflight_without_a_key_and_its_request_with_one() {
    let options = ServerOptions {
        cors: Cors::parse(["https://chat.example"]).unwrap(),
        api_keys: ApiKeys::new(["secret"]).unwrap(),
        ..options()
    };
    let server = TestServer::with_options(options, Vec::new()).await;
    let (host, origin) = (("host", "localhost"), ("origin", "https://chat.example"));
    let method = ("access-control-request-method", "POST");
    let asked = ("access-control-request-headers", "authorization,content-type,x-api-key");
    let preflight = ask(&server, "OPTIONS", &[host, origin, method, asked]).await;
    assert_eq!(preflight.status, 200);
    let header = |answer: &Response, name: &str| answer.header(name).unwrap_or_default().to_owned();
    assert_eq!(header(&preflight, "access-control-allow-origin"), "https://chat.example");
    assert!(header(&preflight, "access-control-allow-methods").contains("POST"));
    assert_eq!(header(&preflight, "access-control-allow-headers"), asked.1);

    let refused = ask(&server, "GET", &[host, origin]).await;
    assert_eq!(refused.status, 401);
    // Or the page could not read why.
    assert_eq!(header(&refused, "access-control-allow-origin"), "https://chat.example");
    let answer = ask(&server, "GET", &[host, origin, ("authorization", "Bearer secret")]).await;
    assert_eq!(answer.status, 200);
    assert!(header(&answer, "access-control-expose-headers").contains("x-request-id"));
    let other = ask(&server, "OPTIONS", &[host, ("origin", "https://evil.example"), method]).await;
    assert_eq!(other.status, 403);
}

#[tokio::test]
async fn a_star_lets_pages_of_all_origins_in() {
    let server = with_cors(&["*"]).await;
    let answer = ask(&server, "GET", &[("host", "localhost"), ("origin", "https://a.example")]);
    let answer = answer.await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
}

#[tokio::test]
async fn every_answer_has_an_id_and_keeps_browsers_from_more() {
    let server = TestServer::start(vec![Reply::Says("Hi."), Reply::Says("Hi.")]).await;
    let body = serde_json::to_vec(&chat(json!({"stream": true}))).unwrap();
    let json = ("content-type", "application/json");
    let own = ("x-request-id", "mine-1");
    for (method, path, headers, status) in [
        ("POST", "/v1/chat/completions", &[json, own][..], 200),
        ("POST", "/v1/chat/completions", &[own], 415),
        ("GET", "/nowhere", &[own], 404),
        ("GET", "/v1/models", &[own, ("origin", "null")], 403),
    ] {
        let answer = server.client.send(method, path, headers, &body).await;
        assert_eq!((answer.status, answer.header("x-request-id")), (status, Some("mine-1")));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    }
    let odd = server.client.send("GET", "/v1/models", &[("x-request-id", "a b")], b"").await;
    assert!(odd.header("x-request-id").unwrap().starts_with("req_"));
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn with_tls(certificate: &str, key: &str) -> ServerOptions {
    let tls = Some(TlsFiles { certificate: file(certificate), key: file(key) });
    ServerOptions { tls, port: 0, ..options() }
}

#[tokio::test]
async fn with_a_certificate_the_server_speaks_tls_and_nothing_else() {
    let options = with_tls("certificate.pem", "key.pem");
    let server = TestServer::with_options(options, vec![Reply::Says("Hi there.")]).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("certificate.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls_graviola::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let client = builder.with_root_certificates(roots).with_no_client_auth();

    let connection = TcpStream::connect(server.client.address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(client));
    let mut connection =
        connector.connect("localhost".try_into().unwrap(), connection).await.unwrap();
    let body = chat(json!({"stream": true})).to_string();
    let length = body.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("[DONE]"), "{answer}");

    let mut plain = server.client.raw("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"));
}

#[test]
fn an_unusable_certificate_or_key_is_refused_by_name() {
    for (certificate, key, named, part) in [
        ("missing.pem", "key.pem", "missing.pem", "cannot read"),
        ("key.pem", "key.pem", "key.pem", "no CERTIFICATE section"),
        ("certificate.pem", "certificate.pem", "certificate.pem", "no PRIVATE KEY section"),
        ("certificate.pem", "other_key.pem", "other_key.pem", "cannot use certificate"),
    ] {
        let Err(error) = bind(&with_tls(certificate, key)) else {
            panic!("{certificate} with {key} is taken")
        };
        let text = error.to_string();
        assert!(text.contains(named) && text.contains(part), "{text}");
        let mismatch = key == "other_key.pem";
        assert_eq!(matches!(error, ServerError::Tls { .. }), mismatch, "{error:?}");
    }
}

#[tokio::test]
async fn half_a_tls_handshake_does_not_keep_the_server_from_ending() {
    let mut server =
        TestServer::with_options(with_tls("certificate.pem", "key.pem"), Vec::new()).await;
    let _half = server.client.raw("\u{16}\u{3}\u{1}").await;
    let other = server.client.raw("GET /health HTTP/1.1\r\n\r\n").await;
    drop(other);
    server.shut_down();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(15), server.ended()).await;
    ended.expect("it waited for a handshake").unwrap();
}

#[tokio::test]
async fn health_is_answered_to_whoever_asks_without_a_key() {
    let api_keys = ApiKeys::new(["secret"]).unwrap();
    let server =
        TestServer::with_options(ServerOptions { api_keys, ..options() }, Vec::new()).await;
    let mut connection = server.client.raw("GET /health HTTP/1.0\r\n\r\n").await;
    read_until(&mut connection, "\"status\":").await;
}
