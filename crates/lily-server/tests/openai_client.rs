//! The official Python client against the demo model: `tests/python/openai_client.py`.
//!
//! Skipped where Python or its `openai` package is missing, unless
//! `LILY_REQUIRE_PYTHON=1` is set.

mod common;

use common::demo;
use common::options;
use common::python;
use lily_server::ApiKeys;
use lily_server::ServerOptions;

#[tokio::test]
async fn the_openai_client_works_against_the_demo_model() {
    let options = ServerOptions {
        api_keys: ApiKeys::new(["secret"]).unwrap(),
        model_name: "demo".to_owned(),
        ..options()
    };
    let client = demo::start(options).await;
    let base_url = format!("http://{}/v1", client.address);
    python::run("openai_client.py", "openai", vec![base_url, "secret".to_owned()]).await;
}
