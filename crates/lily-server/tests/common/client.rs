//! HTTP/1.1 by hand, so that a test decides what goes over the connection and
//! when it closes.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[derive(Clone, Copy)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// A field of the error object.
    pub(crate) fn error(&self, field: &str) -> Value {
        self.json()["error"][field].clone()
    }

    /// Name and JSON of each event that has a name.
    pub(crate) fn named_events(&self) -> Vec<(String, Value)> {
        let blocks = self.body.split("\n\n").filter(|block| block.starts_with("event: "));
        let pairs = blocks.map(|block| block.split_once('\n').unwrap());
        let parsed = pairs.map(|(event, data)| {
            let data = data.strip_prefix("data: ").unwrap();
            (event["event: ".len()..].to_owned(), serde_json::from_str(data).unwrap())
        });
        parsed.collect()
    }

    /// The JSON of each `data:` line but `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let json = data.filter(|data| *data != "[DONE]");
        json.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

impl Client {
    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], b"").await
    }

    /// Sends a JSON body.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Response {
        let body = serde_json::to_vec(body).unwrap();
        self.send("POST", path, &[("content-type", "application/json")], &body).await
    }

    pub(crate) async fn chat(&self, body: &Value) -> Response {
        read(&mut self.begin_chat(body).await).await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        read(&mut self.begin(method, path, headers, body).await).await
    }

    /// Sends a request and leaves the answer to be read.
    pub(crate) async fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TcpStream {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if method == "POST" {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        connection.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        connection
    }

    /// Sends these bytes and nothing else.
    pub(crate) async fn raw(&self, bytes: &str) -> TcpStream {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        connection.write_all(bytes.as_bytes()).await.unwrap();
        connection
    }

    /// A sample of `/metrics`; `None` where there is none yet.
    pub(crate) async fn metric(&self, sample: &str) -> Option<f64> {
        let metrics = self.get("/metrics").await.body;
        let mut lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
        lines.find(|(name, _)| *name == sample).map(|(_, value)| value.parse().unwrap())
    }

    /// Waits until a sample of `/metrics` has this value.
    pub(crate) async fn until_metric(&self, sample: &str, value: f64) {
        while self.metric(sample).await != Some(value) {
            tokio::task::yield_now().await;
        }
    }

    /// [`Client::begin`] for a chat request.
    pub(crate) async fn begin_chat(&self, body: &Value) -> TcpStream {
        let body = serde_json::to_vec(body).unwrap();
        let headers = [("content-type", "application/json")];
        self.begin("POST", "/v1/chat/completions", &headers, &body).await
    }
}

/// Reads a response to its end.
pub(crate) async fn read(connection: &mut TcpStream) -> Response {
    let mut bytes = Vec::new();
    connection.read_to_end(&mut bytes).await.unwrap();
    parse(bytes)
}

/// A whole response from its bytes.
pub(crate) fn parse(bytes: Vec<u8>) -> Response {
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
    let body = if chunked { dechunk(body) } else { body.to_owned() };
    Response { status, headers, body }
}

fn dechunk(mut rest: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").unwrap();
    }
}

/// Reads until `text` has come, and returns everything so far.
pub(crate) async fn read_until(connection: &mut TcpStream, text: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let read = connection.read_buf(&mut seen).await.unwrap();
        assert_ne!(read, 0, "{text:?} is not in {}", String::from_utf8_lossy(&seen));
    }
    String::from_utf8(seen).unwrap()
}
