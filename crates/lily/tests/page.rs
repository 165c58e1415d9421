//! The chat page of `lily serve` in headless Chromium: `page/e2e`.
//!
//! Skipped where Node, Chromium or the npm packages of `page/` are missing,
//! unless `LILY_REQUIRE_CHROMIUM=1` is set.

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// What a browser test needs and this machine does not have.
fn missing(page: &Path) -> Option<&'static str> {
    let runs = |program: &str| {
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    if !runs("node") {
        Some("node")
    } else if env::var_os("CHROMIUM").is_none() && !browsers.into_iter().any(runs) {
        Some("Chromium")
    } else if !page.join("node_modules/playwright-core").is_dir() {
        Some("page/node_modules (npm ci --ignore-scripts in page/)")
    } else {
        None
    }
}

#[test]
fn the_page_does_in_a_browser_what_it_should() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../page");
    if let Some(missing) = missing(&page) {
        let required = env::var("LILY_REQUIRE_CHROMIUM").is_ok_and(|value| value == "1");
        assert!(!required, "{missing} is missing");
        // Written past the capture of passing tests, so that a skip is seen.
        drop(writeln!(std::io::stderr(), "skipped: {missing} is missing"));
        return;
    }
    let mut files: Vec<_> = std::fs::read_dir(page.join("e2e"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".test.js"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let output = Command::new("node")
        .args(["--test", "--test-concurrency=1", "--test-timeout=180000"])
        .args(files)
        .current_dir(&page)
        .env("LILY_BIN", env!("CARGO_BIN_EXE_lily"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
