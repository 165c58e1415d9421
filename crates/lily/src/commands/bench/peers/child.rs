//! A child process whose output is read with limits on size and time.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{PeerError, Program, plain};
use crate::commands::interrupt::Companion;

/// Bytes of one line, and of all lines of a program that prints one document.
const LONGEST: usize = 4 << 20;
/// Bytes of standard error that are remembered, and lines of it that are shown.
const REMEMBERED: usize = 8 << 10;
const SHOWN: usize = 4;
/// How long a program whose output has ended may take to end itself.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct Child {
    process: Companion,
    program: String,
    stdin: Option<ChildStdin>,
    lines: Receiver<Line>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    /// Disconnected when standard error is at its end.
    silent: Receiver<()>,
    timeout: Duration,
}

enum Line {
    Text(String),
    TooLong,
}

impl Child {
    /// Starts the program with its own arguments and then these.
    pub(super) fn start<S: AsRef<OsStr>>(
        program: &Program,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Self, PeerError> {
        let shown = program.shown();
        let (command, own) = program.words.split_first().expect("a program has a name");
        let mut command = Command::new(command);
        command.args(own).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = Companion::spawn(&mut command).map_err(|source| match source.kind() {
            ErrorKind::NotFound => {
                PeerError::NotFound { program: shown.clone(), advice: program.advice }
            }
            _ => PeerError::Start { program: shown.clone(), source },
        })?;
        let (stdin, stdout, stderr) =
            process.look(|child| (child.stdin.take(), child.stdout.take(), child.stderr.take()));
        // One line waits while another is looked at: a flood stays in the pipe.
        let (sender, lines) = sync_channel(1);
        let (end, silent) = channel();
        let remembered = Arc::new(Mutex::new(VecDeque::new()));
        let memory = Arc::clone(&remembered);
        if let Some(stdout) = stdout {
            thread::spawn(move || read_lines(BufReader::new(stdout), &sender));
        }
        if let Some(stderr) = stderr {
            thread::spawn(move || remember(stderr, &memory, end));
        }
        let timeout = program.timeout;
        Ok(Child { process, program: shown, stdin, lines, stderr: remembered, silent, timeout })
    }

    pub(super) fn program(&self) -> String {
        self.program.clone()
    }

    /// Sends a request as one line.
    pub(super) fn send(&mut self, request: &Value) -> Result<(), PeerError> {
        let sent = match &mut self.stdin {
            Some(stdin) => writeln!(stdin, "{request}").and_then(|()| stdin.flush()),
            None => Ok(()),
        };
        sent.map_err(|_| self.died())
    }

    /// The next line, as JSON.
    pub(super) fn receive(&mut self) -> Result<Value, PeerError> {
        let line = match self.lines.recv_timeout(self.timeout) {
            Ok(Line::Text(line)) => line,
            Ok(Line::TooLong) => return Err(self.nonsense("a line without end", "")),
            Err(RecvTimeoutError::Timeout) => return Err(self.late()),
            Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
        };
        serde_json::from_str(&line).map_err(|_| self.nonsense("expected a line of JSON", &line))
    }

    /// All lines of a program that ends by itself, and well, within the time of one answer.
    pub(super) fn output(mut self) -> Result<String, PeerError> {
        self.stdin = None;
        let start = Instant::now();
        let mut text = String::new();
        loop {
            match self.lines.recv_timeout(self.timeout.saturating_sub(start.elapsed())) {
                Ok(Line::Text(line)) if text.len() + line.len() <= LONGEST => text += &line,
                Ok(_) => return Err(self.nonsense("output without end", "")),
                Err(RecvTimeoutError::Timeout) => return Err(self.late()),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        match self.wait() {
            Some(status) if status.success() => Ok(text),
            _ => Err(self.died()),
        }
    }

    /// An answer that cannot be used.
    pub(super) fn nonsense(&self, what: &str, found: &str) -> PeerError {
        PeerError::Nonsense {
            program: self.program(),
            what: what.to_owned(),
            found: plain(found, 120),
            stderr: self.last_lines(),
        }
    }

    fn late(&self) -> PeerError {
        let seconds = self.timeout.as_secs();
        PeerError::Timeout { program: self.program(), seconds, stderr: self.last_lines() }
    }

    fn died(&self) -> PeerError {
        let status = match self.wait() {
            Some(status) => status.to_string(),
            None => "it closed its output and went on".to_owned(),
        };
        // Its last words may still be on their way.
        let _ = self.silent.recv_timeout(GRACE);
        PeerError::Died { program: self.program(), status, stderr: self.last_lines() }
    }

    fn wait(&self) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.look(|child| child.try_wait().ok().flatten()) {
                return Some(status);
            }
            if start.elapsed() > GRACE {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn last_lines(&self) -> String {
        let bytes: Vec<u8> = {
            let remembered = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
            remembered.iter().copied().collect()
        };
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.len().saturating_sub(SHOWN);
        lines[last..].iter().map(|line| plain(line, 200)).collect::<Vec<_>>().join(" | ")
    }
}

fn read_lines(mut from: impl BufRead, to: &SyncSender<Line>) {
    loop {
        let mut line = Vec::new();
        let line = match from.by_ref().take(LONGEST as u64 + 1).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(read) if read > LONGEST => Line::TooLong,
            Ok(_) => Line::Text(String::from_utf8_lossy(&line).into_owned()),
        };
        let end = matches!(line, Line::TooLong);
        if to.send(line).is_err() || end {
            return;
        }
    }
}

/// Keeps the last bytes; `_end` is dropped with the last of them.
fn remember(mut from: impl Read, memory: &Mutex<VecDeque<u8>>, _end: Sender<()>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.extend(&buffer[..read]);
        let excess = memory.len().saturating_sub(REMEMBERED);
        memory.drain(..excess);
    }
}
