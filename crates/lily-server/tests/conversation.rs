//! What the model gets to read of a conversation, and how it is sampled.

mod common;

use common::TestServer;
use common::chat;
use common::model;
use common::options;
use common::script::Reply;
use common::script::Scripted;
use common::tokenizer;
use lily_engine::SamplingParams;
use lily_server::AppState;
use serde_json::Value;
use serde_json::json;

/// The prompt of a conversation.
async fn prompt(server: &TestServer, messages: Value) -> String {
    let response = server.client.chat(&chat(json!({"messages": messages}))).await;
    assert_eq!(response.status, 200, "{messages} -> {}", response.body);
    server.calls.recv().unwrap().prompt
}

const END: &str = "<|im_start|>assistant\n<think>\n\n</think>\n\n";

#[tokio::test]
async fn system_and_developer_messages_are_one_system_message_wherever_they_stand() {
    let server = TestServer::start(Vec::new()).await;
    let messages = json!([
        {"role": "system", "content": "One."},
        {"role": "developer", "content": [{"type": "text", "text": "Two."}]},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "system", "content": "Three."},
        {"role": "user", "content": "Bye"},
    ]);
    let expected = "<|im_start|>system\nOne.\n\nTwo.\n\nThree.<|im_end|>\n\
        <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n\
        <|im_start|>user\nBye<|im_end|>\n";
    assert_eq!(prompt(&server, messages).await, format!("{expected}{END}"));
}

#[tokio::test]
async fn text_parts_are_joined_and_null_content_is_none() {
    let server = TestServer::start(Vec::new()).await;
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
        ]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "2"}]},
    ]);
    let text = prompt(&server, messages).await;
    assert!(text.contains("<|im_start|>user\nHello<|im_end|>"), "{text}");
    assert!(text.contains("<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"), "{text}");
    assert!(text.contains("<tool_response>\n2\n</tool_response>"), "{text}");
    assert!(!text.contains("None") && !text.contains("null"), "{text}");
}

#[tokio::test]
async fn arguments_of_earlier_calls_are_shown_however_broken_they_are() {
    let server = TestServer::start(Vec::new()).await;
    let history = |arguments: Value| {
        json!([
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ])
    };
    for (arguments, shown) in [
        (json!("{\"a\": \"x\"}"), "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>"),
        (json!({"a": "x"}), "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>"),
        (json!("null"), "<function=f>\n</function>"),
        (json!(null), "<function=f>\n</function>"),
        (json!(""), "<function=f>\n</function>"),
        (
            json!("{\"a\": \"x"),
            "<function=f>\n<parameter=arguments>\n{\"a\": \"x\n</parameter>\n</function>",
        ),
    ] {
        let text = prompt(&server, history(arguments.clone())).await;
        assert!(text.contains(shown), "{arguments}: {text}");
    }
    let list = chat(json!({"messages": history(json!("[1]"))}));
    let response = server.client.chat(&list).await;
    assert_eq!((response.status, response.error("param")), (400, json!("messages")));
    assert!(response.error("message").as_str().unwrap().contains("arguments"), "{}", response.body);
}

/// Two calls, `a` and `b`, and these results.
fn two_calls(results: Value) -> Value {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let mut messages = json!([
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]},
    ]);
    messages.as_array_mut().unwrap().extend(results.as_array().unwrap().iter().cloned());
    messages
}

#[tokio::test]
async fn results_are_shown_in_the_order_of_their_calls() {
    let server = TestServer::start(Vec::new()).await;
    let result =
        |id: Value, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    let (one, two) = ("<tool_response>\none\n", "<tool_response>\ntwo\n");
    for (results, first, second) in [
        (json!([result(json!("a"), "one"), result(json!("b"), "two")]), one, two),
        (json!([result(json!("b"), "two"), result(json!("a"), "one")]), one, two),
        // Without ids their order is all there is.
        (json!([result(json!("b"), "two"), result(Value::Null, "one")]), two, one),
        (json!([result(Value::Null, "two"), result(json!(""), "one")]), two, one),
    ] {
        let text = prompt(&server, two_calls(results.clone())).await;
        let places = (text.find(first).unwrap(), text.find(second).unwrap());
        assert!(places.0 < places.1, "{results}: {text}");
    }
}

#[tokio::test]
async fn a_result_that_names_none_of_the_calls_before_it_is_refused_but_not_one_of_a_cut_history() {
    let server = TestServer::start(Vec::new()).await;
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "sunny"});
    let strange = two_calls(json!([result("a"), result("c")]));
    let response = server.client.chat(&chat(json!({"messages": strange}))).await;
    assert_eq!(response.status, 400, "{}", response.body);
    assert_eq!(response.error("param"), "messages[3].tool_call_id");
    let user = json!({"role": "user", "content": "Hello"});
    for messages in [
        json!([result("gone"), user]),
        json!([{"role": "system", "content": "Be brief."}, result("gone"), user]),
        two_calls(json!([result("a"), user, result("b"), user])),
        two_calls(json!([result("b"), user])),
    ] {
        let text = prompt(&server, messages.clone()).await;
        assert!(text.contains("<tool_response>\nsunny\n"), "{messages}: {text}");
    }
}

#[tokio::test]
async fn reasoning_comes_back_in_under_any_of_its_names() {
    let server = TestServer::start(Vec::new()).await;
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let messages = json!([
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "", name: "I look it up.", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ]);
        let text = prompt(&server, messages).await;
        assert!(text.contains("<think>\nI look it up.\n</think>"), "{name}: {text}");
    }
}

#[tokio::test]
async fn an_answer_may_go_on_where_the_last_message_leaves_off() {
    let server = TestServer::start(vec![Reply::Says(" is Tokyo.")]).await;
    let begun = |message: Value| {
        chat(json!({
            "messages": [{"role": "user", "content": "The capital is the capital?"}, message],
            "continue_final_message": true,
            "add_generation_prompt": false,
        }))
    };
    let body = begun(json!({"role": "assistant", "content": "The capital "}));
    let completed = server.client.chat(&body).await.json();
    assert_eq!(completed["choices"][0]["message"]["content"], " is Tokyo.");
    let text = server.calls.recv().unwrap().prompt;
    let expected = "<|im_start|>user\nThe capital is the capital?<|im_end|>\n\
        <|im_start|>assistant\n<think>\n\n</think>\n\nThe capital";
    assert_eq!(text, expected);
    let marker =
        begun(json!({"role": "assistant", "content": [{"type": "text", "text": "im_end"}]}));
    assert_eq!(server.client.chat(&marker).await.status, 200);
    assert!(server.calls.recv().unwrap().prompt.ends_with("</think>\n\nim_end"));
    let tokens = server.client.post("/tokenize", &body).await.json();
    assert_eq!(tokens["count"], completed["usage"]["prompt_tokens"]);

    for message in [
        json!({"role": "assistant", "content": " "}),
        json!({"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}),
        json!({"role": "tool", "content": "a"}),
        json!({"role": "system", "content": "a"}),
    ] {
        let response = server.client.chat(&begun(message)).await;
        assert_eq!(response.status, 400, "{}", response.body);
        assert_eq!(response.error("param"), "continue_final_message");
    }
}

#[tokio::test]
async fn a_level_of_effort_switches_thinking_and_nothing_else() {
    let server = TestServer::start(Vec::new()).await;
    for (fields, thinks) in [
        (json!({"reasoning_effort": "none"}), false),
        (json!({"reasoning_effort": "minimal"}), false),
        (json!({"reasoning_effort": "low"}), true),
        (json!({"reasoning_effort": "medium"}), true),
        (json!({"reasoning_effort": "high"}), true),
        (json!({"reasoning_effort": "xhigh"}), true),
        (json!({"reasoning": {"enabled": false}}), false),
        (json!({"reasoning": {"enabled": true}}), true),
        (json!({"reasoning": {"effort": "high", "exclude": false}}), true),
        (json!({"reasoning": {"effort": "none"}, "enable_thinking": false}), false),
    ] {
        let mut body = chat(json!({"enable_thinking": null}));
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(server.client.chat(&body).await.status, 200, "{fields}");
        let text = server.calls.recv().unwrap().prompt;
        assert_eq!(text.ends_with("<think>\n"), thinks, "{fields}: {text}");
    }
}

/// The sampling of a request to a model that recommends `sampling`.
async fn sampled(sampling: &SamplingParams, fields: Value) -> SamplingParams {
    let (calls, received) = std::sync::mpsc::channel();
    let generator = Scripted::new(tokenizer(), vec![Reply::Says("Hi.")], calls);
    let mut model = model(tokenizer());
    model.defaults.sampling = sampling.clone();
    let state = AppState::new(options(), model, move || Ok(generator)).unwrap();
    let server = TestServer::with_state(state).await;
    assert_eq!(server.client.chat(&chat(fields)).await.status, 200);
    received.recv().unwrap().options.sampling
}

#[tokio::test]
async fn answers_without_thinking_have_the_model_card_s_sampling_of_their_own() {
    let published =
        SamplingParams { temperature: 1.0, top_k: 20, top_p: 0.95, ..SamplingParams::default() };
    let thinking = json!({"enable_thinking": true});
    assert_eq!(sampled(&published, thinking.clone()).await, published);
    let plain =
        SamplingParams { temperature: 0.7, top_p: 0.8, presence_penalty: 1.5, ..published.clone() };
    assert_eq!(sampled(&published, json!({})).await, plain);
    let asked = json!({"temperature": 0.25, "presence_penalty": 0});
    let expected = SamplingParams { temperature: 0.25, presence_penalty: 0.0, ..plain };
    assert_eq!(sampled(&published, asked).await, expected);

    // Values of somebody's own hold for both.
    let own = SamplingParams { temperature: 0.6, ..published };
    assert_eq!(sampled(&own, json!({})).await, own);
    assert_eq!(sampled(&own, thinking).await, own);
}

/// What the clients people use send without being told to, besides messages.
#[tokio::test]
async fn what_clients_send_by_default_is_accepted() {
    let server = TestServer::start(Vec::new()).await;
    let tool = json!({"type": "function", "function": {
        "name": "read", "description": "Reads.", "strict": false,
        "parameters": {"type": "object", "properties": {}, "additionalProperties": false},
    }});
    for (client, fields) in [
        (
            "agents on the AI SDK",
            json!({
                "model": "m", "max_tokens": 32000, "temperature": 0.55, "top_p": 1, "tools": [tool],
                "tool_choice": "auto", "stream": true, "stream_options": {"include_usage": true},
                "reasoning_effort": "medium", "verbosity": "medium", "enable_thinking": null,
            }),
        ),
        (
            "editors",
            json!({
                "model": "m", "stream": true, "max_completion_tokens": 4096, "stop": [],
                "temperature": 1.0, "parallel_tool_calls": false, "tools": [],
                "prompt_cache_key": "thread", "reasoning_effort": null,
            }),
        ),
        (
            "chat pages",
            json!({
                "model": "m", "stream": true, "frequency_penalty": 0, "presence_penalty": 0,
                "logit_bias": {}, "seed": 0, "user": "u", "metadata": {"chat": "c"},
            }),
        ),
        (
            "frameworks",
            json!({
                "model": "m", "n": 1, "stream": false, "temperature": 0.7, "logprobs": false,
                "top_logprobs": null, "store": false, "service_tier": "default",
                "safety_identifier": "s", "response_format": {"type": "text"},
                "modalities": ["text"], "tool_choice": "none", "tools": [tool],
                "prompt_cache_retention": "24h",
            }),
        ),
    ] {
        let response = server.client.chat(&chat(fields)).await;
        assert_eq!(response.status, 200, "{client}: {}", response.body);
    }
}
