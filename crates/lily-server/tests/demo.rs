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

#[tokio::test]
async fn a_prompt_that_is_echoed_has_the_log_probabilities_with_which_it_was_written() {
    let client = demo::start(options()).await;
    let start = json!({"prompt": "The capital of Japan is", "max_tokens": 8, "temperature": 0});
    let ask = async |more: Value| {
        let mut request = start.clone();
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response = client.post("/v1/completions", &request).await;
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["choices"][0].clone()
    };
    let written = ask(json!({"logprobs": 2})).await;
    let whole = ask(json!({"logprobs": 2, "echo": true})).await;
    let text = format!("The capital of Japan is{}", written["text"].as_str().unwrap());
    assert_eq!(whole["text"], text);
    let echoed = ask(json!({"prompt": text, "logprobs": 2, "echo": true, "max_tokens": 0})).await;
    assert_eq!(echoed["text"], text);
    assert_eq!(echoed["logprobs"]["tokens"], whole["logprobs"]["tokens"]);
    assert_eq!(echoed["logprobs"]["text_offset"], whole["logprobs"]["text_offset"]);
    assert_eq!(echoed["logprobs"]["token_logprobs"][0], Value::Null);
    assert_eq!(echoed["logprobs"]["top_logprobs"][0], Value::Null);

    let values = |choice: &Value| -> Vec<f64> {
        let values = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        values.iter().filter_map(Value::as_f64).collect()
    };
    let (echoed, whole, written) = (values(&echoed), values(&whole), values(&written));
    assert!(echoed.len() > written.len());
    for (place, (echoed, whole)) in echoed.iter().zip(&whole).enumerate() {
        assert!((echoed - whole).abs() < 1e-3, "{place}: {echoed} {whole}");
    }
    for (echoed, written) in echoed.iter().rev().zip(written.iter().rev()) {
        assert!((echoed - written).abs() < 1e-3, "{echoed} {written}");
    }
}

#[tokio::test]
async fn a_streamed_echo_holds_the_same_log_probabilities() {
    let client = demo::start(options()).await;
    let mut request = json!({
        "prompt": ["Tokyo is", "Two plus two"], "max_tokens": 3, "temperature": 0, "logprobs": 1,
        "echo": true,
    });
    let whole = client.post("/v1/completions", &request).await.json()["choices"].clone();
    request["stream"] = true.into();
    let events = client.post("/v1/completions", &request).await.events();
    for (index, whole) in whole.as_array().unwrap().iter().enumerate() {
        let own = || events.iter().filter(|event| event["choices"][0]["index"] == index);
        let text: String = own().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(whole["text"], text);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let joined: Vec<Value> = own()
                .filter_map(|event| event["choices"][0]["logprobs"][list].as_array())
                .flatten()
                .cloned()
                .collect();
            assert_eq!(whole["logprobs"][list], Value::Array(joined), "{list}");
        }
    }
}
