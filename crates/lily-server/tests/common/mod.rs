//! A scripted generator, a server on a loopback port, and a bare HTTP client.
#![allow(dead_code, reason = "each test file uses its own part of this module")]

pub(crate) mod client;
pub(crate) mod demo;
pub(crate) mod python;
pub(crate) mod redact;
pub(crate) mod script;

use std::sync::Arc;
use std::sync::mpsc;

use lily_engine::GenerateOptions;
use lily_engine::SamplingParams;
use lily_server::AppState;
use lily_server::Model;
use lily_server::ServerError;
use lily_server::ServerOptions;
use lily_server::serve_state;
use lily_text::ChatTemplate;
use lily_text::Tokenizer;
use serde_json::Value;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use client::Client;
use script::Call;
use script::Reply;
use script::Scripted;

/// Tokens of the scripted model's context.
pub(crate) const CONTEXT: usize = 4096;

/// A server whose model says what a script tells it to.
pub(crate) struct TestServer {
    pub(crate) client: Client,
    /// What the generator was asked, in order.
    pub(crate) calls: mpsc::Receiver<Call>,
    shutdown: Option<oneshot::Sender<()>>,
    serving: JoinHandle<Result<(), ServerError>>,
}

impl TestServer {
    pub(crate) async fn start(replies: Vec<Reply>) -> TestServer {
        TestServer::with_options(options(), replies).await
    }

    pub(crate) async fn with_options(options: ServerOptions, replies: Vec<Reply>) -> TestServer {
        let tokenizer = tokenizer();
        let (calls, received) = mpsc::channel();
        let generator = Scripted::new(tokenizer.clone(), replies, calls);
        let state = AppState::new(options, model(tokenizer), move || Ok(generator)).unwrap();
        let mut server = TestServer::with_state(state).await;
        server.calls = received;
        server
    }

    pub(crate) async fn with_state(state: AppState) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client { address: listener.local_addr().unwrap() };
        let (shutdown, asked) = oneshot::channel();
        let serving = tokio::spawn(serve_state(listener, state, async move {
            let _ = asked.await;
        }));
        let (_, calls) = mpsc::channel();
        TestServer { client, calls, shutdown: Some(shutdown), serving }
    }

    /// Asks the server to shut down; [`TestServer::ended`] waits for it.
    pub(crate) fn shut_down(&mut self) {
        let _ = self.shutdown.take().unwrap().send(());
    }

    pub(crate) async fn ended(self) -> Result<(), ServerError> {
        self.serving.await.unwrap()
    }
}

/// A reply that waits for a word from the test, and both ends of the wait.
pub(crate) fn waiting(reply: Reply) -> (Reply, oneshot::Receiver<()>, mpsc::Sender<()>) {
    let (started, has_started) = oneshot::channel();
    let (release, released) = mpsc::channel();
    let reply = Reply::Waits { started, release: released, reply: Box::new(reply) };
    (reply, has_started, release)
}

/// A reply without end, and what tells of its beginning and its cancellation.
pub(crate) fn endless() -> (Reply, oneshot::Receiver<()>, oneshot::Receiver<()>) {
    let (started, has_started) = oneshot::channel();
    let (cancelled, was_cancelled) = oneshot::channel();
    (Reply::GoesOn { started, cancelled }, has_started, was_cancelled)
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions { model_name: "scripted".to_owned(), ..ServerOptions::default() }
}

/// The text side of the demo model, whose template is the genuine one.
pub(crate) fn model(tokenizer: Tokenizer) -> Model {
    let template = include_str!("../../../../models/demo/checkpoint/chat_template.jinja");
    Model {
        tokenizer,
        template: Arc::new(ChatTemplate::new(template).unwrap()),
        thinking: true,
        context: CONTEXT,
        max_context: 2 * CONTEXT,
        defaults: GenerateOptions {
            sampling: SamplingParams { temperature: 0.6, top_k: 20, ..SamplingParams::default() },
            max_tokens: None,
            stop_tokens: vec![4049, 4047],
            logprobs: None,
            prompt_logprobs: false,
        },
    }
}

pub(crate) fn tokenizer() -> Tokenizer {
    let file = include_bytes!("../../../../models/demo/checkpoint/tokenizer.json");
    Tokenizer::from_json(file).unwrap()
}

/// A request for one answer without thinking, with the fields of `extra` added.
pub(crate) fn chat(extra: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hello"}],
        "enable_thinking": false,
    });
    let fields = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// The tool of the examples.
pub(crate) fn weather_tool() -> Value {
    json!([{
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather for a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
            },
        },
    }])
}

/// The answer of a model that calls it.
pub(crate) const WEATHER_CALL: &str = "<tool_call>\n<function=get_weather>\n<parameter=city>\nLisbon\n\
    </parameter>\n<parameter=unit>\ncelsius\n</parameter>\n</function>\n</tool_call>";
