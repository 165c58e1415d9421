//! curl: a request to start from.

use serde_json::json;

use crate::commands::connect::server::Server;
use crate::commands::connect::settings::{Facts, Settings, shell};

pub(super) const FACTS: Facts = Facts {
    title: "curl",
    kind: "one request",
    install: "your system's package curl",
    documentation: "https://curl.se/docs/manpage.html",
    read: "2026-11-30",
    least: 0,
};

pub(super) fn settings(server: &Server) -> Settings {
    let body = json!({
        "model": server.model,
        "messages": [{ "role": "user", "content": "What is the capital of Japan?" }],
    });
    let url = format!("{}/chat/completions", server.base.v1());
    let mut lines = vec![format!("curl {}", shell(&url))];
    if server.key.is_some() {
        lines.push(r#"  -H "authorization: Bearer $LILY_API_KEY""#.into());
    }
    lines.push("  -H 'content-type: application/json'".into());
    lines.push(format!("  -d {}", shell(&body.to_string())));
    Settings { example: lines.join(" \\\n"), ..Settings::default() }
}
