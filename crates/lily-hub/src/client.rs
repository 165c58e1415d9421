//! Requests to the hub, and to where it redirects.
//!
//! Redirects are followed here and not by the HTTP library: the hub says in its own answer, not in
//! that of the storage it points to, what a file is; and the access token must stay with the hub.

use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ureq::Agent;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::TlsConfig;

use crate::error::HubError;
use crate::names::{RepoId, shown};
use crate::retry::{Failure, reset_of, retry_after};
use crate::settings::Settings;
use crate::tls;

const MAX_REDIRECTS: usize = 10;
/// Answers that are read whole; the largest repositories list some megabytes.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// How many of the longest waits for a read the head of an answer may take.
const RESPONSE_READS: u32 = 6;
const USER_AGENT: &str = concat!("lily/", env!("CARGO_PKG_VERSION"));

/// What a request is about, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About<'a> {
    Revision { repo: &'a RepoId, revision: &'a str },
    File { repo: &'a RepoId, file: &'a str },
}

impl About<'_> {
    fn repo(&self) -> &RepoId {
        match self {
            About::Revision { repo, .. } | About::File { repo, .. } => repo,
        }
    }
}

/// Which bytes are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// First byte, and the last where there is one.
    pub(crate) range: Option<(u64, Option<u64>)>,
    /// The tag that the bytes before were of; the hub then sends all where it is another one.
    pub(crate) if_tag: Option<&'a str>,
}

/// What the hub itself says of a file, whoever then sends it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Without quotes.
    pub(crate) tag: Option<String>,
    /// Whether equal tags mean equal bytes.
    pub(crate) strong: bool,
    pub(crate) size: Option<u64>,
}

/// An answer with status 200, 206 or 416.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) facts: Facts,
    /// Bytes of this body.
    pub(crate) length: Option<u64>,
    /// First byte of this body and bytes of the whole file, of `Content-Range`.
    pub(crate) part: Option<(u64, Option<u64>)>,
    pub(crate) host: String,
    /// Where it came from, without a query.
    address: String,
    pub(crate) body: Box<dyn Read + Send>,
}

pub(crate) struct Client {
    endpoint: Uri,
    endpoint_text: String,
    authorization: Option<String>,
    timeout: Duration,
    proxy: bool,
    plain: Agent,
    /// Made when first needed: it reads the system's certificates.
    secure: Mutex<Option<Agent>>,
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Result<Self, HubError> {
        let endpoint = settings.endpoint.parse().map_err(|_| HubError::Setting {
            variable: "HF_ENDPOINT",
            found: settings.endpoint.clone(),
            expected: "an address",
        })?;
        Ok(Client {
            endpoint,
            endpoint_text: settings.endpoint.clone(),
            authorization: settings.token.as_ref().map(|token| token.bearer()),
            timeout: settings.timeout,
            proxy: settings.proxy,
            plain: agent(settings.timeout, settings.proxy, None),
            secure: Mutex::new(None),
        })
    }

    /// Host and port of the hub.
    pub(crate) fn host(&self) -> String {
        host(&self.endpoint)
    }

    /// A small JSON object.
    pub(crate) fn json(&self, path: &str, about: About<'_>) -> Result<Vec<u8>, Failure> {
        let mut reply = self.get(path, about, Wanted::default())?;
        let mut bytes = Vec::new();
        let read = (&mut reply.body).take(MAX_JSON_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::passing(self.broken(&reply.host, &error)))?;
        if bytes.len() as u64 > MAX_JSON_BYTES {
            let reason = format!("more than {MAX_JSON_BYTES} bytes");
            return Err(HubError::Answer { host: reply.host, reason }.into());
        }
        // A page of a proxy has status 200 too.
        match bytes.trim_ascii_start().first() {
            Some(b'{') => Ok(bytes),
            first => {
                let found =
                    if first == Some(&b'<') { "a web page" } else { "something else than JSON" };
                Err(HubError::NoHub { address: reply.address, found }.into())
            }
        }
    }

    /// The content of a path below the endpoint, or a part of it.
    pub(crate) fn get(
        &self,
        path: &str,
        about: About<'_>,
        wanted: Wanted<'_>,
    ) -> Result<Reply, Failure> {
        self.send(path, about, wanted, false)
    }

    /// What the hub says of a file, without its content.
    pub(crate) fn facts(&self, path: &str, about: About<'_>) -> Result<Facts, Failure> {
        let reply = self.send(path, about, Wanted::default(), true)?;
        let size = reply.facts.size.or(reply.length);
        Ok(Facts { size, ..reply.facts })
    }

    fn send(
        &self,
        path: &str,
        about: About<'_>,
        wanted: Wanted<'_>,
        head: bool,
    ) -> Result<Reply, Failure> {
        let mut uri = self.address(&format!("{}{path}", self.endpoint_text))?;
        let mut facts = Facts::default();
        for _ in 0..=MAX_REDIRECTS {
            let at_hub = same_origin(&uri, &self.endpoint);
            let response = self.ask(&uri, wanted, head, at_hub)?;
            if at_hub {
                facts = facts_of(&response);
            }
            match response.status().as_u16() {
                // What the hub links to may refuse this method.
                300..=399 if head && facts.size.is_some() && facts.tag.is_some() => {
                    return Ok(reply(&uri, facts, response));
                }
                status @ (301 | 302 | 303 | 307 | 308) => {
                    let location = header(response.headers(), "location");
                    uri = self.next(&uri, status, location)?;
                }
                200 | 206 | 416 => return Ok(reply(&uri, facts, response)),
                _ => return Err(self.refusal(&uri, at_hub, about, &response)),
            }
        }
        let reason = format!("more than {MAX_REDIRECTS} redirects");
        Err(HubError::Answer { host: host(&uri), reason }.into())
    }

    fn ask(
        &self,
        uri: &Uri,
        wanted: Wanted<'_>,
        head: bool,
        at_hub: bool,
    ) -> Result<Response<ureq::Body>, Failure> {
        let agent = self.agent(uri)?;
        let mut request = if head { agent.head(uri.clone()) } else { agent.get(uri.clone()) };
        if let Some(authorization) = self.authorization.as_ref().filter(|_| at_hub) {
            request = request.header("authorization", authorization);
        }
        if let Some((first, last)) = wanted.range {
            let last = last.map_or_else(String::new, |last| last.to_string());
            request = request.header("range", format!("bytes={first}-{last}"));
            // Storage behind the hub has tags of its own.
            if let Some(tag) = wanted.if_tag.filter(|_| at_hub) {
                request = request.header("if-range", format!("\"{tag}\""));
            }
        }
        request.call().map_err(|error| self.unsent(uri, error))
    }

    /// A request that brought no answer. What only a change of settings can mend is not tried again.
    fn unsent(&self, uri: &Uri, error: ureq::Error) -> Failure {
        let network = |reason| HubError::Network { host: host(uri), reason };
        match error {
            // rustls speaks through the reader that wraps it; a bad certificate stays one.
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                Failure::Lasting(network(error.to_string()))
            }
            ureq::Error::Io(error) => Failure::passing(self.broken(&host(uri), &error)),
            ureq::Error::Timeout(which) => Failure::passing(network(self.late(which))),
            error @ (ureq::Error::HostNotFound
            | ureq::Error::Protocol(_)
            | ureq::Error::ConnectionFailed
            | ureq::Error::ConnectProxyFailed(_)) => Failure::passing(network(error.to_string())),
            error => Failure::Lasting(network(error.to_string())),
        }
    }

    /// A body that ended before its end.
    pub(crate) fn broken(&self, host: &str, error: &io::Error) -> HubError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let reason = match inner {
            Some(ureq::Error::Timeout(which)) => self.late(*which),
            _ => error.to_string(),
        };
        HubError::Network { host: host.to_owned(), reason }
    }

    /// What did not happen in time.
    fn late(&self, which: ureq::Timeout) -> String {
        let (what, limit) = match which {
            ureq::Timeout::Resolve | ureq::Timeout::Connect => ("no connection", self.timeout),
            ureq::Timeout::RecvResponse => ("none", self.timeout.saturating_mul(RESPONSE_READS)),
            _ => ("not a byte", self.timeout),
        };
        format!("{what} within {} s (HF_HUB_DOWNLOAD_TIMEOUT)", limit.as_secs_f64())
    }

    fn agent(&self, uri: &Uri) -> Result<Agent, HubError> {
        if uri.scheme_str() != Some("https") {
            return Ok(self.plain.clone());
        }
        let mut secure = self.secure.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *secure {
            Some(agent) => Ok(agent.clone()),
            none => {
                let agent = agent(self.timeout, self.proxy, Some(tls::config()?));
                Ok(none.insert(agent).clone())
            }
        }
    }

    fn address(&self, text: &str) -> Result<Uri, HubError> {
        text.parse().map_err(|_| HubError::Answer {
            host: self.host(),
            reason: format!("an address {:?}", shown(text)),
        })
    }

    /// Where a redirect leads.
    fn next(&self, from: &Uri, status: u16, location: Option<&str>) -> Result<Uri, HubError> {
        let wrong = |reason| HubError::Answer { host: host(from), reason };
        let location =
            location.ok_or_else(|| wrong(format!("status {status} without a location")))?;
        let scheme = from.scheme_str().unwrap_or_default();
        let text = match location {
            _ if location.starts_with("//") => format!("{scheme}:{location}"),
            _ if location.starts_with('/') => {
                format!("{scheme}://{}{location}", from.authority().map_or("", |a| a.as_str()))
            }
            _ => location.to_owned(),
        };
        let to: Uri =
            text.parse().map_err(|_| wrong(format!("a redirect to {:?}", shown(&text))))?;
        match to.scheme_str() {
            Some("https") => Ok(to),
            Some("http") if scheme == "http" => Ok(to),
            _ => Err(wrong(format!("a redirect from {scheme} to {:?}", shown(&text)))),
        }
    }

    fn refusal(
        &self,
        uri: &Uri,
        at_hub: bool,
        about: About<'_>,
        response: &Response<ureq::Body>,
    ) -> Failure {
        let status = response.status().as_u16();
        let host = host(uri);
        let what = match about {
            About::Revision { repo, revision } => format!("{repo}@{revision}"),
            About::File { file, .. } => file.to_owned(),
        };
        let after = header(response.headers(), "retry-after")
            .and_then(|text| retry_after(text, SystemTime::now()))
            .or_else(|| header(response.headers(), "ratelimit").and_then(reset_of));
        let passing = matches!(status, 408 | 425 | 429 | 500..=599);
        // An address that the hub signed may have run out: it gives another one.
        if passing || !at_hub {
            return Failure::Passing { error: HubError::Status { host, status, what }, after };
        }
        let code = header(response.headers(), "x-error-code").unwrap_or_default();
        Failure::Lasting(self.meaning(status, code, about, host, what))
    }

    /// What the hub means by a status. It answers 401 for repositories that it does not show.
    fn meaning(
        &self,
        status: u16,
        code: &str,
        about: About<'_>,
        host: String,
        what: String,
    ) -> HubError {
        let repo = about.repo().to_string();
        let (endpoint, with_token) = (self.endpoint_text.clone(), self.authorization.is_some());
        match (status, code, about) {
            (_, "GatedRepo", _) => HubError::Gated { repo, endpoint, with_token },
            (_, "RepoNotFound", _) => HubError::RepoNotFound { repo, endpoint, with_token },
            (404, "EntryNotFound", About::File { file, .. })
            | (404, "", About::File { file, .. }) => {
                HubError::FileNotFound { repo, file: file.to_owned() }
            }
            (404, "RevisionNotFound", About::Revision { revision, .. }) => {
                let revision = revision.to_owned();
                HubError::RevisionNotFound { repo, revision, endpoint }
            }
            (404, _, About::Revision { revision, .. }) if revision != "main" => {
                let revision = revision.to_owned();
                HubError::RevisionNotFound { repo, revision, endpoint }
            }
            (401 | 404, _, About::Revision { .. }) if !with_token || status == 404 => {
                HubError::RepoNotFound { repo, endpoint, with_token }
            }
            (401 | 403, _, _) => HubError::Access { repo, endpoint, status, with_token },
            _ => HubError::Status { host, status, what },
        }
    }
}

fn agent(timeout: Duration, proxy: bool, tls: Option<TlsConfig>) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(USER_AGENT)
        // A body that was packed on the way has another length and another hash.
        .accept_encoding("identity")
        .timeout_resolve(Some(timeout))
        .timeout_connect(Some(timeout))
        .timeout_recv_response(Some(timeout.saturating_mul(RESPONSE_READS)))
        .timeout_per_read(Some(timeout))
        .timeout_per_write(Some(timeout));
    let config = if proxy { config } else { config.proxy(None) };
    let config = match tls {
        Some(tls) => config.tls_config(tls),
        None => config,
    };
    config.build().new_agent()
}

fn reply(uri: &Uri, facts: Facts, response: Response<ureq::Body>) -> Reply {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let headers = response.headers();
    Reply {
        status: response.status().as_u16(),
        facts,
        length: header(headers, "content-length").and_then(number),
        part: header(headers, "content-range").and_then(content_range),
        host: host(uri),
        address: shown(&without_query(uri)),
        body: Box::new(response.into_body().into_reader()),
    }
}

fn facts_of(response: &Response<ureq::Body>) -> Facts {
    let headers = response.headers();
    let tag = header(headers, "x-linked-etag").or_else(|| {
        // The tag of a redirect is that of the redirect.
        let direct = response.status().is_success();
        header(headers, "etag").filter(|_| direct)
    });
    let size = header(headers, "x-linked-size").and_then(|text| text.trim().parse().ok());
    let (strong, tag) = match tag.map(str::trim) {
        Some(tag) => {
            (!tag.starts_with("W/"), tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"'))
        }
        None => (false, ""),
    };
    Facts { tag: Some(tag.to_owned()).filter(|tag| !tag.is_empty()), strong, size }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// First byte and whole length of `bytes 5-9/10`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let first = range.split_once('-')?.0.trim().parse().ok()?;
    match total.trim() {
        "*" => Some((first, None)),
        total => Some((first, Some(total.parse().ok()?))),
    }
}

pub(crate) fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 })
    };
    let same_host = match (a.host(), b.host()) {
        (Some(a), Some(b)) => a.eq_ignore_ascii_case(b),
        _ => false,
    };
    same_host && a.scheme_str() == b.scheme_str() && port(a) == port(b)
}

fn host(uri: &Uri) -> String {
    uri.authority().map_or_else(|| "the hub".to_owned(), |authority| authority.to_string())
}

fn without_query(uri: &Uri) -> String {
    format!("{}://{}{}", uri.scheme_str().unwrap_or("http"), host(uri), uri.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let hub = uri("https://hub.example/x");
        assert!(same_origin(&uri("https://HUB.example:443/y"), &hub));
        for other in [
            "http://hub.example/x",
            "https://hub.example:444/x",
            "https://cdn.hub.example/x",
            "https://hub.example.evil/x",
        ] {
            assert!(!same_origin(&uri(other), &hub), "{other}");
        }
    }

    #[test]
    fn content_ranges_are_read_or_ignored() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0, None)));
        for text in
            ["", "bytes", "bytes */10", "5-9/10", "bytes 5-9", "bytes x-9/10", "bytes 5-9/x"]
        {
            assert_eq!(content_range(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_redirect_never_leaves_encryption() {
        let settings = Settings {
            endpoint: "https://hub.example".into(),
            cache: "/x".into(),
            token: None,
            offline: false,
            timeout: Duration::from_secs(1),
            proxy: false,
        };
        let client = Client::new(&settings).unwrap();
        let from = uri("https://hub.example/a/b");
        let next = |location| client.next(&from, 302, Some(location)).map(|uri| uri.to_string());
        assert_eq!(next("/c?d").unwrap(), "https://hub.example/c?d");
        assert_eq!(next("//cdn.example/c").unwrap(), "https://cdn.example/c");
        assert_eq!(next("https://cdn.example/c").unwrap(), "https://cdn.example/c");
        for bad in ["http://cdn.example/c", "file:///etc/passwd", "c", "", "https://"] {
            assert!(next(bad).is_err(), "{bad}");
        }
        assert!(client.next(&from, 302, None).is_err());
    }
}
