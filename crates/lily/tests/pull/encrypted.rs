//! A hub behind TLS.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::case::{Case, QUESTION, published};
use crate::fake::{Content, FakeHub, REPO};

fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    folder.join(name).to_str().unwrap().to_owned()
}

/// Puts TLS in front of a hub, and says where.
fn encrypt(files: Vec<Content>) -> String {
    let certificate = CertificateDer::from_pem_file(file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let provider = Arc::new(rustls_graviola::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let (hub, config) = (Arc::new(FakeHub::start(files)), Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (hub, config) = (Arc::clone(&hub), Arc::clone(&config));
            thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                let answered = hub.answer(&mut stream);
                stream.conn.send_close_notify();
                let _ = stream.conn.complete_io(&mut stream.sock);
                answered
            });
        }
    });
    format!("https://{address}")
}

#[test]
fn a_hub_is_trusted_by_its_certificate() {
    let case = Case::new(Vec::new());
    let endpoint = encrypt(published());
    let pull = |authority: &str| {
        let variables = [("HF_ENDPOINT", &*endpoint), ("SSL_CERT_FILE", authority)];
        case.lily_with(&["pull", REPO], &variables)
    };
    let run = pull(&file("stranger.pem"));
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("certificate"), "{}", run.stderr);
    let run = pull("/nowhere.pem");
    assert_eq!(run.code, 1);
    let words = "cannot open an encrypted connection: cannot read \"/nowhere.pem\", which";
    assert!(run.stderr.contains(words), "{}", run.stderr);
    let run = pull(&file("authority.pem"));
    assert_eq!(run.code, 0, "{}", run.stderr);
    let answer = case.lily(&["chat", "--model-path", REPO, QUESTION]);
    assert_eq!(answer.stdout, "The capital of Japan is Tokyo.\n");
}
