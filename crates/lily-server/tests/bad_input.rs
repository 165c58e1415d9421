//! Every kind of bad request gets its own clear answer.

mod common;

use common::TestServer;
use common::chat;
use common::options;
use common::script::Reply;
use lily_server::ApiKeys;
use lily_server::ServerOptions;
use serde_json::Value;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");

/// Fields that make a good request bad, and the field the error must name.
fn bad_fields() -> Vec<(Value, &'static str)> {
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let message = |message: Value| json!({"messages": [message]});
    let tool = |tool: Value| json!({"tools": [tool]});
    let function = |function: Value| tool(json!({"type": "function", "function": function}));
    let call = |call: Value| message(json!({"role": "assistant", "tool_calls": [call]}));
    vec![
        (json!({"messages": null}), "messages"),
        (json!({"messages": "Hello"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": ["Hello"]}), "messages[0]"),
        (message(json!({"content": "Hello"})), "messages[0].role"),
        (message(json!({"role": 1, "content": "Hello"})), "messages[0].role"),
        (message(json!({"role": "robot", "content": "Hello"})), "messages[0].role"),
        (message(json!({"role": "user", "content": "a", "extra": 1})), "messages[0].extra"),
        (message(json!({"role": "user"})), "messages[0].content"),
        (user(json!("")), "messages[0].content"),
        (user(json!(" \n")), "messages[0].content"),
        (user(json!([])), "messages[0].content"),
        (user(json!(7)), "messages[0].content"),
        (user(json!(["Hello"])), "messages[0].content[0]"),
        (user(json!([{"text": "Hello"}])), "messages[0].content[0].type"),
        (user(json!([{"type": "text"}])), "messages[0].content[0].text"),
        (
            user(json!([{"type": "image_url", "image_url": {"url": "data:,"}}])),
            "messages[0].content[0].type",
        ),
        (call(json!({"type": "function"})), "messages[0].tool_calls[0].function"),
        (call(json!({"function": {}})), "messages[0].tool_calls[0].function.name"),
        (call(json!({"type": "custom"})), "messages[0].tool_calls[0].type"),
        (message(json!({"role": "assistant", "content": "Hi"})), "messages"),
        (json!({"max_tokens": "64"}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_completion_tokens": -1}), "max_completion_tokens"),
        (json!({"max_tokens": 1, "max_completion_tokens": 2}), "max_tokens"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.1}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 2.5}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": -3}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logit_bias": {"hello": 1}}), "logit_bias.hello"),
        (json!({"logit_bias": {"999999": 1}}), "logit_bias.999999"),
        (json!({"logit_bias": {"1": 101}}), "logit_bias.1"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"seed": u64::MAX}), "seed"),
        (json!({"stop": 1}), "stop"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": ["a", 1]}), "stop[1]"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"n": 17}), "n"),
        (json!({"n": 0}), "n"),
        (json!({"logprobs": 1}), "logprobs"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options.include_usage"),
        (json!({"stream": true, "stream_options": 1}), "stream_options"),
        (json!({"stream": true, "stream_options": {"usage": true}}), "stream_options.usage"),
        (tool(json!("get_weather")), "tools[0]"),
        (tool(json!({"type": "web_search"})), "tools[0].type"),
        (tool(json!({"type": "function"})), "tools[0].function"),
        (function(json!({})), "tools[0].function.name"),
        (function(json!({"name": "a<b"})), "tools[0].function.name"),
        (function(json!({"name": "a", "parameters": []})), "tools[0].function.parameters"),
        (json!({"xtc_probability": 0}), "xtc_probability"),
        (json!({"verbosity": "low"}), "verbosity"),
        (json!({"continue_final_message": true}), "continue_final_message"),
        (json!({"add_generation_prompt": false}), "add_generation_prompt"),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            "add_generation_prompt",
        ),
        (json!({"reasoning": true}), "reasoning"),
        (json!({"reasoning": {"enabled": true}}), "reasoning"),
        (json!({"reasoning": {"enabled": true, "effort": "none"}}), "reasoning.effort"),
        (json!({"reasoning": {"effort": "some"}}), "reasoning.effort"),
        (json!({"reasoning": {"exclude": true}}), "reasoning.exclude"),
        (json!({"reasoning_effort": "some"}), "reasoning_effort"),
        (json!({"reasoning_effort": 3}), "reasoning_effort"),
        (json!({"tools": {}}), "tools"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": 1}), "tool_choice"),
        (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
        (json!({"response_format": "json"}), "response_format"),
        (json!({"response_format": {}}), "response_format.type"),
        (json!({"enable_thinking": "no"}), "enable_thinking"),
        (json!({"reasoning_effort": "high"}), "reasoning_effort"),
        (json!({"enable_thinking": true, "reasoning_effort": "none"}), "reasoning_effort"),
        (json!({"chat_template_kwargs": {"thinking": 1}}), "chat_template_kwargs.thinking"),
        (json!({"chat_template_kwargs": {"enable_thinking": true}}), "enable_thinking"),
        (json!({"functions": []}), "functions"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"model": 1}), "model"),
        (json!({"metadata": "x"}), "metadata"),
        (json!({"temprature": 1}), "temprature"),
    ]
}

#[tokio::test]
async fn each_bad_field_is_refused_by_name() {
    let server = TestServer::start(Vec::new()).await;
    let mut wrong = Vec::new();
    for (fields, param) in bad_fields() {
        let response = server.client.chat(&chat(fields.clone())).await;
        let kind = response.error("type");
        let message = response.error("message");
        let named =
            message.as_str().is_some_and(|text| text.contains(param) || param == "messages");
        if response.status != 400
            || response.error("param") != param
            || kind != "invalid_request_error"
            || !named
        {
            wrong.push(format!("{fields} -> {} {}", response.status, response.body));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(server.calls.try_recv().is_err(), "a bad request reached the generator");
}

#[tokio::test]
async fn what_is_wrong_is_said_with_what_would_be_right() {
    let server = TestServer::start(Vec::new()).await;
    let most = "between 1 and 9223372036854775807, not ";
    for (body, words) in [
        (r#"{"max_tokens": 99999999999999999999}"#, most),
        (r#"{"max_tokens": 1e300}"#, most),
        (r#"{"max_tokens": 18446744073709551615}"#, most),
        (
            r#"{"seed": 99999999999999999999}"#,
            "between -9223372036854775808 and 9223372036854775807",
        ),
        (r#"{"max_tokens": 0}"#, "must be at least 1, not 0"),
        (r#"{"max_tokens": 1.5}"#, "must be an integer, not a fractional number"),
        (r#"{"functions": []}"#, "send 'tools'"),
        (r#"{"function_call": "auto"}"#, "send 'tool_choice'"),
        (r#"{"repeat_penalty": 1.1}"#, "send 'repetition_penalty'"),
        (r#"{"num_predict": 5}"#, "send 'max_tokens'"),
        (r#"{"num_ctx": 8192}"#, "'--context'"),
    ] {
        let fields =
            format!(r#"{{"messages": [{{"role": "user", "content": "Hi"}}], {}"#, &body[1..]);
        let response = server.client.send("POST", CHAT, &[JSON], fields.as_bytes()).await;
        assert_eq!(response.status, 400, "{body}");
        let message = response.error("message");
        assert!(message.as_str().unwrap().contains(words), "{body}: {message}");
    }
    for body in ["[]", "1", "\"a\""] {
        let response = server.client.send("POST", CHAT, &[JSON], body.as_bytes()).await;
        assert_eq!((response.status, response.error("param")), (400, Value::Null), "{body}");
    }
}

#[tokio::test]
async fn large_integers_are_taken_however_they_are_written() {
    let server = TestServer::start(Vec::new()).await;
    for number in ["1e16", "9007199254740993", "9223372036854775807"] {
        let body = format!(
            r#"{{"messages": [{{"role": "user", "content": "Hi"}}], "max_tokens": {number}}}"#
        );
        let response = server.client.send("POST", CHAT, &[JSON], body.as_bytes()).await;
        assert_eq!(response.status, 200, "{number}: {}", response.body);
    }
}

#[tokio::test]
async fn null_stands_for_the_default_of_every_field() {
    let server = TestServer::start(Vec::new()).await;
    let mut fields = serde_json::Map::new();
    for name in [
        "model",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "stop",
        "n",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "chat_template_kwargs",
        "reasoning_effort",
        "user",
        "metadata",
        "store",
        "service_tier",
        "functions",
        "reasoning",
        "verbosity",
        "continue_final_message",
        "unheard_of",
    ] {
        fields.insert(name.to_owned(), Value::Null);
    }
    let response = server.client.chat(&chat(Value::Object(fields))).await;
    assert_eq!(response.status, 200, "{}", response.body);
}

#[tokio::test]
async fn fields_without_effect_and_replayed_messages_are_accepted() {
    let server = TestServer::start(Vec::new()).await;
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let call = |arguments: Value| {
        json!([{"id": "call_1", "type": "function",
                "function": {"name": "f", "arguments": arguments}}])
    };
    let history = |arguments: Value| {
        json!({"messages": [
            {"role": "developer", "content": text("Be brief.")},
            {"role": "user", "content": text("Hello"), "name": "ann"},
            {"role": "assistant", "content": null, "reasoning_content": "Hm.", "refusal": null,
             "annotations": [], "audio": null, "function_call": null, "tool_calls": call(arguments)},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ]})
    };
    for fields in [
        json!({"user": "ann", "metadata": {"a": "b"}, "store": true, "service_tier": "auto"}),
        json!({"n": 1, "response_format": {"type": "text"}, "tool_choice": "auto"}),
        json!({"stop": vec!["a"; 16], "top_k": -1, "modalities": ["text"]}),
        history(json!("{\"a\": 1}")),
        history(json!({"a": 1})),
        // A client that replays what a model got wrong must not be locked out.
        history(json!("{\"a\": \"x")),
        history(json!("null")),
    ] {
        let response = server.client.chat(&chat(fields.clone())).await;
        assert_eq!(response.status, 200, "{fields} -> {}", response.body);
    }
}

#[tokio::test]
async fn the_template_s_refusal_is_the_client_s_error_with_its_words() {
    let server = TestServer::start(Vec::new()).await;
    let unasked = json!({"messages": [{"role": "assistant", "content": "Hello"}]});
    let response = server.client.chat(&chat(unasked)).await;
    assert_eq!(response.status, 400);
    assert_eq!(response.error("param"), "messages");
    let message = response.error("message");
    assert!(message.as_str().unwrap().contains("No user query found in messages."));
}

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_refused_with_both_lengths() {
    let server = TestServer::start(Vec::new()).await;
    let content = "one two three four ".repeat(2000);
    let body = chat(json!({"messages": [{"role": "user", "content": content}]}));
    let response = server.client.chat(&body).await;
    assert_eq!(response.status, 400);
    assert_eq!(response.error("code"), "context_length_exceeded");
    let message = response.error("message");
    assert!(message.as_str().unwrap().contains("the context of 4096"), "{message}");
}

#[tokio::test]
async fn a_body_that_is_not_json_is_refused_with_the_position() {
    let server = TestServer::start(Vec::new()).await;
    for (body, part) in [
        ("{\"messages\": [,]}", "line 1 column 15"),
        ("", "EOF"),
        ("\u{0}", "line 1 column 1"),
        ("[1", "EOF"),
    ] {
        let response = server.client.send("POST", CHAT, &[JSON], body.as_bytes()).await;
        assert_eq!(response.status, 400, "{body}");
        assert_eq!(response.error("code"), "invalid_json");
        assert!(response.error("message").as_str().unwrap().contains(part), "{}", response.body);
    }
    for deep in ["[".repeat(100_000), "{\"a\":".repeat(128)] {
        let response = server.client.send("POST", CHAT, &[JSON], deep.as_bytes()).await;
        assert_eq!((response.status, response.error("code")), (400, json!("json_too_deep")));
    }
    let list = server.client.send("POST", CHAT, &[JSON], b"[1]").await;
    assert_eq!((list.status, list.error("code")), (400, json!("invalid_type")));
}

#[tokio::test]
async fn a_body_that_is_not_declared_as_json_is_a_415() {
    let server = TestServer::start(Vec::new()).await;
    let body = serde_json::to_vec(&chat(json!({}))).unwrap();
    for headers in [&[][..], &[("content-type", "text/plain")]] {
        let response = server.client.send("POST", CHAT, headers, &body).await;
        assert_eq!(response.status, 415);
        assert_eq!(response.error("type"), "invalid_request_error");
        assert_eq!(response.error("code"), "unsupported_media_type");
    }
    let headers = [("content-type", "Application/JSON; charset=utf-8")];
    assert_eq!(server.client.send("POST", CHAT, &headers, &body).await.status, 200);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_a_413() {
    let options = ServerOptions { max_body_bytes: 1000, ..options() };
    let server = TestServer::with_options(options, Vec::new()).await;
    let body = serde_json::to_vec(&chat(json!({"user": "x".repeat(5000)}))).unwrap();
    for headers in [&[JSON][..], &[JSON, ("expect", "100-continue")]] {
        let response = server.client.send("POST", CHAT, headers, &body).await;
        assert_eq!((response.status, response.error("code")), (413, json!("body_too_large")));
        assert!(response.error("message").as_str().unwrap().contains("1000 bytes"));
    }
}

#[tokio::test]
async fn content_that_is_missing_is_called_so() {
    let server = TestServer::start(Vec::new()).await;
    let absent = server.client.post(CHAT, &json!({"messages": [{"role": "user"}]})).await;
    let message = absent.error("message");
    assert!(message.as_str().unwrap().contains("missing"), "{message}");
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_answer_in_json() {
    let server = TestServer::start(Vec::new()).await;
    let unknown = server.client.get("/v1/nothing").await;
    assert_eq!((unknown.status, unknown.error("code")), (404, json!("unknown_url")));
    let slash = server.client.send("POST", &format!("{CHAT}/"), &[JSON], b"{}").await;
    let message = slash.error("message");
    assert!(message.as_str().unwrap().ends_with("; paths end without a slash"), "{message}");
    for path in ["/v1", "/v1/"] {
        let api = server.client.send("GET", path, &[("accept", "*/*")], b"").await;
        assert_eq!((api.status, api.error("code")), (404, json!("unknown_url")));
        let message = api.error("message");
        assert!(message.as_str().unwrap().ends_with("described at /openapi.json"), "{message}");
    }
    let wrong = server.client.get(CHAT).await;
    assert_eq!((wrong.status, wrong.error("code")), (405, json!("method_not_supported")));
    let model = server.client.get("/v1/models/other").await;
    assert_eq!((model.status, model.error("code")), (404, json!("model_not_found")));
    let odd = server.client.get("/v1/models/%ff").await;
    assert_eq!((odd.status, odd.error("param")), (400, json!("name")));
}

#[tokio::test]
async fn with_a_key_set_only_health_answers_without_it() {
    let options = ServerOptions { api_keys: ApiKeys::new(["secret"]).unwrap(), ..options() };
    let server = TestServer::with_options(options, vec![Reply::Says("Hi.")]).await;
    for headers in [
        &[][..],
        &[("authorization", "Bearer wrong!")],
        &[("authorization", "Bearer secre")],
        &[("authorization", "Bearer ")],
        &[("authorization", "Basic secret")],
        &[("authorization", "secret")],
    ] {
        let response = server.client.send("GET", "/v1/models", headers, b"").await;
        assert_eq!(response.status, 401, "{headers:?}");
        assert_eq!(response.error("code"), "invalid_api_key");
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
    for value in ["Bearer secret", "bearer secret"] {
        let headers = [("authorization", value)];
        assert_eq!(server.client.send("GET", "/v1/models", &headers, b"").await.status, 200);
    }
    let body = serde_json::to_vec(&chat(json!({}))).unwrap();
    let headers = [JSON, ("authorization", "Bearer secret")];
    assert_eq!(server.client.send("POST", CHAT, &headers, &body).await.status, 200);
    assert_eq!(server.client.get("/health").await.status, 200);
}

#[tokio::test]
async fn the_served_model_is_listed_with_its_context() {
    let server = TestServer::start(Vec::new()).await;
    let list = server.client.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "scripted");
    assert_eq!(list["data"][0]["context_length"], 4096);
    assert_eq!(list["data"][0]["max_context_length"], 8192);
    assert_eq!(server.client.get("/v1/models/scripted").await.json(), list["data"][0]);
}

#[tokio::test]
async fn anthropic_clients_get_the_list_in_their_shape() {
    let server = TestServer::start(Vec::new()).await;
    let headers = [("anthropic-version", "2023-06-01")];
    let get = async |path| server.client.send("GET", path, &headers, b"").await;
    let model = json!({
        "type": "model",
        "id": "scripted",
        "display_name": "scripted",
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 4096,
        "max_tokens": 4096,
    });
    let list =
        json!({"data": [model], "has_more": false, "first_id": "scripted", "last_id": "scripted"});
    assert_eq!(get("/v1/models").await.json(), list);
    assert_eq!(get("/v1/models/scripted").await.json(), model);
    let other = get("/v1/models/other").await;
    assert_eq!((other.status, other.json()["type"].clone()), (404, json!("error")));
    assert_eq!(other.error("type"), "not_found_error");
}
