//! A server that plays the hub on 127.0.0.1, and may be told to play it badly.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

pub(crate) const REPO: &str = "garden/lily-demo";
pub(crate) const COMMIT: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// A file of the repository; one that is `large` is known by its SHA-256.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) large: bool,
}

impl Content {
    pub(crate) fn new(name: &str, bytes: Vec<u8>) -> Self {
        Content { name: name.to_owned(), bytes, large: name.ends_with(".safetensors") }
    }

    pub(crate) fn tag(&self) -> String {
        match self.large {
            true => sha256(&self.bytes),
            false => git_blob(&self.bytes),
        }
    }

    fn listed(&self) -> Value {
        let size = self.bytes.len();
        let blob = git_blob(&self.bytes);
        match self.large {
            true => json!({
                "rfilename": self.name, "size": size, "blobId": blob,
                "lfs": {"sha256": self.tag(), "size": size, "pointerSize": 134},
            }),
            false => json!({"rfilename": self.name, "size": size, "blobId": blob}),
        }
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn git_blob(bytes: &[u8]) -> String {
    hex(&Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes without a pattern that a mistake could hide in.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// What a client asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// First byte and, where there is one, the last.
    pub(crate) fn range(&self) -> Option<(usize, Option<usize>)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()))
    }

    /// Whether it is about the content of this file.
    pub(crate) fn is_for(&self, file: &str) -> bool {
        self.path.ends_with(&format!("/{file}")) && !self.path.starts_with("/api/")
    }
}

/// What is answered, and how badly.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Hang up after so many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// Wait before each byte of the body.
    pub(crate) pace: Option<Duration>,
    /// Say nothing of the length: the end of the connection is that of the body.
    pub(crate) unmeasured: bool,
    /// Send nothing more after so many bytes of the body, and wait.
    pub(crate) hold: Option<usize>,
}

impl Answer {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let (headers, body) = (Vec::new(), body.into());
        Answer { status, headers, body, cut: None, pace: None, unmeasured: false, hold: None }
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.retain(|(n, _)| n != name);
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn cut(self, bytes: usize) -> Self {
        Answer { cut: Some(bytes), ..self }
    }

    pub(crate) fn redirect(to: &str) -> Self {
        Answer::new(302, "").with("location", to)
    }
}

/// Sees a request, how many came before it (of any kind), and the answer that is due; gives that or
/// another one.
type Twist = dyn Fn(&Request, usize, Answer) -> Answer + Send + Sync;

struct Shared {
    files: Vec<Content>,
    requests: Mutex<Vec<Request>>,
    twist: Mutex<Arc<Twist>>,
}

/// The server; it ends with the test's process.
pub(crate) struct FakeHub {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl FakeHub {
    pub(crate) fn start(files: Vec<Content>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let twist: Arc<Twist> = Arc::new(|_: &Request, _, answer| answer);
        let shared = Shared { files, requests: Mutex::default(), twist: Mutex::new(twist) };
        let shared = Arc::new(shared);
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                thread::spawn(move || drop(serve(&shared, stream)));
            }
        });
        FakeHub { address, shared }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn twist(
        &self,
        twist: impl Fn(&Request, usize, Answer) -> Answer + Send + Sync + 'static,
    ) {
        *self.shared.twist.lock().unwrap() = Arc::new(twist);
    }

    /// Answers the content requests for `file` with these one after another, then as is due.
    pub(crate) fn script(&self, file: &str, answers: Vec<fn(Answer) -> Answer>) {
        let (file, turn) = (file.to_owned(), Mutex::new(0));
        self.twist(move |request, _, answer| {
            if !request.is_for(&file) {
                return answer;
            }
            let mut turn = turn.lock().unwrap();
            *turn += 1;
            answers.get(*turn - 1).map_or(answer.clone(), |twist| twist(answer))
        });
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Requests for the content of a file.
    pub(crate) fn requests_for(&self, file: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.is_for(file)).collect()
    }

    pub(crate) fn forget_requests(&self) {
        self.shared.requests.lock().unwrap().clear();
    }

    /// Answers one request on a connection of any kind, for servers with TLS in front.
    pub(crate) fn answer(&self, stream: impl std::io::Read + Write) -> std::io::Result<()> {
        serve(&self.shared, stream)
    }
}

/// One request per connection.
fn serve(shared: &Shared, mut stream: impl std::io::Read + Write) -> std::io::Result<()> {
    let request = read_request(&mut stream)?;
    let before = {
        let mut requests = shared.requests.lock().unwrap();
        requests.push(request.clone());
        requests.len() - 1
    };
    let twist = Arc::clone(&shared.twist.lock().unwrap());
    let answer = twist(&request, before, due(shared, &request));
    let mut head = format!("HTTP/1.1 {} Status\r\nconnection: close\r\n", answer.status);
    if !answer.unmeasured && !answer.headers.iter().any(|(name, _)| name == "content-length") {
        head += &format!("content-length: {}\r\n", answer.body.len());
    }
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "HEAD" {
        return stream.flush();
    }
    let body = &answer.body[..answer.cut.unwrap_or(usize::MAX).min(answer.body.len())];
    if let Some(at) = answer.hold {
        stream.write_all(&body[..at.min(body.len())])?;
        stream.flush()?;
        // Until the client is gone, which this side does not hear of; tests end before.
        thread::sleep(Duration::from_secs(60));
        return Ok(());
    }
    match answer.pace {
        Some(pace) => {
            for byte in body {
                thread::sleep(pace);
                stream.write_all(&[*byte])?;
                stream.flush()?;
            }
        }
        None => stream.write_all(body)?,
    }
    stream.flush()
}

fn read_request(stream: &mut impl std::io::Read) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let mut next = || words.next().ok_or(std::io::ErrorKind::InvalidData);
    let (method, path) = (next()?, next()?);
    let mut headers = Vec::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(Request { method, path, headers })
}

/// What a good hub answers.
fn due(shared: &Shared, request: &Request) -> Answer {
    let path = request.path.split('?').next().unwrap_or_default();
    for revision in ["main", "v1", COMMIT] {
        if path == format!("/api/models/{REPO}/revision/{revision}") {
            let siblings: Vec<_> = shared.files.iter().map(Content::listed).collect();
            return Answer::new(200, json!({"sha": COMMIT, "siblings": siblings}).to_string());
        }
    }
    if path.starts_with(&format!("/api/models/{REPO}/")) {
        return Answer::new(404, "").with("x-error-code", "RevisionNotFound");
    }
    if path.starts_with("/api/") {
        return Answer::new(401, "").with("x-error-code", "RepoNotFound");
    }
    let prefix = format!("/{REPO}/resolve/{COMMIT}/");
    let name = path.strip_prefix(&prefix).or(path.strip_prefix("/storage/"));
    match shared.files.iter().find(|file| Some(file.name.as_str()) == name) {
        Some(file) => content(file, request),
        None => Answer::new(404, "").with("x-error-code", "EntryNotFound"),
    }
}

fn content(file: &Content, request: &Request) -> Answer {
    let (total, tag) = (file.bytes.len(), format!("\"{}\"", file.tag()));
    let fresh = request.header("if-range").is_none_or(|known| known == tag);
    let answer = match request.range().filter(|_| fresh) {
        Some((first, _)) if first >= total => {
            Answer::new(416, "").with("content-range", format!("bytes */{total}"))
        }
        Some((first, last)) => {
            let end = last.map_or(total, |last| total.min(last + 1));
            Answer::new(206, &file.bytes[first..end])
                .with("content-range", format!("bytes {first}-{}/{total}", end - 1))
        }
        None => Answer::new(200, file.bytes.clone()),
    };
    answer.with("etag", &tag).with("accept-ranges", "bytes")
}
