//! Scripts of `tests/python`, run where Python has what they need.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Runs a script, which must succeed. Without Python or `package` it is skipped,
/// unless `LILY_REQUIRE_PYTHON=1` is set.
pub(crate) async fn run(script: &str, package: &'static str, args: Vec<String>) {
    let import = format!("import {package}");
    let found = Command::new("python3").args(["-c", &import]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        let required = std::env::var("LILY_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
        assert!(!required, "python3 with the {package} package is missing");
        // Written past the capture of passing tests, so that a skip is seen.
        drop(writeln!(std::io::stderr(), "skipped: python3 with the {package} package is missing"));
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python").join(script);
    let ran = tokio::task::spawn_blocking(move || {
        // Python would leave its byte code beside the script.
        Command::new("python3").arg("-B").arg(script).args(args).output()
    });
    let output = ran.await.unwrap().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
