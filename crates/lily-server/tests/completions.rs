//! `/v1/completions`: text that goes on from a prompt.

mod common;

use common::TestServer;
use common::client::Client;
use common::client::Response;
use common::demo;
use common::options;
use common::script::Reply;
use common::tokenizer;
use serde_json::Value;
use serde_json::json;

const PATH: &str = "/v1/completions";

async fn complete(client: &Client, body: &Value) -> Value {
    let response = client.post(PATH, body).await;
    assert_eq!(response.status, 200, "{body} -> {}", response.body);
    response.json()
}

fn texts(body: &Value) -> Vec<&str> {
    let choices = body["choices"].as_array().unwrap().iter();
    choices.map(|choice| choice["text"].as_str().unwrap()).collect()
}

/// The text of one choice of a stream.
fn streamed(response: &Response, index: usize) -> String {
    let events = response.events();
    let parts = events.iter().filter_map(|event| event["choices"].get(0));
    let parts = parts.filter(|part| part["index"] == index);
    parts.map(|part| part["text"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_answer_has_openai_s_shape() {
    let server = TestServer::start(vec![Reply::Says(" a time")]).await;
    let body = complete(&server.client, &json!({"model": "x", "prompt": "Once upon"})).await;
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["model"], "scripted");
    let choice = json!({"index": 0, "text": " a time", "logprobs": null, "finish_reason": "stop"});
    assert_eq!(body["choices"], json!([choice]));
    let tokens = tokenizer().encode("Once upon").unwrap().len();
    assert_eq!(body["usage"]["prompt_tokens"], tokens);
}

#[tokio::test]
async fn the_prompt_goes_to_the_model_as_it_is() {
    let server = TestServer::start(Vec::new()).await;
    let ids = tokenizer().encode("a b").unwrap();
    for (prompt, seen) in [
        (json!(" Once <|im_start|>\n"), " Once <|im_start|>\n"),
        (json!(["Once"]), "Once"),
        (json!(ids), "a b"),
        (json!([ids]), "a b"),
    ] {
        complete(&server.client, &json!({"prompt": prompt})).await;
        let call = server.calls.recv().unwrap();
        assert_eq!(call.prompt, seen, "{prompt}");
        assert_eq!(call.options.max_tokens, Some(16));
        assert_eq!(call.options.sampling.temperature, 0.6);
    }
}

#[tokio::test]
async fn markup_means_nothing_in_a_plain_answer() {
    let text = " \n<think>\nx\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call> \n";
    let server = TestServer::start(vec![Reply::Says(text), Reply::Says(text)]).await;
    let body = complete(&server.client, &json!({"prompt": "a"})).await;
    assert_eq!(texts(&body), [text]);
    assert_eq!(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    let response = server.client.post(PATH, &json!({"prompt": "a", "stream": true})).await;
    assert_eq!(streamed(&response, 0), text);
}

#[tokio::test]
async fn each_prompt_gets_its_answers_in_order() {
    let replies = || ["1", "2", "3", "4"].into_iter().map(Reply::Says).collect::<Vec<_>>();
    let server = TestServer::start(replies().into_iter().chain(replies()).collect()).await;
    let request = json!({"prompt": ["a", "b c"], "n": 2, "best_of": 2, "echo": true});
    let body = complete(&server.client, &request).await;
    assert_eq!(texts(&body), ["a1", "a2", "b c3", "b c4"]);
    let prompts: Vec<String> = server.calls.try_iter().map(|call| call.prompt).collect();
    assert_eq!(prompts, ["a", "a", "b c", "b c"]);
    let tokens = ["a", "b c"].map(|text| tokenizer().encode(text).unwrap().len());
    assert_eq!(body["usage"]["prompt_tokens"], tokens.iter().sum::<usize>());

    let mut streaming = request;
    streaming["stream"] = json!(true);
    streaming["stream_options"] = json!({"include_usage": true});
    let response = server.client.post(PATH, &streaming).await;
    for (index, text) in texts(&body).into_iter().enumerate() {
        assert_eq!(streamed(&response, index), text);
    }
    assert_eq!(response.events().last().unwrap()["usage"], body["usage"]);
    assert!(response.body.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_prompt_may_be_echoed_alone() {
    let server = TestServer::start(vec![Reply::RunsOutAfter("")]).await;
    let ids = tokenizer().encode("<think>a").unwrap();
    let body =
        complete(&server.client, &json!({"prompt": ids, "echo": true, "max_tokens": 0})).await;
    assert_eq!(texts(&body), ["<think>a"]);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(server.calls.recv().unwrap().options.max_tokens, Some(0));
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it() {
    let server = TestServer::start(vec![Reply::Says("alpha \nbeta")]).await;
    let body = complete(&server.client, &json!({"prompt": "a", "stop": ["\n"]})).await;
    assert_eq!(texts(&body), ["alpha "]);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn log_probabilities_are_lists_with_the_place_of_each_token() {
    let text = "né 👋 日";
    let server = TestServer::start(vec![Reply::Says(text), Reply::Says(text)]).await;
    let mut request = json!({"prompt": "a", "logprobs": 2});
    let whole = complete(&server.client, &request).await["choices"][0]["logprobs"].clone();
    let ids = tokenizer().encode(text).unwrap();
    let list = |name: &str| whole[name].as_array().unwrap().clone();
    assert_eq!(list("tokens").len(), ids.len());
    assert!(list("token_logprobs").iter().all(|logprob| *logprob == -0.5));
    assert_eq!(list("top_logprobs").len(), ids.len());
    let mut bytes = Vec::new();
    for ((id, token), offset) in ids.iter().zip(list("tokens")).zip(list("text_offset")) {
        let tokenizer = tokenizer();
        let (token_bytes, _) = tokenizer.token_bytes(*id).unwrap();
        let before = String::from_utf8_lossy(&bytes).into_owned();
        let whole = !before.contains('\u{fffd}');
        if let (true, Ok(token_text)) = (whole, std::str::from_utf8(token_bytes)) {
            assert_eq!(token, token_text);
            assert_eq!(offset, before.chars().count());
        } else if std::str::from_utf8(token_bytes).is_err() {
            assert!(token.as_str().unwrap().starts_with("bytes:\\x"), "{token}");
        }
        bytes.extend_from_slice(token_bytes);
    }
    request["stream"] = json!(true);
    let events = server.client.post(PATH, &request).await.events();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts = events.iter().filter_map(|e| e["choices"][0]["logprobs"][name].as_array());
        assert_eq!(parts.flatten().cloned().collect::<Vec<_>>(), list(name), "{name}");
    }
}

#[tokio::test]
async fn each_bad_field_is_refused_by_name() {
    let server = TestServer::start(Vec::new()).await;
    let mut wrong = Vec::new();
    for (fields, param) in [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": 7}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [""]}), "prompt[0]"),
        (json!({"prompt": ["a", 1]}), "prompt[1]"),
        (json!({"prompt": [1, "a"]}), "prompt[1]"),
        (json!({"prompt": [[]]}), "prompt[0]"),
        (json!({"prompt": [1, -1]}), "prompt[1]"),
        (json!({"prompt": [1.5]}), "prompt[0]"),
        (json!({"prompt": [[1], [999_999]]}), "prompt[1][0]"),
        (json!({"prompt": vec!["a"; 129]}), "prompt"),
        (json!({"prompt": vec!["a"; 9], "n": 16}), "prompt"),
        (json!({"prompt": "one two three four ".repeat(2000)}), "prompt"),
        (json!({"suffix": "b"}), "suffix"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"n": 2, "best_of": 3}), "best_of"),
        (json!({"n": 17}), "n"),
        (json!({"echo": 1}), "echo"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": "16"}), "max_tokens"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
        (json!({"stop": 1}), "stop"),
        (json!({"messages": []}), "messages"),
        (json!({"enable_thinking": true}), "enable_thinking"),
    ] {
        let mut body = json!({"prompt": "a"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let response = server.client.post(PATH, &body).await;
        if response.status != 400 || response.error("param") != param {
            wrong.push(format!("{fields} -> {} {}", response.status, response.body));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(server.calls.try_recv().is_err(), "a bad request reached the generator");
}

#[tokio::test]
async fn the_demo_model_goes_on_from_text_and_from_its_tokens_alike() {
    let client = demo::start(options()).await;
    let prompt = "<|im_start|>user\nWhat is the capital of Japan?<|im_end|>\n<|im_start|>assistant\n\
                  <think>\n\n</think>\n\n";
    let request = json!({"prompt": prompt, "temperature": 0, "max_tokens": 32});
    let body = complete(&client, &request).await;
    assert_eq!(texts(&body), ["The capital of Japan is Tokyo."]);
    let tokens = client.post("/tokenize", &json!({"prompt": prompt})).await.json();
    let request = json!({
        "prompt": [tokens["tokens"], prompt], "temperature": 0, "max_tokens": 32, "logprobs": 1,
    });
    let body = complete(&client, &request).await;
    assert_eq!(texts(&body), ["The capital of Japan is Tokyo."; 2]);
    let logprobs = &body["choices"][0]["logprobs"];
    let joined: String = logprobs["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token.as_str().unwrap())
        .collect();
    assert_eq!(joined, "The capital of Japan is Tokyo.");
    let likely = |logprob: &Value| logprob.as_f64().unwrap() <= 0.0;
    assert!(logprobs["token_logprobs"].as_array().unwrap().iter().all(likely));
}

#[tokio::test]
async fn log_probabilities_are_the_same_numbers_in_both_forms_and_all_lists() {
    let client = demo::start(options()).await;
    let mut request =
        json!({"prompt": "2 + 3 =", "temperature": 0, "max_tokens": 4, "logprobs": 1});
    let whole = client.post(PATH, &request).await.json()["choices"][0]["logprobs"].clone();
    let tokens = whole["tokens"].as_array().unwrap();
    for (index, token) in tokens.iter().enumerate() {
        let chosen = &whole["top_logprobs"][index][token.as_str().unwrap()];
        assert_eq!(&whole["token_logprobs"][index], chosen);
    }
    request["stream"] = json!(true);
    let events = client.post(PATH, &request).await.events();
    for name in ["token_logprobs", "top_logprobs"] {
        let parts = events.iter().filter_map(|e| e["choices"][0]["logprobs"][name].as_array());
        assert_eq!(json!(parts.flatten().cloned().collect::<Vec<_>>()), whole[name], "{name}");
    }
}
