//! Listening, serving and going down in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use lily_engine::Engine;
use lily_text::ChatTemplate;
use lily_text::Tokenizer;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::error::ServerError;
use crate::generator::EngineGenerator;
use crate::model::Model;
use crate::options::ServerOptions;
use crate::routes::AppState;
use crate::routes::router;

/// How long cancelled requests have to get their last bytes out.
const FLUSH: Duration = Duration::from_secs(5);

/// A loaded model with its text side.
pub struct Backend {
    /// The model.
    pub engine: Engine,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Whether it thinks when a request does not say.
    pub thinking: bool,
}

/// Serves the model on `listener` until `shutdown` completes; then takes no more
/// connections, lets running requests end within
/// [`ServerOptions::shutdown_grace`] and cancels the rest.
///
/// # Errors
/// [`ServerError`] if the API key is unusable, or the worker thread or the
/// accept loop fails.
pub async fn serve<F>(
    listener: TcpListener,
    options: ServerOptions,
    backend: Backend,
    shutdown: F,
) -> Result<(), ServerError>
where
    F: Future<Output = ()> + Send + 'static,
{
    serve_state(listener, state(options, backend)?, shutdown).await
}

fn state(options: ServerOptions, backend: Backend) -> Result<AppState, ServerError> {
    let Backend { engine, tokenizer, template, thinking } = backend;
    let model = Model {
        tokenizer,
        template: Arc::new(template),
        thinking,
        context: engine.context(),
        defaults: engine.default_options(),
    };
    AppState::new(options, model, move || EngineGenerator::new(engine))
}

/// [`serve`] with a generator of the caller's choice.
///
/// # Errors
/// [`ServerError::Io`] if the accept loop fails.
pub async fn serve_state<F>(
    listener: TcpListener,
    state: AppState,
    shutdown: F,
) -> Result<(), ServerError>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (asked, mut shutdown_asked) = watch::channel(false);
    let graceful = async move {
        shutdown.await;
        tracing::info!("shutting down");
        let _ = asked.send(true);
    };
    // A token must leave at once, not when the next one fills up the packet.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let server = axum::serve(listener, router(state.clone())).with_graceful_shutdown(graceful);
    let mut worker = state.worker().clone();
    let grace = state.options().shutdown_grace;
    let overtime = async {
        if shutdown_asked.wait_for(|asked| *asked).await.is_err() {
            // The server has ended by itself.
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(grace).await;
        tracing::warn!("cancelling the requests that are still running");
        worker.close();
        tokio::time::sleep(FLUSH).await;
    };
    let served = tokio::select! {
        served = server.into_future() => served,
        () = overtime => Ok(()),
    };
    worker.close();
    // A step that hangs must not keep the process from ending.
    let _ = timeout(FLUSH, worker.ended()).await;
    served.map_err(|source| ServerError::Io { action: "accept connections", source })
}

/// An address that is listened on: connections wait there until [`run`] has a model to serve.
#[derive(Debug)]
pub struct Bound {
    listener: std::net::TcpListener,
    asked: SocketAddr,
}

/// Checks the options and takes their address, which a caller does before it
/// loads a model. (Listening at once: an address that is only bound may be bound
/// by a second program too, which would find that out after it has loaded.)
///
/// # Errors
/// [`ServerError::InvalidApiKey`] if no header can carry the key,
/// [`ServerError::Listen`] if the address cannot be listened on.
pub fn bind(options: &ServerOptions) -> Result<Bound, ServerError> {
    options.check()?;
    let asked = SocketAddr::new(options.host, options.port);
    let listener = std::net::TcpListener::bind(asked).map_err(cannot_listen(asked))?;
    listener.set_nonblocking(true).map_err(cannot_listen(asked))?;
    Ok(Bound { listener, asked })
}

fn cannot_listen(address: SocketAddr) -> impl Fn(io::Error) -> ServerError {
    move |source| ServerError::Listen { address: address.to_string(), source }
}

/// Serves on the address with a runtime of its own, until interrupted
/// (Ctrl-C, or SIGTERM where there is one); a second interruption ends it at
/// once. `ready` is called with the address once connections are taken.
///
/// # Errors
/// As [`serve`].
pub fn run(
    bound: Bound,
    options: ServerOptions,
    backend: Backend,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), ServerError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| ServerError::Io { action: "start the async runtime", source })?;
    let served = runtime.block_on(async {
        let Bound { listener, asked } = bound;
        let listener = TcpListener::from_std(listener).map_err(cannot_listen(asked))?;
        let address = listener.local_addr().map_err(cannot_listen(asked))?;
        let state = state(options, backend)?;
        ready(address);
        let (asked, shutdown) = oneshot::channel();
        let twice = async {
            interrupted().await;
            let _ = asked.send(());
            interrupted().await;
        };
        let shutdown = async { drop(shutdown.await) };
        tokio::pin!(twice);
        tokio::select! {
            served = serve_state(listener, state, shutdown) => served,
            () = &mut twice => Ok(()),
        }
    });
    // Whatever still runs must not keep the process from ending.
    runtime.shutdown_background();
    served
}

/// Completes when the user or the system asks the process to end.
async fn interrupted() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without a handler the signal ends the process anyway.
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::SignalKind;
        use tokio::signal::unix::signal;
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => drop(terminate.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
}
