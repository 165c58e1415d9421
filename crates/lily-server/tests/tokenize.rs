//! `/tokenize`, `/detokenize` and the list of models.

mod common;

use common::TestServer;
use common::chat;
use common::script::Reply;
use common::tokenizer;
use common::weather_tool;
use serde_json::json;

#[tokio::test]
async fn text_becomes_tokens_and_text_again() {
    let server = TestServer::start(Vec::new()).await;
    let text = "Hello, ď 👋 <|im_end|>\n";
    let ids = tokenizer().encode(text).unwrap();
    for name in ["prompt", "content"] {
        let body = server.client.post("/tokenize", &json!({name: text})).await.json();
        assert_eq!(
            body,
            json!({"count": ids.len(), "max_model_len": 4096, "tokens": ids, "token_strs": null})
        );
    }
    let response = server.client.post("/detokenize", &json!({"tokens": ids})).await;
    assert_eq!(response.json(), json!({"prompt": text}));
}

#[tokio::test]
async fn the_text_of_each_token_comes_where_asked_for() {
    let server = TestServer::start(Vec::new()).await;
    let request = json!({"prompt": "alpha<think>", "return_token_strs": true, "model": "m",
        "add_special_tokens": true});
    let body = server.client.post("/tokenize", &request).await.json();
    let strings = body["token_strs"].as_array().unwrap();
    assert_eq!(strings.len(), body["count"].as_u64().unwrap() as usize);
    assert_eq!(strings.last().unwrap(), "<think>");
    let joined: String = strings.iter().map(|string| string.as_str().unwrap()).collect();
    assert_eq!(joined, "alpha<think>");
}

#[tokio::test]
async fn a_conversation_has_the_tokens_that_its_completion_counts() {
    let server = TestServer::start(vec![Reply::Says("Hi.")]).await;
    let request = chat(json!({"tools": weather_tool()}));
    let completed = server.client.chat(&request).await.json();
    let body = server.client.post("/tokenize", &request).await.json();
    assert_eq!(body["count"], completed["usage"]["prompt_tokens"]);

    let mut open = chat(json!({}));
    let with = server.client.post("/tokenize", &open).await.json();
    open["add_generation_prompt"] = json!(false);
    open["enable_thinking"] = json!(null);
    let without = server.client.post("/tokenize", &open).await.json();
    let text = server.client.post("/detokenize", &json!({"tokens": without["tokens"]})).await;
    let text = text.json()["prompt"].as_str().unwrap().to_owned();
    assert!(text.ends_with("Hello<|im_end|>\n"), "{text}");
    assert!(with["count"].as_u64() > without["count"].as_u64());
}

#[tokio::test]
async fn bad_fields_are_refused_by_name() {
    let server = TestServer::start(Vec::new()).await;
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 1}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "content": "a"}), "content"),
        ("/tokenize", json!({"prompt": "a", "messages": []}), "messages"),
        ("/tokenize", json!({"messages": []}), "messages"),
        ("/tokenize", json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        ("/tokenize", json!({"prompt": "a", "add_special_tokens": "no"}), "add_special_tokens"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
        ("/detokenize", json!({"tokens": [1, "a"]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [999_999]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": [], "text": "a"}), "text"),
    ] {
        let response = server.client.post(path, &body).await;
        assert_eq!((response.status, response.error("param")), (400, json!(param)), "{body}");
    }
}

#[tokio::test]
async fn nothing_has_no_tokens() {
    let server = TestServer::start(Vec::new()).await;
    let body = server.client.post("/tokenize", &json!({"prompt": ""})).await.json();
    assert_eq!((&body["count"], &body["tokens"]), (&json!(0), &json!([])));
    let body = server.client.post("/detokenize", &json!({"tokens": []})).await.json();
    assert_eq!(body, json!({"prompt": ""}));
}

#[tokio::test]
async fn endpoints_for_other_models_are_a_404_that_says_so() {
    let server = TestServer::start(Vec::new()).await;
    for path in ["/v1/embeddings", "/v1/audio/speech", "/v1/images/generations", "/v1/files/f"] {
        let response = server.client.post(path, &json!({"input": "a"})).await;
        assert_eq!(response.status, 404, "{path}");
        assert_eq!(response.error("type"), "invalid_request_error");
        assert_eq!(response.error("code"), "unsupported_endpoint");
        let message = response.error("message");
        assert!(message.as_str().unwrap().contains(&path[..9]), "{message}");
    }
    let unknown = server.client.post("/v1/embeddingsx", &json!({})).await;
    assert_eq!(unknown.error("code"), "unknown_url");
}
