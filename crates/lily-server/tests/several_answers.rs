//! Several answers to one request (`n`).

mod common;

use common::TestServer;
use common::WEATHER_CALL;
use common::chat;
use common::demo;
use common::options;
use common::script::Reply;
use common::weather_tool;
use lily_server::ServerOptions;
use serde_json::Value;
use serde_json::json;

fn contents(body: &Value) -> Vec<&str> {
    let choices = body["choices"].as_array().unwrap().iter();
    choices.map(|choice| choice["message"]["content"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn each_answer_has_its_index_content_calls_and_reason() {
    let replies =
        || vec![Reply::Says("One."), Reply::RunsOutAfter("Two"), Reply::Says(WEATHER_CALL)];
    let server = TestServer::start(replies().into_iter().chain(replies()).collect()).await;
    let mut request = chat(json!({"n": 3, "tools": weather_tool()}));
    let whole = server.client.chat(&request).await.json();
    assert_eq!(contents(&whole), ["One.", "Two", ""]);
    let reasons: Vec<&Value> = whole["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| &choice["finish_reason"])
        .collect();
    assert_eq!(reasons, ["stop", "length", "tool_calls"]);
    assert!(whole["choices"][0]["message"].get("tool_calls").is_none());
    assert_eq!(whole["choices"][2]["message"]["tool_calls"][0]["function"]["name"], "get_weather");

    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let events = server.client.chat(&request).await.events();
    for choice in whole["choices"].as_array().unwrap() {
        let parts = events.iter().filter_map(|event| event["choices"].get(0));
        let parts: Vec<_> = parts.filter(|part| part["index"] == choice["index"]).collect();
        assert_eq!(parts[0]["delta"]["role"], "assistant");
        let content: String =
            parts.iter().filter_map(|part| part["delta"]["content"].as_str()).collect();
        assert_eq!(choice["message"]["content"], content);
        assert_eq!(parts.last().unwrap()["finish_reason"], choice["finish_reason"]);
        let reasons = parts.iter().filter(|part| part["finish_reason"].is_string());
        assert_eq!(reasons.count(), 1);
    }
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
}

#[tokio::test]
async fn the_prompt_is_counted_once_and_every_answer_s_tokens_are() {
    let server = TestServer::start((0..4).map(|_| Reply::Says("One two three.")).collect()).await;
    let one = server.client.chat(&chat(json!({}))).await.json()["usage"].clone();
    let three = server.client.chat(&chat(json!({"n": 3}))).await.json()["usage"].clone();
    assert_eq!(three["prompt_tokens"], one["prompt_tokens"]);
    let tokens = one["completion_tokens"].as_u64().unwrap();
    assert_eq!(three["completion_tokens"], 3 * tokens);
}

#[tokio::test]
async fn an_answer_that_meets_a_stop_string_does_not_end_the_others() {
    let replies = vec![Reply::Says("a stop b"), Reply::Says("c stop d")];
    let server = TestServer::start(replies).await;
    let body = server.client.chat(&chat(json!({"n": 2, "stop": " stop"}))).await.json();
    assert_eq!(contents(&body), ["a", "c"]);
}

#[tokio::test]
async fn the_answers_of_one_request_take_one_place_in_the_queue() {
    let options = ServerOptions { queue_limit: 0, ..options() };
    let replies = vec![Reply::Says("a"), Reply::Says("b"), Reply::Says("c")];
    let server = TestServer::with_options(options, replies).await;
    let response = server.client.chat(&chat(json!({"n": 3}))).await;
    assert_eq!(response.status, 200, "{}", response.body);
}

#[tokio::test]
async fn a_failure_in_a_later_answer_fails_the_request() {
    let server = TestServer::start(vec![Reply::Says("a"), Reply::FailsAfter("b")]).await;
    let response = server.client.chat(&chat(json!({"n": 2}))).await;
    assert_eq!((response.status, response.error("type")), (500, json!("server_error")));
}

#[tokio::test]
async fn each_answer_has_a_seed_of_its_own_and_the_first_that_of_the_request() {
    let server = TestServer::start(Vec::new()).await;
    assert_eq!(server.client.chat(&chat(json!({"n": 4, "seed": -1}))).await.status, 200);
    let seeds: Vec<u64> =
        server.calls.iter().take(4).map(|call| call.options.sampling.seed.unwrap()).collect();
    assert_eq!(seeds[0], u64::MAX);
    assert!((1..4).all(|n| !seeds[..n].contains(&seeds[n])), "{seeds:?}");
}

#[tokio::test]
async fn sampled_answers_differ_and_the_seed_brings_all_of_them_back() {
    let client = demo::start(options()).await;
    let fields = json!({
        "messages": [{"role": "user", "content": "Hello!"}],
        "n": 3, "temperature": 2, "top_k": 0, "top_p": 1, "seed": 7, "max_tokens": 24,
    });
    let three = client.chat(&chat(fields.clone())).await.json();
    assert_eq!(client.chat(&chat(fields.clone())).await.json()["choices"], three["choices"]);
    let texts = contents(&three);
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
    // The first is the one that a request for a single answer gets.
    let mut one = fields;
    one["n"] = json!(1);
    assert_eq!(client.chat(&chat(one)).await.json()["choices"][0], three["choices"][0]);
}

#[tokio::test]
async fn greedy_answers_are_all_the_same() {
    let client = demo::start(options()).await;
    let fields = json!({
        "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
        "n": 2, "temperature": 0,
    });
    let body = client.chat(&chat(fields)).await.json();
    assert_eq!(contents(&body), ["The capital of Japan is Tokyo."; 2]);
}
