//! The demo model on the CPU behind a server on a loopback port.

use std::path::Path;

use lily_checkpoint::Checkpoint;
use lily_cpu::CpuDevice;
use lily_cpu::CpuOptions;
use lily_device::NoProgress;
use lily_engine::Engine;
use lily_engine::EngineOptions;
use lily_server::Backend;
use lily_server::ServerError;
use lily_server::ServerOptions;
use lily_server::serve;
use lily_text::ChatTemplate;
use lily_text::Tokenizer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::client::Client;

/// Serves until the runtime of the test ends.
pub(crate) async fn start(options: ServerOptions) -> Client {
    start_until(options, std::future::pending()).await.0
}

/// Serves until `shutdown` completes.
pub(crate) async fn start_until<F>(
    options: ServerOptions,
    shutdown: F,
) -> (Client, JoinHandle<Result<(), ServerError>>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let backend = tokio::task::spawn_blocking(backend).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client { address: listener.local_addr().unwrap() };
    (client, tokio::spawn(serve(listener, options, backend, shutdown)))
}

fn backend() -> Backend {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let checkpoint = Checkpoint::open(&root.join("models/demo/checkpoint")).unwrap();
    let side_file = |name| checkpoint.side_file(name).unwrap().unwrap();
    let tokenizer = Tokenizer::from_json(&side_file("tokenizer.json")).unwrap();
    let template = String::from_utf8(side_file("chat_template.jinja")).unwrap();
    let device = CpuDevice::new(CpuOptions::default());
    let options = EngineOptions {
        context: Some(1024),
        token_limit: Some(tokenizer.len()),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&checkpoint, &device, options, &NoProgress).unwrap();
    Backend { engine, tokenizer, template: ChatTemplate::new(&template).unwrap(), thinking: true }
}
