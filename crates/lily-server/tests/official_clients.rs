//! Official clients against the demo model: scripts of `tests/python` and
//! `tests/node`.
//!
//! A script is skipped where its program or package is missing, unless
//! `LILY_REQUIRE_PYTHON=1` or `LILY_REQUIRE_NODE=1` is set.

mod common;

use std::sync::mpsc;

use common::TestServer;
use common::chat;
use common::demo;
use common::options;
use common::python;
use common::script::Reply;
use lily_server::ApiKeys;
use lily_server::ServerOptions;
use serde_json::json;
use tokio::sync::oneshot;

/// A server whose queue is full until `release` goes.
struct Busy {
    server: TestServer,
    _release: mpsc::Sender<()>,
}

impl Busy {
    async fn start() -> Busy {
        let (started, begun) = oneshot::channel();
        let (release, released) = mpsc::channel();
        let reply = Box::new(Reply::Says("Hi."));
        let reply = Reply::Waits { started, release: released, reply };
        let options = ServerOptions { queue_limit: 0, ..options() };
        let server = TestServer::with_options(options, vec![reply]).await;
        let client = server.client;
        tokio::spawn(async move { client.chat(&chat(json!({}))).await });
        begun.await.unwrap();
        Busy { server, _release: release }
    }
}

/// The arguments of a script: where the demo model is served, its key, and where
/// a queue is full. The second value is the latter.
async fn servers(root: &str) -> (Vec<String>, Busy) {
    let options = ServerOptions {
        api_keys: ApiKeys::new(["secret"]).unwrap(),
        model_name: "demo".to_owned(),
        ..options()
    };
    let demo = demo::start(options).await;
    let busy = Busy::start().await;
    let url = |address| format!("http://{address}{root}");
    (vec![url(demo.address), "secret".to_owned(), url(busy.server.client.address)], busy)
}

#[tokio::test]
async fn the_anthropic_client_works_against_the_demo_model() {
    let (args, _busy) = servers("").await;
    python::run("anthropic_client.py", "anthropic", args).await;
}

#[tokio::test]
async fn the_openai_client_s_responses_work_against_the_demo_model() {
    let (args, _busy) = servers("/v1").await;
    python::run("openai_responses.py", "openai", args).await;
}

#[tokio::test]
async fn the_openai_client_for_node_works_against_the_demo_model() {
    let (args, _busy) = servers("/v1").await;
    python::run_node("openai_client.mjs", "openai", args).await;
}
