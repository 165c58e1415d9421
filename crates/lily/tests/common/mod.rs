//! Running the binary as a user does.

#![allow(dead_code, reason = "each test binary uses its own part")]

#[cfg(unix)]
pub(crate) mod server;

use std::env;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a run left behind.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `lily` with nothing on standard input and none of the caller's settings.
pub(crate) fn lily<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    lily_with_input(args, "")
}

pub(crate) fn lily_with_input<S: AsRef<OsStr>>(
    args: impl IntoIterator<Item = S>,
    input: &str,
) -> Run {
    run(args, input, &[])
}

pub(crate) fn lily_with_variables<S: AsRef<OsStr>>(
    args: impl IntoIterator<Item = S>,
    variables: &[(&str, &str)],
) -> Run {
    run(args, "", variables)
}

fn run<S: AsRef<OsStr>>(
    args: impl IntoIterator<Item = S>,
    input: &str,
    variables: &[(&str, &str)],
) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lily"))
        .args(args)
        .env_remove("LILY_MODEL_PATH")
        .env_remove("LILY_DEVICE")
        .env_remove("LILY_API_KEY")
        .env_remove("LILY_API_KEY_FILE")
        .env_remove("LILY_URL")
        .env_remove("LILY_LOG")
        // Whatever models the caller has.
        .env("HF_HUB_CACHE", "no-cache")
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // The program may end without reading: a closed pipe is its right.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("the binary ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Run {
        code: output.status.code().expect("not killed by a signal"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Runs `lily`, demands success, and returns standard output.
pub(crate) fn stdout<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let run = lily(args);
    assert_eq!(run.code, 0, "stderr: {}", run.stderr);
    run.stdout
}

/// As [`stdout`], parsed.
pub(crate) fn json<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Value {
    serde_json::from_str(&stdout(args)).expect("one JSON value on standard output")
}

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn demo() -> PathBuf {
    workspace().join("models/demo")
}

/// A folder of the shared reference data; `None` where that is missing and may be.
pub(crate) fn shared(folder: &str) -> Option<PathBuf> {
    let root =
        env::var_os("LILY_SHARED").map_or_else(|| workspace().join("../shared"), PathBuf::from);
    let path = root.join(folder);
    if path.exists() {
        return Some(path);
    }
    assert!(env::var_os("LILY_REQUIRE_SHARED").is_none_or(|v| v != "1"), "{path:?} is missing");
    eprintln!("skipped: shared/ is missing");
    None
}

/// A copy of the demo checkpoint that a test may damage.
pub(crate) fn demo_copy() -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    let files = std::fs::read_dir(demo().join("checkpoint")).expect("the demo checkpoint");
    for file in files.map(|f| f.expect("a file")) {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
    }
    copy
}
