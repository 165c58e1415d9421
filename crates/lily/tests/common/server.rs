//! A server that a test asks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};

/// `lily serve` with the demo model, on a port of the system's choice; it ends with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) stderr: BufReader<ChildStderr>,
    /// The line that told of its readiness.
    pub(crate) ready: String,
}

impl Server {
    pub(crate) fn start(flags: &[&str]) -> Server {
        Server::start_with(flags, &[])
    }

    pub(crate) fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lily"))
            .args(["serve", "--port=0", "--device=cpu", "--threads=1"])
            .args(flags)
            .env_remove("LILY_MODEL_PATH")
            .env_remove("LILY_API_KEY")
            .env_remove("LILY_API_KEY_FILE")
            .env_remove("LILY_LOG")
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut ready = String::new();
        while !ready.contains("serving ") {
            if flags.contains(&"--log-format=json") && !ready.is_empty() {
                let line: serde_json::Value = serde_json::from_str(&ready).unwrap();
                assert_eq!(line["level"], "INFO");
                assert_eq!(line["message"], "loading lily-demo");
                assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
            }
            ready.clear();
            assert_ne!(stderr.read_line(&mut ready).unwrap(), 0, "it ended before it served");
        }
        Server { child, stderr, ready }
    }

    /// Sends a request on a connection of its own and returns the whole response.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> String {
        self.ask_with(method, path, "", body)
    }

    /// [`Server::ask`] with more headers, each with its line end.
    pub(crate) fn ask_with(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let (_, rest) = self.ready.split_once("http://").unwrap();
        let mut connection = TcpStream::connect(rest.split_once('/').unwrap().0).unwrap();
        let length = body.len();
        write!(
            connection,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             {headers}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        response
    }

    /// Ends it as Ctrl-C does and returns what else it said.
    pub(crate) fn end(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }

    /// Where it listens, without a path.
    pub(crate) fn url(&self) -> String {
        let url = self.ready.split_whitespace().find(|word| word.starts_with("http://"));
        url.unwrap().trim_end_matches("/v1").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
