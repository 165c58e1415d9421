//! The whole way from a request to the demo model and back.

mod common;

use common::chat;
use common::client::Client;
use common::demo;
use common::options;
use common::weather_tool;
use serde_json::Value;
use serde_json::json;

/// Fields for a greedy answer to one question.
fn ask(question: &str, extra: Value) -> Value {
    let mut fields = json!({
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
    });
    fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    chat(fields)
}

async fn choice(client: &Client, body: &Value) -> Value {
    let response = client.chat(body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["choices"][0].clone()
}

#[tokio::test]
async fn the_demo_model_answers_thinks_calls_tools_and_streams_the_same() {
    let client = demo::start(options()).await;

    let capital = ask("What is the capital of Japan?", json!({}));
    let answer = choice(&client, &capital).await;
    assert_eq!(answer["message"]["content"], "The capital of Japan is Tokyo.");
    assert_eq!(answer["finish_reason"], "stop");
    assert!(answer["message"].get("reasoning_content").is_none());

    let sum = ask("What is 127 + 58?", json!({"enable_thinking": true}));
    let thought = choice(&client, &sum).await;
    assert!(thought["message"]["content"].as_str().unwrap().contains("185"), "{thought}");
    assert!(!thought["message"]["reasoning_content"].as_str().unwrap().is_empty());

    let weather = ask("What is the weather in Lisbon?", json!({"tools": weather_tool()}));
    let called = choice(&client, &weather).await;
    assert_eq!(called["finish_reason"], "tool_calls");
    let function = &called["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "get_weather");
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["city"], "Lisbon");

    for (request, whole) in [(capital, answer), (sum, thought), (weather, called)] {
        let mut streaming = request;
        streaming["stream"] = json!(true);
        let events = client.chat(&streaming).await.events();
        for field in ["content", "reasoning_content"] {
            let parts = events.iter().filter_map(|e| e["choices"][0]["delta"][field].as_str());
            let joined: String = parts.collect();
            assert_eq!(joined, whole["message"][field].as_str().unwrap_or_default());
        }
        let deltas = events.iter().map(|e| &e["choices"][0]["delta"]["tool_calls"][0]["function"]);
        let joined: String = deltas.filter_map(|delta| delta["arguments"].as_str()).collect();
        let call = &whole["message"]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(joined, call.as_str().unwrap_or_default());
    }
}

#[tokio::test]
async fn the_same_seed_gives_the_same_text() {
    let client = demo::start(options()).await;
    let body = ask("Hello!", json!({"temperature": 1.5, "seed": 7, "max_tokens": 24}));
    let first = choice(&client, &body).await;
    assert_eq!(choice(&client, &body).await, first);
}

#[tokio::test]
async fn one_token_at_most_is_one_token_and_length() {
    let client = demo::start(options()).await;
    let body = ask("What is the capital of Japan?", json!({"max_tokens": 1}));
    let response = client.chat(&body).await.json();
    assert_eq!(response["usage"]["completion_tokens"], 1);
    assert_eq!(response["choices"][0]["finish_reason"], "length");
}
