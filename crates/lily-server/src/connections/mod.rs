//! The accept loop: how many connections there are, how long each may take for
//! what, and how they end.
//!
//! `axum::serve` sets no limits of time, so HTTP/1.1 is spoken by hyper directly.

mod activity;
mod patience;
pub(crate) mod tls;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::http::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::metrics::Metrics;
use crate::options::Limits;
use crate::site::Site;

use activity::Activity;
use patience::Patient;

/// How long a connection without a running request has to get its last bytes out
/// when the server goes down.
const FAREWELL: Duration = Duration::from_secs(1);

/// Pause after the system refused a connection, mostly for want of file
/// descriptors: others must end first.
const RECOVERY: Duration = Duration::from_millis(100);

/// Most headers of one request.
const HEADERS: usize = 100;

/// What every connection needs.
pub(crate) struct Connections {
    pub(crate) site: Site,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
}

/// Connections that are being taken and served; all end when this is dropped.
pub(crate) struct Accepting {
    closing: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Accepting {
    /// Takes no more connections, and ends those without a running request.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until, after [`Accepting::close`], all connections have ended.
    pub(crate) async fn ended(&mut self) {
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the accept loop failed");
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connections {
    /// Starts to take connections.
    pub(crate) fn accept(self, listener: TcpListener) -> Accepting {
        let (closing, asked) = watch::channel(false);
        Accepting { closing, task: tokio::spawn(Arc::new(self).accept_until(listener, asked)) }
    }

    async fn accept_until(self: Arc<Self>, listener: TcpListener, closing: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let mut open = JoinSet::new();
        let mut asked = closing.clone();
        loop {
            let accepted = tokio::select! {
                accepted = next(&listener, &places) => accepted,
                _ = asked.wait_for(|asked| *asked) => break,
            };
            // Those that have ended are forgotten here.
            while open.try_join_next().is_some() {}
            if let Some((stream, place)) = accepted {
                let connection = Arc::clone(&self).serve(stream, closing.clone());
                open.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
        }
        drop(listener);
        while open.join_next().await.is_some() {}
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, mut closing: watch::Receiver<bool>) {
        let _open = self.metrics.connection();
        // A token must leave at once, not when the next one fills up the packet.
        let _ = stream.set_nodelay(true);
        let stream = Patient::new(stream, self.limits.write_pause);
        let Some(tls) = &self.tls else { return self.speak(stream, closing).await };
        let handshake = timeout(self.limits.header_time, tls.accept(stream));
        let stream = tokio::select! {
            stream = handshake => stream,
            _ = closing.wait_for(|asked| *asked) => return,
        };
        match stream {
            Ok(Ok(stream)) => self.speak(stream, closing).await,
            Ok(Err(error)) => tracing::debug!(%error, "no TLS came about"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    /// HTTP/1.1 until the client is done, out of time, or the server goes down.
    async fn speak<S>(&self, stream: S, mut closing: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let activity = Activity::default();
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_time)
            .max_header_size(self.limits.header_bytes)
            .max_headers(HEADERS)
            .serve_connection(
                TokioIo::new(stream),
                service_fn(|request| answer(self.site.clone(), activity.clone(), request)),
            );
        tokio::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return log_end(ended),
            _ = closing.wait_for(|asked| *asked) => {}
        }
        connection.as_mut().graceful_shutdown();
        if !activity.is_answering() {
            if let Ok(ended) = timeout(FAREWELL, connection.as_mut()).await {
                return log_end(ended);
            }
            if !activity.is_answering() {
                return;
            }
        }
        log_end(connection.await);
    }
}

/// The next connection, once there is a place for it; `None` where it failed.
async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) if is_of_connection(&error) => None,
        Err(error) => {
            tracing::warn!(%error, "cannot take a connection");
            tokio::time::sleep(RECOVERY).await;
            None
        }
    }
}

/// Whether only the one connection failed that was about to be taken.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

fn answer(
    site: Site,
    activity: Activity,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> {
    let request = request.map(|body| activity.receive(body));
    async move {
        let response = site.router().oneshot(request).await?;
        activity.answering();
        Ok(response.map(|body| activity.send(body)))
    }
}

fn log_end(ended: hyper::Result<()>) {
    // Clients that leave or are too slow are no fault of the server.
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}
