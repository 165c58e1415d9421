//! A hub with a model, and a user of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::{Run, demo};
use crate::fake::{self, Answer, Content, FakeHub, REPO, Request};

pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const QUESTION: &str = "What is the capital of Japan?";

/// The demo checkpoint as somebody might publish it.
pub(crate) fn published() -> Vec<Content> {
    let mut files = checkpoint(&demo().join("checkpoint"));
    for other in ["README.md", "picture.png", "pytorch_model.bin", "original/model.safetensors"] {
        files.push(Content::new(other, fake::noise(100, 5)));
    }
    files
}

pub(crate) fn checkpoint(folder: &Path) -> Vec<Content> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    named.map(|(name, path)| Content::new(&name, fs::read(path).unwrap())).collect()
}

/// A hub, and a home folder without anything in it.
pub(crate) struct Case {
    pub(crate) hub: FakeHub,
    pub(crate) home: TempDir,
}

impl Case {
    pub(crate) fn new(files: Vec<Content>) -> Self {
        Case { hub: FakeHub::start(files), home: TempDir::new().unwrap() }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
        for (name, _) in std::env::vars() {
            let of_others = ["HF_", "HUGGING", "LILY_", "SSL_CERT", "XDG_"];
            let proxy = name.to_ascii_lowercase().ends_with("_proxy");
            if proxy || of_others.iter().any(|start| name.starts_with(start)) {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("HF_ENDPOINT", self.hub.endpoint())
            .env("HOME", self.home.path())
            .env("LILY_DEVICE", "cpu")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn lily(&self, args: &[&str]) -> Run {
        self.lily_with(args, &[])
    }

    pub(crate) fn lily_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Run {
        finished(self.command(args).envs(variables.iter().copied()).output().unwrap())
    }

    pub(crate) fn pull(&self) -> Run {
        let run = self.lily(&["pull", REPO]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        run
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.home.path().join(".cache/huggingface/hub")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.cache().join("models--garden--lily-demo/blobs")
    }

    pub(crate) fn incomplete(&self) -> PathBuf {
        let weights = published().into_iter().find(|file| file.name == WEIGHTS).unwrap();
        self.blobs().join(format!("{}.incomplete", weights.tag()))
    }

    /// Starts a pull of which the weights stop after `bytes`, and waits until these are on the disk.
    pub(crate) fn stuck(&self, bytes: usize) -> Child {
        self.hub.twist(move |request, _, answer| match whole(request) {
            true => Answer { hold: Some(bytes), ..answer },
            false => answer,
        });
        let child = self.command(&["pull", REPO]).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let there = || fs::metadata(self.incomplete()).is_ok_and(|f| f.len() == bytes as u64);
        while !there() {
            assert!(Instant::now() < end, "the first bytes do not arrive");
            thread::sleep(Duration::from_millis(20));
        }
        self.hub.twist(|_, _, answer| answer);
        self.hub.forget_requests();
        child
    }
}

/// Whether a request is for the weights up to their end, not for their header.
pub(crate) fn whole(request: &Request) -> bool {
    request.is_for(WEIGHTS) && !matches!(request.range(), Some((0, Some(_))))
}

pub(crate) fn finished(output: Output) -> Run {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or(-1);
    Run { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}
