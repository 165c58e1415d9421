//! What schemathesis makes of the OpenAPI document: `tests/python/openapi_examples.py`.
//!
//! Skipped where Python or its `schemathesis` package is missing, unless
//! `LILY_REQUIRE_PYTHON=1` is set.

mod common;

use common::demo;
use common::options;
use common::python;

#[tokio::test]
async fn the_server_keeps_to_its_openapi_document() {
    let client = demo::start(options()).await;
    let url = format!("http://{}", client.address);
    python::run("openapi_examples.py", "schemathesis", vec![url]).await;
}
