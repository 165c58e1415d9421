//! Bodies of many small parts: what a request costs must not grow with the square of their number.
//! Each of these took minutes once.

mod common;

use common::TestServer;
use common::chat;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

/// Parts of each body.
const MANY: usize = 150_000;

#[tokio::test]
async fn many_biases_are_read_and_the_wrong_one_is_named() {
    let server = TestServer::start(Vec::new()).await;
    let ids = || (0..4000).map(|id| (id.to_string(), json!(0)));
    let all: Map<String, Value> = ids().collect();
    let request = chat(json!({"logit_bias": all}));
    assert_eq!(server.client.chat(&request).await.status, 200);
    assert_eq!(server.calls.recv().unwrap().options.sampling.logit_bias.len(), 4000);

    let wrong = ids().chain((0..MANY).map(|n| (format!("x{n}"), json!(0))));
    let mut last_wrong: Map<String, Value> = wrong.collect();
    let response = server.client.chat(&chat(json!({"logit_bias": last_wrong}))).await;
    assert_eq!((response.status, response.error("param")), (400, json!("logit_bias.x0")));

    last_wrong = (0..MANY).map(|n| (n.to_string(), Value::Null)).take(4000).collect();
    last_wrong.insert("0007".to_owned(), json!(1));
    let response = server.client.chat(&chat(json!({"logit_bias": last_wrong}))).await;
    assert_eq!((response.status, response.error("param")), (400, json!("logit_bias.0007")));
}

#[tokio::test]
async fn many_calls_are_matched_to_their_results() {
    let server = TestServer::start(Vec::new()).await;
    let calls: Vec<Value> = (0..MANY / 2)
        .map(|n| json!({"type": "tool_use", "id": format!("c{n}"), "name": "f", "input": {}}))
        .collect();
    let mut results: Vec<Value> = (0..MANY / 2)
        .rev()
        .map(|n| json!({"type": "tool_result", "tool_use_id": format!("c{n}"), "content": ""}))
        .collect();
    results.pop();
    let messages = json!([
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]);
    let request = json!({"messages": messages, "max_tokens": 1});
    let response = server.client.post("/v1/messages", &request).await;
    assert_eq!(response.status, 400);
    let message = response.error("message");
    assert!(
        message.as_str().unwrap().contains("a tool call without a result: \"c0\""),
        "{message}"
    );
}

#[tokio::test]
async fn many_allowed_tools_are_found_among_many() {
    let server = TestServer::start(Vec::new()).await;
    let name = |n: usize| format!("f{n}");
    let wrapped = |n| json!({"type": "function", "function": {"name": name(n)}});
    let flat = |n| json!({"type": "function", "name": name(n)});
    let count = MANY / 2;
    let last = count - 1;
    let request = chat(json!({
        "tools": (0..count).map(wrapped).collect::<Vec<_>>(),
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": (1..=count).rev().map(wrapped).collect::<Vec<_>>(),
        }},
    }));
    let response = server.client.chat(&request).await;
    let param = "tool_choice.allowed_tools.tools[0].function.name";
    assert_eq!((response.status, response.error("param")), (400, json!(param)));

    let request = json!({
        "input": "Hello",
        "tools": (0..count).map(flat).collect::<Vec<_>>(),
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": vec![flat(last); count],
        },
    });
    let response = server.client.post("/v1/responses", &request).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let prompt = server.calls.recv().unwrap().prompt;
    assert!(prompt.contains(&format!("\"{}\"", name(last))) && !prompt.contains("\"f0\""));
}
