//! Scripts of `tests/python` and `tests/node`, run where there is what they need.

use std::io::Write as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// Runs a script, which must succeed. Without Python or `package` it is skipped,
/// unless `LILY_REQUIRE_PYTHON=1` is set.
pub(crate) async fn run(script: &str, package: &'static str, args: Vec<String>) {
    let mut probe = Command::new("python3");
    probe.arg("-c").arg(format!("import {package}"));
    let what = format!("python3 with the {package} package");
    if found(&mut probe, &what, "LILY_REQUIRE_PYTHON") {
        let mut command = Command::new("python3");
        // Python would leave its byte code beside the script.
        command.arg("-B").arg(folder("python").join(script)).args(args);
        succeed(command).await;
    }
}

/// [`run`] for Node, `LILY_REQUIRE_NODE` and what `npm ci` puts beside the script.
pub(crate) async fn run_node(script: &str, package: &'static str, args: Vec<String>) {
    let folder = folder("node");
    let mut probe = Command::new("node");
    probe.current_dir(&folder).arg("-e").arg(format!("import({package:?})"));
    let what = format!("node with the {package} package in tests/node");
    if found(&mut probe, &what, "LILY_REQUIRE_NODE") {
        let mut command = Command::new("node");
        command.arg(folder.join(script)).args(args);
        succeed(command).await;
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(name)
}

fn found(probe: &mut Command, what: &str, require: &str) -> bool {
    if probe.output().is_ok_and(|output| output.status.success()) {
        return true;
    }
    let required = std::env::var(require).is_ok_and(|value| value == "1");
    assert!(!required, "{what} is missing");
    // Written past the capture of passing tests, so that a skip is seen.
    drop(writeln!(std::io::stderr(), "skipped: {what} is missing"));
    false
}

async fn succeed(mut command: Command) {
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
