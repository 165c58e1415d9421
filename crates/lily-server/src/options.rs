use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::error::ServerError;

/// How the server listens, whom it lets in and how much it takes on.
///
/// `..ServerOptions::default()` fills in what a caller does not care about.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on; loopback unless the user asks for more.
    pub host: IpAddr,
    /// TCP port; 0 lets the system choose one.
    pub port: u16,
    /// Bearer key that every `/v1` request must carry; `None` lets anyone in.
    pub api_key: Option<String>,
    /// Name that `/v1/models` and every response report. Requests may give any
    /// name: one model is loaded and it answers whatever it is called.
    pub model_name: String,
    /// Requests that may wait behind the running one; beyond it, 429.
    pub queue_limit: usize,
    /// Largest request body in bytes; beyond it, 413.
    pub max_body_bytes: usize,
    /// How long running requests may go on after shutdown was asked for, before
    /// they are cancelled.
    pub shutdown_grace: Duration,
    /// Longest silence of a stream before an SSE comment is sent, so that
    /// clients and proxies do not give up during a long prefill.
    pub keep_alive: Duration,
}

impl ServerOptions {
    /// What no server can be started with.
    ///
    /// # Errors
    /// [`ServerError::InvalidApiKey`].
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        let visible = |key: &String| !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
        match self.api_key.as_ref().is_none_or(visible) {
            true => Ok(()),
            false => Err(ServerError::InvalidApiKey),
        }
    }
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8000,
            api_key: None,
            model_name: "lily".to_owned(),
            queue_limit: 16,
            max_body_bytes: 16 << 20,
            shutdown_grace: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
        }
    }
}
