//! The official Python client against the demo model: `tests/python/openai_client.py`.
//!
//! Skipped where Python or its `openai` package is missing, unless
//! `LILY_REQUIRE_PYTHON=1` is set.

use std::io::Write as _;
mod common;

use std::path::Path;
use std::process::Command;

use common::demo;
use common::options;
use lily_server::ApiKeys;
use lily_server::ServerOptions;

#[tokio::test]
async fn the_openai_client_works_against_the_demo_model() {
    let found = Command::new("python3").args(["-c", "import openai"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        let required = std::env::var("LILY_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
        assert!(!required, "python3 with the openai package is missing");
        // Written past the capture of passing tests, so that a skip is seen.
        drop(writeln!(std::io::stderr(), "skipped: python3 with the openai package is missing"));
        return;
    }
    let options = ServerOptions {
        api_keys: ApiKeys::new(["secret"]).unwrap(),
        model_name: "demo".to_owned(),
        ..options()
    };
    let client = demo::start(options).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/openai_client.py");
    let base_url = format!("http://{}/v1", client.address);
    let ran = tokio::task::spawn_blocking(move || {
        Command::new("python3").arg(script).args([&base_url, "secret"]).output()
    });
    let output = ran.await.unwrap().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
