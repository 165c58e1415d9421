//! Listening, serving and going down in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lily_engine::Engine;
use lily_text::ChatTemplate;
use lily_text::Tokenizer;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::connections::Accepting;
use crate::connections::Connections;
use crate::connections::tls;
use crate::error::ServerError;
use crate::error::counted;
use crate::generator::EngineGenerator;
use crate::model::Model;
use crate::options::ServerOptions;
use crate::options::TlsFiles;
use crate::routes::AppState;
use crate::routes::router;
use crate::site::Front;
use crate::site::LoadProgress;
use crate::site::Site;

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
/// [`ServerError`] if the options cannot be served with, or the worker thread
/// cannot be started.
pub async fn serve<F>(
    listener: TcpListener,
    options: ServerOptions,
    backend: Backend,
    shutdown: F,
) -> Result<(), ServerError>
where
    F: Future<Output = ()> + Send + 'static,
{
    options.check()?;
    serve_state(listener, state(Front::new(options), backend)?, shutdown).await
}

fn state(front: Front, backend: Backend) -> Result<AppState, ServerError> {
    let Backend { engine, tokenizer, template, thinking } = backend;
    let memory = engine.memory();
    for (kind, bytes) in [
        ("weights", memory.weights),
        ("kv_cache", memory.kv()),
        ("recurrent_state", memory.state),
        ("scratch", memory.scratch),
    ] {
        front.metrics.model_memory(kind, bytes);
    }
    let model = Model {
        tokenizer,
        template: Arc::new(template),
        thinking,
        context: engine.context(),
        max_context: engine.config().max_position_embeddings,
        defaults: engine.default_options(),
    };
    // Here and not by the worker, for without memory for it there is nothing to serve.
    let generator = EngineGenerator::new(engine).map_err(ServerError::Generator)?;
    let tokenizer = model.tokenizer.clone();
    // Whoever asks for a form first would wait for it; without the thread, they do.
    let _ = std::thread::Builder::new()
        .name("lily-grammar".to_owned())
        .spawn(move || tokenizer.prepare_grammars());
    AppState::behind(front, model, move || Ok(generator))
}

/// [`serve`] with a generator of the caller's choice.
///
/// # Errors
/// [`ServerError`] if TLS is asked for and cannot be had.
pub async fn serve_state<F>(
    listener: TcpListener,
    state: AppState,
    shutdown: F,
) -> Result<(), ServerError>
where
    F: Future<Output = ()> + Send + 'static,
{
    let front = state.front();
    let tls = acceptor(front.options.tls.as_ref())?;
    let site = Site::loading(front);
    site.open(router(state.clone()));
    let accepting = connections(front, site, tls).accept(listener);
    shutdown.await;
    close(accepting, state).await;
    Ok(())
}

fn acceptor(files: Option<&TlsFiles>) -> Result<Option<TlsAcceptor>, ServerError> {
    files.map(tls::acceptor).transpose()
}

fn connections(front: &Front, site: Site, tls: Option<TlsAcceptor>) -> Connections {
    Connections { site, tls, limits: front.options.limits, metrics: Arc::clone(&front.metrics) }
}

/// Lets running requests end within the grace, and cancels the rest.
async fn close(mut accepting: Accepting, state: AppState) {
    tracing::info!("shutting down");
    let mut worker = state.worker().clone();
    accepting.close();
    let overtime = async {
        tokio::time::sleep(state.options().shutdown_grace).await;
        tracing::warn!("cancelling the requests that are still running");
        worker.close();
        tokio::time::sleep(FLUSH).await;
    };
    tokio::select! {
        () = accepting.ended() => {}
        () = overtime => {}
    }
    worker.close();
    // A step that hangs must not keep the process from ending.
    let _ = timeout(FLUSH, worker.ended()).await;
}

/// An address that is listened on, with what is needed to answer on it.
pub struct Bound {
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    asked: SocketAddr,
}

/// Checks the options and takes their address, which a caller does before it
/// loads a model. (Listening at once: an address that is only bound may be bound
/// by a second program too, which would find that out after it has loaded.)
///
/// # Errors
/// [`ServerError::InvalidHost`] for an allowed host that is none,
/// [`ServerError::Unprotected`] if it would let other machines in without a key,
/// one of the TLS errors if certificate or key are unusable,
/// [`ServerError::Listen`] if the address cannot be listened on.
pub fn bind(options: &ServerOptions) -> Result<Bound, ServerError> {
    options.check()?;
    let tls = acceptor(options.tls.as_ref())?;
    let asked = SocketAddr::new(options.host, options.port);
    let listener = std::net::TcpListener::bind(asked).map_err(cannot_listen(asked))?;
    listener.set_nonblocking(true).map_err(cannot_listen(asked))?;
    Ok(Bound { listener, tls, asked })
}

fn cannot_listen(address: SocketAddr) -> impl Fn(io::Error) -> ServerError {
    move |source| ServerError::Listen { address: address.to_string(), source }
}

/// Serves on the address with a runtime of its own, until interrupted
/// (Ctrl-C, or SIGTERM where there is one); a second interruption ends it at
/// once. `ready` is called with the address once there is a model.
///
/// While `load` runs, on the calling thread, `/health` and `/metrics` are
/// answered and everything else is told to come back (503); signals do then what
/// they do without a server.
///
/// # Errors
/// As [`serve`], and whatever `load` gives.
pub fn run<E>(
    bound: Bound,
    options: ServerOptions,
    load: impl FnOnce(&LoadProgress) -> Result<Backend, E>,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), E>
where
    E: From<ServerError>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| ServerError::Io { action: "start the async runtime", source })?;
    let front = Front::new(options);
    let site = Site::loading(&front);
    let (accepting, address) = {
        let _runtime = runtime.enter();
        accept(bound, &front, &site)?
    };
    let backend = load(&front.loading)?;
    let state = state(front, backend)?;
    // Whoever is told that there is a server finds it ready.
    state.worker().wait_until_loaded();
    site.open(router(state.clone()));
    // Likewise may it be ended from then on.
    let mut interruptions = {
        let _runtime = runtime.enter();
        Interruptions::catch()
    };
    ready(address);
    runtime.block_on(async {
        let (asked, shutdown) = oneshot::channel();
        let worker = state.worker().clone();
        let twice = async {
            interruptions.next().await;
            let load = worker.load();
            let open = load.running + load.waiting;
            if open > 0 {
                let requests = counted(open as u64, "running request");
                tracing::warn!("waiting for {requests}; interrupt again to end at once");
            }
            let _ = asked.send(());
            interruptions.next().await;
        };
        let once = async {
            let _ = shutdown.await;
            close(accepting, state).await;
        };
        tokio::select! {
            () = once => {}
            () = twice => {}
        }
    });
    // Whatever still runs must not keep the process from ending.
    runtime.shutdown_background();
    Ok(())
}

fn accept(
    bound: Bound,
    front: &Front,
    site: &Site,
) -> Result<(Accepting, SocketAddr), ServerError> {
    let Bound { listener, tls, asked } = bound;
    let listener = TcpListener::from_std(listener).map_err(cannot_listen(asked))?;
    let address = listener.local_addr().map_err(cannot_listen(asked))?;
    Ok((connections(front, site.clone(), tls).accept(listener), address))
}

/// What the user and the system send to ask the process to end. It catches from its making on,
/// so that a signal that comes before anyone waits for one is not missed.
struct Interruptions {
    #[cfg(unix)]
    caught: [Option<tokio::signal::unix::Signal>; 2],
}

impl Interruptions {
    /// Needs the runtime. A signal that cannot be caught ends the process as it does without a server.
    fn catch() -> Self {
        #[cfg(unix)]
        {
            use tokio::signal::unix::SignalKind;
            use tokio::signal::unix::signal;
            let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
            Interruptions { caught: kinds.map(|kind| signal(kind).ok()) }
        }
        #[cfg(not(unix))]
        Interruptions {}
    }

    /// Completes with the next one.
    #[cfg(unix)]
    async fn next(&mut self) {
        async fn one(caught: &mut Option<tokio::signal::unix::Signal>) {
            match caught {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        let [interrupt, terminate] = &mut self.caught;
        tokio::select! {
            () = one(interrupt) => {}
            () = one(terminate) => {}
        }
    }

    /// Completes with the next one.
    #[cfg(not(unix))]
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
