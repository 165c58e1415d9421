//! Asks a running server what it serves.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

use lily_hub::HubError;
use serde_json::Value;
use ureq::Agent;
use ureq::http::{StatusCode, Uri};

/// How long a server on the same machine or network may take to say what it serves.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a server may take to load its model, and the time between two looks at it.
const LOADING: Duration = Duration::from_secs(900);
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes of an answer that are read.
const LONGEST: u64 = 1 << 20;
/// Tokens of the longest answer a client should ask for: what Qwen's model cards advise.
const LONGEST_ANSWER: usize = 32_768;

/// Why there is nothing to connect to, or no way to know.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("--url {url:?}: {problem}")]
    Url { url: String, problem: &'static str },
    #[error("--api-key: {problem}")]
    Key { problem: &'static str },
    #[error("cannot read {file:?}, which SSL_CERT_FILE names")]
    CertificateFile {
        file: OsString,
        #[source]
        source: io::Error,
    },
    #[error("cannot ask {url}")]
    Tls {
        url: String,
        #[source]
        source: HubError,
    },
    #[error(
        "nothing answers at {url}: start a server with `lily serve`, name another place with --url, or \
         see settings without one by --offline"
    )]
    Nothing {
        url: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the certificate of {url} is not trusted: {reason}")]
    Untrusted { url: String, reason: String },
    #[error("no answer from {url} that could be read{hint}")]
    Broken {
        url: String,
        hint: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the server at {url} is not ready: {message}")]
    NotReady { url: String, message: String },
    #[error("the server at {url} demands a key: give it by LILY_API_KEY or --api-key")]
    KeyMissing { url: String },
    #[error("the server at {url} does not accept this key")]
    KeyWrong { url: String },
    #[error("{url} is no server of lily: {problem}")]
    Foreign { url: String, problem: String },
    #[error("the server at {url} serves {}, not {asked}", .served.join(", "))]
    Model { url: String, served: Vec<String>, asked: String },
}

/// The key of a server. Its text is for headers and for the environment of a client.
#[derive(Clone)]
pub(crate) struct Key(String);

impl Key {
    /// Refuses what no header could carry.
    pub(crate) fn new(text: &str) -> Result<Self, ConnectError> {
        if text.is_empty() {
            return Err(ConnectError::Key { problem: "is empty" });
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = "has characters that a header cannot carry (spaces, or beyond ASCII)";
            return Err(ConnectError::Key { problem });
        }
        Ok(Key(text.to_owned()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Where a server is: scheme, host, port, and the path in front of `/v1`, without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base(String);

impl Base {
    /// Accepts what people copy: with or without scheme, slash or `/v1` at the end.
    pub(crate) fn parse(text: &str) -> Result<Self, ConnectError> {
        let refuse = |problem| ConnectError::Url { url: text.to_owned(), problem };
        let given = text.trim();
        let with_scheme =
            if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
        let uri: Uri = with_scheme.parse().map_err(|_| refuse("is not a URL"))?;
        let scheme = uri.scheme_str().unwrap_or_default();
        if scheme != "http" && scheme != "https" {
            return Err(refuse("must begin with http:// or https://"));
        }
        let authority = uri.authority().ok_or_else(|| refuse("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("holds a user name: a key goes into LILY_API_KEY"));
        }
        if authority.host().is_empty() {
            return Err(refuse("names no host"));
        }
        if uri.query().is_some() {
            return Err(refuse("has a query"));
        }
        let path = uri.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/');
        Ok(Base(format!("{scheme}://{authority}{path}")))
    }

    /// Without `/v1`.
    pub(crate) fn root(&self) -> &str {
        &self.0
    }

    /// With `/v1`.
    pub(crate) fn v1(&self) -> String {
        format!("{}/v1", self.0)
    }

    /// Scheme, host and port, and the path below it that ends in `/v1`, without a slash in front.
    pub(crate) fn host_and_path(&self) -> (String, String) {
        let v1 = self.v1();
        let after_scheme = v1.find("://").map_or(0, |at| at + 3);
        let slash = v1[after_scheme..].find('/').map_or(v1.len(), |at| after_scheme + at);
        (v1[..slash].to_owned(), v1[slash..].trim_start_matches('/').to_owned())
    }
}

/// What a client has to know.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) base: Base,
    pub(crate) key: Option<Key>,
    pub(crate) model: String,
    /// Tokens that prompt and answer may have together, as the settings say.
    pub(crate) context: usize,
    /// What the server itself says of that; nothing where it was not asked.
    pub(crate) limits: Limits,
}

/// What a server says of the length of its context, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// What it was started with.
    pub(crate) context: Option<usize>,
    /// What its model could be served with.
    pub(crate) most: Option<usize>,
}

impl Server {
    /// Tokens of context that a client really has: settings cannot make it longer.
    pub(crate) fn real_context(&self) -> usize {
        self.limits.context.map_or(self.context, |context| context.min(self.context))
    }

    /// The file of certificates that this program trusts the server by, where it is one of the user's own.
    pub(super) fn certificate(&self) -> Option<OsString> {
        own_certificates().filter(|_| self.base.root().starts_with("https:"))
    }

    /// Tokens a client may ask for in one answer: a quarter of the context, so that the rest is left
    /// for the prompt.
    pub(crate) fn answer(&self) -> usize {
        (self.context / 4).clamp(1, LONGEST_ANSWER)
    }

    /// Tokens of prompt and answer at which a client should shorten its history.
    pub(crate) fn compaction(&self) -> usize {
        self.context - self.answer()
    }

    /// The key, or what stands for one where a client insists: a server without keys looks at none.
    pub(crate) fn key_text(&self) -> &str {
        self.key.as_ref().map_or("unused", Key::text)
    }
}

/// Asks the server for its model and checks that the key is right. A server that is loading its model is
/// waited for, after `waiting` was called once.
pub(crate) fn ask(
    base: Base,
    key: Option<Key>,
    model: Option<&str>,
    context: Option<usize>,
    waiting: impl FnOnce(&str),
) -> Result<Server, ConnectError> {
    let url = base.root().to_owned();
    // A proxy of the environment is for the world outside, not for this machine's server.
    let config = Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None);
    let config = if url.starts_with("https:") {
        if let Some(file) = own_certificates() {
            File::open(&file).map_err(|source| ConnectError::CertificateFile { file, source })?;
        }
        let tls = lily_hub::tls_config();
        config.tls_config(tls.map_err(|source| ConnectError::Tls { url: url.clone(), source })?)
    } else {
        config
    };
    let agent = config.build().new_agent();

    wait_until_ready(&agent, &base, waiting)?;
    let (status, body) = get(&agent, &base, "/v1/models", key.as_ref())?;
    match status {
        StatusCode::UNAUTHORIZED if key.is_none() => return Err(ConnectError::KeyMissing { url }),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(ConnectError::KeyWrong { url });
        }
        StatusCode::OK => {}
        other => {
            let problem = format!("its answer to /v1/models is status {}", other.as_u16());
            return Err(ConnectError::Foreign { url, problem });
        }
    }
    let (model, context, limits) = served(&url, &body, model, context)?;
    Ok(Server { base, key, model, context, limits })
}

fn wait_until_ready(
    agent: &Agent,
    base: &Base,
    waiting: impl FnOnce(&str),
) -> Result<(), ConnectError> {
    let start = Instant::now();
    let mut waiting = Some(waiting);
    loop {
        let (status, body) = get(agent, base, "/health", None)?;
        if status != StatusCode::SERVICE_UNAVAILABLE {
            return Ok(());
        }
        if !is_loading(&body) || start.elapsed() > LOADING {
            let url = base.root().to_owned();
            return Err(ConnectError::NotReady { url, message: message(&body) });
        }
        if let Some(waiting) = waiting.take() {
            waiting(base.root());
        }
        thread::sleep(PAUSE);
    }
}

/// Whether a body with status 503 says that the server will be ready by itself.
fn is_loading(body: &str) -> bool {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    body["status"] == "loading"
        || body["error"]["message"].as_str().is_some_and(|message| message.contains("loading"))
}

/// Status and body of a GET.
fn get(
    agent: &Agent,
    base: &Base,
    path: &str,
    key: Option<&Key>,
) -> Result<(StatusCode, String), ConnectError> {
    let url = base.root().to_owned();
    let mut request = agent.get(format!("{url}{path}"));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {}", key.text()));
    }
    let mut answer = request.call().map_err(|error| unanswered(&url, error))?;
    let body = answer.body_mut().with_config().limit(LONGEST).lossy_utf8(true).read_to_string();
    let body = body.map_err(|e| ConnectError::Broken { url, hint: "", source: plain(e) })?;
    Ok((answer.status(), body))
}

/// Without the library's word before what the system says.
fn plain(error: ureq::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        ureq::Error::Io(error) => error.into(),
        other => other.into(),
    }
}

/// Whether nobody is there, or somebody else, or one with an unknown certificate.
fn unanswered(url: &str, error: ureq::Error) -> ConnectError {
    let url = url.to_owned();
    if let Some(reason) = distrust(&error.to_string(), own_certificates().as_deref()) {
        return ConnectError::Untrusted { url, reason };
    }
    let nobody = match &error {
        ureq::Error::Io(error) => {
            matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable)
        }
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::Timeout(_) => true,
        _ => false,
    };
    let source = plain(error);
    if nobody {
        ConnectError::Nothing { url, source }
    } else {
        let unencrypted = url.starts_with("http:");
        let hint = if unencrypted { "; if it uses TLS, its URL begins with https://" } else { "" };
        ConnectError::Broken { url, hint, source }
    }
}

/// Why a certificate is not trusted, and what to do, where that is what these words of rustls say;
/// `file` is what SSL_CERT_FILE names.
fn distrust(words: &str, file: Option<&OsStr>) -> Option<String> {
    if words.contains("CaUsedAsEndEntity") {
        let reason = "it is an authority's, which is not taken as a server's; make one with \
                      basicConstraints=CA:FALSE";
        return Some(reason.to_owned());
    }
    // A signature is bad where another certificate of the same name is trusted.
    if !words.contains("UnknownIssuer") && !words.contains("BadSignature") {
        return None;
    }
    Some(match file {
        None => "set SSL_CERT_FILE to a PEM file that holds it, or its authority's".to_owned(),
        Some(file) => format!(
            "{file:?}, which SSL_CERT_FILE names, holds neither this certificate nor its authority's"
        ),
    })
}

/// The file of certificates that the user trusts in place of the system's.
fn own_certificates() -> Option<OsString> {
    std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty())
}

/// The message of an error body, the status of one about health, or the body itself where it is neither.
fn message(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let message = parsed["error"]["message"].as_str().or_else(|| parsed["status"].as_str());
    let text: String = message.unwrap_or(body).chars().filter(|c| !c.is_control()).collect();
    text.chars().take(200).collect()
}

/// Name and context of the model that was asked for, or else of the only one, and what the server says
/// of the context.
fn served(
    url: &str,
    body: &str,
    asked: Option<&str>,
    context: Option<usize>,
) -> Result<(String, usize, Limits), ConnectError> {
    let foreign =
        |problem: &str| ConnectError::Foreign { url: url.to_owned(), problem: problem.to_owned() };
    let body: Value =
        serde_json::from_str(body).map_err(|_| foreign("its list of models is not JSON"))?;
    let models = body["data"].as_array().ok_or_else(|| foreign("it lists no models"))?;
    let name = |model: &Value| model["id"].as_str().map(str::to_owned);
    let found = match asked {
        None => models.first(),
        Some(asked) => models.iter().find(|model| model["id"] == asked),
    };
    let Some(found) = found else {
        let served = models.iter().filter_map(name).filter(|name| is_plain(name)).collect();
        return Err(match asked {
            None => foreign("its list of models is empty"),
            Some(asked) => {
                let (url, asked) = (url.to_owned(), asked.to_owned());
                ConnectError::Model { url, served, asked }
            }
        });
    };
    let name = name(found).filter(|name| is_plain(name));
    let name = name.ok_or_else(|| foreign("its model has no name that settings could hold"))?;
    let length = |field: &str| {
        let length = found[field].as_u64().and_then(|length| usize::try_from(length).ok());
        length.filter(|&length| length > 0)
    };
    let limits = Limits { context: length("context_length"), most: length("max_context_length") };
    let context = context.or(limits.context).ok_or_else(|| {
        foreign("it does not say how long its context is (give --context-length)")
    })?;
    Ok((name, context, limits))
}

/// Whether a name can be shown and written into settings: not empty, no control characters, and
/// nothing that a client would replace by a variable, a file or a command's output.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_control() || "${}`".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_be_written_as_people_copy_it() {
        for text in [
            "http://127.0.0.1:8000",
            "http://127.0.0.1:8000/",
            "http://127.0.0.1:8000/v1",
            "http://127.0.0.1:8000/v1/",
            "127.0.0.1:8000",
            " 127.0.0.1:8000/v1 ",
        ] {
            let base = Base::parse(text).unwrap();
            assert_eq!(base.root(), "http://127.0.0.1:8000", "{text:?}");
            assert_eq!(base.v1(), "http://127.0.0.1:8000/v1", "{text:?}");
        }
        assert_eq!(Base::parse("https://[::1]:8/x/v1").unwrap().root(), "https://[::1]:8/x");
    }

    #[test]
    fn host_and_path_are_split_at_the_first_slash() {
        let split = |text| Base::parse(text).unwrap().host_and_path();
        assert_eq!(split("http://a:1"), ("http://a:1".into(), "v1".into()));
        assert_eq!(split("http://a:1/x/y"), ("http://a:1".into(), "x/y/v1".into()));
    }

    #[test]
    fn what_is_no_url_of_a_server_is_refused() {
        for text in
            ["", "ftp://a", "http://", "http://me:secret@a", "http://a?b=c", "a b", "http://:8000"]
        {
            let error = Base::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("--url "), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_key_that_no_header_carries_is_refused_without_being_shown() {
        for text in ["", "two words", "tab\there", "ключ", "line\nbreak"] {
            let error = Key::new(text).unwrap_err().to_string();
            assert!(error.starts_with("--api-key: "), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
        assert_eq!(format!("{:?}", Key::new("sk-secret").unwrap()), "Key(..)");
    }

    #[test]
    fn name_and_context_come_from_the_list_of_models() {
        let body = r#"{"data": [
            {"id": "a", "context_length": 4096, "max_context_length": 8192}, {"id": "b"}
        ]}"#;
        let limits = Limits { context: Some(4096), most: Some(8192) };
        assert_eq!(served("u", body, None, None).unwrap(), ("a".into(), 4096, limits));
        assert_eq!(served("u", body, None, Some(1024)).unwrap(), ("a".into(), 1024, limits));
        let unknown = Limits::default();
        assert_eq!(served("u", body, Some("b"), Some(7)).unwrap(), ("b".into(), 7, unknown));
        let refused = |body: &str, asked: Option<&str>| {
            served("u", body, asked, None).unwrap_err().to_string()
        };
        assert_eq!(refused(body, Some("c")), "the server at u serves a, b, not c");
        assert!(refused(body, Some("b")).contains("give --context-length"));
        assert!(refused("<html>", None).contains("not JSON"));
        assert!(refused("[]", None).contains("lists no models"));
        assert!(refused(r#"{"data": []}"#, None).contains("is empty"));
        for name in ["a\\u001b[2J", "{env:HOME}", "${{ secrets.X }}", "$(id)", "`id`", ""] {
            let body = format!(r#"{{"data": [{{"id": "{name}", "context_length": 1}}]}}"#);
            assert!(refused(&body, None).contains("no name"), "{name:?}");
        }
        assert!(
            refused(r#"{"data": [{"id": "a", "context_length": 0}]}"#, None).contains("how long")
        );
    }

    #[test]
    fn why_a_certificate_is_not_trusted_is_said_with_what_to_do() {
        let reason = |words| distrust(words, None);
        let own = reason("io: invalid peer certificate: UnknownIssuer").unwrap();
        assert!(own.contains("set SSL_CERT_FILE to"), "{own}");
        let other = distrust("certificate: BadSignature", Some("a.pem".as_ref())).unwrap();
        assert!(
            other.starts_with("\"a.pem\", which SSL_CERT_FILE names, holds neither"),
            "{other}"
        );
        let authority = reason("Other(OtherError(CaUsedAsEndEntity))").unwrap();
        assert!(authority.contains("CA:FALSE"), "{authority}");
        assert_eq!(reason("io: Connection reset by peer"), None);
    }

    #[test]
    fn an_answer_gets_a_quarter_of_the_context() {
        let server = |context| Server {
            base: Base::parse("http://a").unwrap(),
            key: None,
            model: "m".into(),
            context,
            limits: Limits::default(),
        };
        let limits = |context| (server(context).answer(), server(context).compaction());
        assert_eq!(limits(32_768), (8192, 24_576));
        assert_eq!(limits(262_144), (32_768, 229_376));
        assert_eq!(limits(1), (1, 0));
    }
}
