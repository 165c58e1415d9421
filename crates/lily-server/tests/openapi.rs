//! The OpenAPI document and what it describes.

mod common;

use common::TestServer;
use common::options;
use lily_server::ApiKeys;
use lily_server::ServerOptions;
use serde_json::Value;
use serde_json::json;

fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match value.as_str() {
                    Some(pointer) if name == "$ref" => found.push(pointer),
                    _ => references(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_reference_leads_somewhere_and_every_schema_is_used() {
    let server = TestServer::start(Vec::new()).await;
    let document = server.client.get("/openapi.json").await.json();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut found = Vec::new();
    references(&document, &mut found);
    for pointer in &found {
        let target = document.pointer(pointer.strip_prefix('#').unwrap());
        assert!(target.is_some(), "{pointer}");
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        // The schema of events has no other place to stand.
        let used = found.contains(&&*format!("#/components/schemas/{name}"));
        assert!(used || name == "ChatCompletionChunk", "{name}");
    }
}

#[tokio::test]
async fn the_document_needs_no_key_and_bounds_ids_by_the_vocabulary() {
    let options = ServerOptions { api_keys: ApiKeys::new(["secret"]).unwrap(), ..options() };
    let server = TestServer::with_options(options, Vec::new()).await;
    let response = server.client.get("/openapi.json").await;
    assert_eq!(response.status, 200);
    let last = common::tokenizer().len() - 1;
    assert_eq!(response.json()["components"]["schemas"]["TokenId"]["maximum"], last);
}

/// Every path of the document is there, with the method it has and no other.
#[tokio::test]
async fn every_described_route_is_served() {
    let server = TestServer::start(Vec::new()).await;
    let document = server.client.get("/openapi.json").await.json();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{name}", "scripted");
        for method in ["get", "post"] {
            let response = server.client.send(&method.to_uppercase(), &path, &[], b"").await;
            let described = item.get(method).is_some();
            let served = ![404, 405].contains(&response.status);
            assert_eq!(served, described, "{method} {path}: {}", response.status);
            let status = response.status.to_string();
            assert!(!described || item[method]["responses"].get(&status).is_some(), "{status}");
        }
    }
}

/// What the document calls a field of a request, the server reads.
#[tokio::test]
async fn every_described_field_is_known_to_its_route() {
    let server = TestServer::start(Vec::new()).await;
    let document = server.client.get("/openapi.json").await.json();
    let message = json!([{"role": "user", "content": "a"}]);
    for (path, schema, base) in [
        ("/v1/chat/completions", "ChatCompletionRequest", json!({"messages": message})),
        ("/v1/completions", "CompletionRequest", json!({"prompt": "a"})),
        ("/v1/messages", "MessagesRequest", json!({"messages": message, "max_tokens": 1})),
        ("/v1/messages/count_tokens", "MessagesCountRequest", json!({"messages": message})),
        ("/v1/responses", "ResponsesRequest", json!({"input": "a"})),
        ("/v1/responses/input_tokens", "ResponsesRequest", json!({"input": "a"})),
        ("/tokenize", "TokenizeTextRequest", json!({"prompt": "a"})),
        ("/tokenize", "TokenizeChatRequest", json!({"messages": message})),
        ("/detokenize", "DetokenizeRequest", json!({"tokens": []})),
    ] {
        let fields = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        for name in fields.keys() {
            let mut body = base.clone();
            // Of no type that any field has.
            body[name] = json!([[{"x": [1]}]]);
            let response = server.client.post(path, &body).await;
            assert_eq!(response.status, 400, "{path} {name}");
            assert_ne!(response.error("code"), "unknown_field", "{path} {name}");
            let message = response.error("message");
            let message = message.as_str().unwrap();
            assert!(message.starts_with(&format!("'{name}")), "{path} {name}: {message}");
            assert!(!message.ends_with("this server knows"), "{path} {name}: {message}");
        }
    }
}
