//! How the server listens, whom it lets in and how much it takes on.

use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::Uri;

use crate::error::ServerError;
use crate::keys::ApiKeys;

/// How the server listens, whom it lets in and how much it takes on.
///
/// `..ServerOptions::default()` fills in what a caller does not care about.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on; loopback unless the user asks for more.
    pub host: IpAddr,
    /// TCP port; 0 lets the system choose one.
    pub port: u16,
    /// Keys of which every request that uses the model must carry one; none lets
    /// anyone in.
    pub api_keys: ApiKeys,
    /// Listen beyond loopback although no key is asked for.
    pub allow_no_key: bool,
    /// Names, besides `localhost` and plain addresses, under which the server may
    /// be reached where no key is asked for. Otherwise a web page could reach a
    /// server that only this machine can reach: by a name of its own that it lets
    /// point here (DNS rebinding).
    pub allowed_hosts: Vec<String>,
    /// Web pages of other origins that may use the server.
    pub cors: Cors,
    /// Certificate and key to speak TLS with; `None` speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Name that `/v1/models` and every response report. Requests may give any
    /// name: one model is loaded and it answers whatever it is called.
    pub model_name: String,
    /// Requests that may wait behind the running one; beyond it, 429.
    pub queue_limit: usize,
    /// How long a request may wait for its turn before it is given up (503).
    pub queue_timeout: Option<Duration>,
    /// How long a request may take in all, counted from when it has been read;
    /// then it is cancelled (504, or an error event where the answer streams).
    pub request_timeout: Option<Duration>,
    /// Largest request body in bytes; beyond it, 413.
    pub max_body_bytes: usize,
    /// What one client may take of connections, time and memory.
    pub limits: Limits,
    /// How long running requests may go on after shutdown was asked for, before
    /// they are cancelled.
    pub shutdown_grace: Duration,
    /// Longest silence of a stream before an SSE comment is sent, so that
    /// clients and proxies do not give up during a long prefill.
    pub keep_alive: Duration,
    /// Write the bodies of requests to the log, which holds no text of users
    /// otherwise.
    pub log_prompts: bool,
}

/// Bounds that protect the server from clients that are slow, many or broken.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections; more wait until one ends.
    pub connections: usize,
    /// Bytes of a request's line and headers; beyond it, 431.
    pub header_bytes: usize,
    /// How long a connection may take for a request's line and headers, be idle
    /// between two requests, or take for the TLS handshake.
    pub header_time: Duration,
    /// How long a client may pause within a body.
    pub body_pause: Duration,
    /// How long a body may take in all.
    pub body_time: Duration,
    /// How long a client may accept no byte of an answer.
    pub write_pause: Duration,
    /// Events of a stream that may wait for a client that reads slower than the
    /// model writes; beyond it the request is cancelled.
    pub stream_events: usize,
}

/// PEM files to speak TLS with.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, then those that lead to its authority.
    pub certificate: PathBuf,
    /// The certificate's private key (PKCS#8, PKCS#1 or SEC1, not encrypted).
    pub key: PathBuf,
}

/// Web pages of other origins that may use the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// None.
    #[default]
    Off,
    /// Those of these origins.
    Origins(Vec<HeaderValue>),
    /// All.
    Any,
}

impl Cors {
    /// Takes origins as browsers send them (`https://chat.example.org`,
    /// `app://name`), or `*` for all.
    ///
    /// # Errors
    /// [`ServerError::InvalidOrigin`] with the text that is no origin.
    pub fn parse<I>(origins: I) -> Result<Cors, ServerError>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let mut list = Vec::new();
        for origin in origins {
            let origin = origin.as_ref();
            match origin {
                "*" => return Ok(Cors::Any),
                _ if is_origin(origin) => list.extend(HeaderValue::from_str(origin).ok()),
                _ => return Err(ServerError::InvalidOrigin { origin: origin.to_owned() }),
            }
        }
        Ok(if list.is_empty() { Cors::Off } else { Cors::Origins(list) })
    }

    /// Whether a page of this origin may use the server.
    pub(crate) fn admits(&self, origin: &HeaderValue) -> bool {
        match self {
            Cors::Off => false,
            Cors::Origins(list) => list.contains(origin),
            Cors::Any => true,
        }
    }
}

/// `scheme://host[:port]` and nothing behind it, in lower case as browsers send it.
fn is_origin(text: &str) -> bool {
    let bare = text.split_once("://").is_some_and(|(_, rest)| !rest.contains(['/', '?', '#', '@']));
    let lower = !text.bytes().any(|b| b.is_ascii_uppercase());
    let parts = text.parse::<Uri>();
    bare && lower && parts.is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some())
}

/// Whether a request could call the server so: letters, digits, hyphens and underscores, in parts with
/// dots between. Browsers send names of other letters in such a form too (`xn--…`).
fn is_host_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    text.split('.').all(|part| !part.is_empty() && part.bytes().all(letter))
}

impl ServerOptions {
    /// What no server can be started with.
    ///
    /// # Errors
    /// [`ServerError::Unprotected`], [`ServerError::InvalidHost`].
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        if let Some(host) = self.allowed_hosts.iter().find(|host| !is_host_name(host)) {
            return Err(ServerError::InvalidHost { host: host.clone() });
        }
        let protected = self.host.is_loopback() || !self.api_keys.is_empty() || self.allow_no_key;
        if protected { Ok(()) } else { Err(ServerError::Unprotected { host: self.host }) }
    }

    /// Whether requests must name the server by an address, `localhost` or one of
    /// [`ServerOptions::allowed_hosts`].
    pub(crate) fn checks_host(&self) -> bool {
        self.api_keys.is_empty()
    }
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8000,
            api_keys: ApiKeys::default(),
            allow_no_key: false,
            allowed_hosts: Vec::new(),
            cors: Cors::Off,
            tls: None,
            model_name: "lily".to_owned(),
            queue_limit: 16,
            queue_timeout: None,
            request_timeout: None,
            max_body_bytes: 16 << 20,
            limits: Limits::default(),
            shutdown_grace: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            log_prompts: false,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // Some systems give a process no more than 256 open files.
            connections: 200,
            header_bytes: 64 << 10,
            header_time: Duration::from_secs(30),
            body_pause: Duration::from_secs(30),
            body_time: Duration::from_secs(120),
            write_pause: Duration::from_secs(30),
            stream_events: 16_384,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send_and_a_star_is_all() {
        assert_eq!(Cors::parse([""; 0]).unwrap(), Cors::Off);
        assert_eq!(Cors::parse(["https://a.example", "*"]).unwrap(), Cors::Any);
        let cors = Cors::parse(["https://a.example", "http://localhost:3000", "app://obsidian.md"]);
        let cors = cors.unwrap();
        assert!(cors.admits(&HeaderValue::from_static("http://localhost:3000")));
        assert!(!cors.admits(&HeaderValue::from_static("http://localhost:3001")));
        for wrong in
            ["", "a.example", "https://a.example/", "https://A.example", "https://", "null"]
        {
            let found = Cors::parse([wrong]);
            assert!(matches!(found, Err(ServerError::InvalidOrigin { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn names_that_no_request_could_have_are_refused() {
        let named = |name: &str| ServerOptions {
            allowed_hosts: vec!["mac.local".to_owned(), name.to_owned()],
            ..ServerOptions::default()
        };
        for name in ["my-mac", "my_mac.lan", "192.168.1.7", "xn--bcher-kva.example"] {
            assert!(named(name).check().is_ok(), "{name:?}");
        }
        for name in ["", "a b", "a..b", "*", "mac.local:8000", "http://mac.local", "bücher"] {
            let found = named(name).check();
            assert!(matches!(found, Err(ServerError::InvalidHost { .. })), "{name:?}");
        }
    }

    #[test]
    fn without_a_key_only_loopback_is_listened_on_unless_that_is_asked_for() {
        let open = ServerOptions { host: [0, 0, 0, 0].into(), ..ServerOptions::default() };
        assert!(matches!(open.check(), Err(ServerError::Unprotected { .. })));
        let asked = ServerOptions { allow_no_key: true, ..open.clone() };
        assert!(asked.check().is_ok());
        let keyed = ServerOptions { api_keys: ApiKeys::new(["k"]).unwrap(), ..open };
        assert!(keyed.check().is_ok());
        assert!(ServerOptions::default().check().is_ok());
    }
}
