//! What a chat completion looks like, streamed and whole.

mod common;

use common::TestServer;
use common::WEATHER_CALL;
use common::chat;
use common::client::Response;
use common::options;
use common::script::Reply;
use common::tokenizer;
use common::weather_tool;
use lily_engine::FinishReason;
use lily_server::ServerOptions;
use serde_json::Value;
use serde_json::json;

/// The body with what differs from run to run blanked out.
fn redacted(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.body);
    let lines = response.body.lines().map(|line| match line.strip_prefix("data: ") {
        Some(data) if data != "[DONE]" => {
            let mut value: Value = serde_json::from_str(data).unwrap();
            redact(&mut value);
            format!("data: {value}")
        }
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let prefix = value.as_str().and_then(|text| text.split(['-', '_']).next());
                match (name.as_str(), prefix) {
                    ("id", Some("chatcmpl")) => *value = json!("chatcmpl-*"),
                    ("id", Some("call")) => *value = json!("call_*"),
                    ("created", _) => *value = json!(0),
                    (name, _) if name.ends_with("_ms") || name.ends_with("_per_second") => {
                        *value = json!(0.5);
                    }
                    _ => redact(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(redact),
        _ => {}
    }
}

/// Asks for the same text whole and streamed, checks that both answers are the
/// same, and gives back the streamed one.
async fn both(reply: fn(&'static str) -> Reply, text: &'static str, request: Value) -> Response {
    let server = TestServer::start(vec![reply(text), reply(text)]).await;
    let whole = server.client.chat(&request).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let mut streaming = request;
    streaming["stream"] = json!(true);
    streaming["stream_options"] = json!({"include_usage": true});
    let response = server.client.chat(&streaming).await;
    let (message, finish_reason, usage) = join(&response.events());
    assert_eq!(whole["choices"][0]["finish_reason"], finish_reason);
    assert_eq!(whole["usage"], usage);
    let mut expected = whole["choices"][0]["message"].clone();
    redact(&mut expected);
    assert_eq!(expected, message);
    response
}

/// Puts the deltas of a stream together as a client does.
fn join(events: &[Value]) -> (Value, Value, Value) {
    let mut message = json!({"role": "assistant", "content": ""});
    let mut finish_reason = Value::Null;
    let mut usage = Value::Null;
    for event in events {
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
        let Some(choice) = event["choices"].get(0) else { continue };
        if choice["finish_reason"].is_string() {
            finish_reason = choice["finish_reason"].clone();
        }
        for field in ["content", "reasoning_content"] {
            if let Some(text) = choice["delta"][field].as_str() {
                let before = message[field].as_str().unwrap_or_default();
                message[field] = json!(format!("{before}{text}"));
            }
        }
        for delta in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            join_call(&mut message, delta);
        }
    }
    redact(&mut message);
    (message, finish_reason, usage)
}

fn join_call(message: &mut Value, delta: &Value) {
    if message["tool_calls"].is_null() {
        message["tool_calls"] = json!([]);
    }
    let calls = message["tool_calls"].as_array_mut().unwrap();
    match calls.get_mut(delta["index"].as_u64().unwrap() as usize) {
        None => {
            let mut call = delta.clone();
            call.as_object_mut().unwrap().shift_remove("index");
            calls.push(call);
        }
        Some(call) => {
            let before = call["function"]["arguments"].as_str().unwrap();
            let more = delta["function"]["arguments"].as_str().unwrap();
            call["function"]["arguments"] = json!(format!("{before}{more}"));
        }
    }
}

#[tokio::test]
async fn an_answer_streams_as_role_content_finish_and_done() {
    let server = TestServer::start(vec![Reply::Says("Hi there.")]).await;
    let response = server.client.chat(&chat(json!({"stream": true}))).await;
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    insta::assert_snapshot!(redacted(&response));
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_one_object() {
    let server = TestServer::start(vec![Reply::Says("Hi there.")]).await;
    let mut body = server.client.chat(&chat(json!({}))).await.json();
    redact(&mut body);
    insta::assert_snapshot!(serde_json::to_string_pretty(&body).unwrap());
}

#[tokio::test]
async fn thinking_comes_as_reasoning_content_and_is_counted() {
    let text = "I greet back.\n</think>\n\nHi.";
    let response = both(Reply::Says, text, chat(json!({"enable_thinking": true}))).await;
    insta::assert_snapshot!(redacted(&response));
}

#[tokio::test]
async fn a_tool_call_streams_its_name_and_then_its_arguments() {
    let request = chat(json!({"tools": weather_tool()}));
    let response = both(Reply::Says, WEATHER_CALL, request).await;
    insta::assert_snapshot!(redacted(&response));
    let (message, ..) = join(&response.events());
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(arguments, json!({"city": "Lisbon", "unit": "celsius"}));
}

#[tokio::test]
async fn without_parallel_tool_calls_the_turn_ends_after_the_first() {
    let text: &str = Box::leak(format!("{WEATHER_CALL}\n{WEATHER_CALL}").into_boxed_str());
    let server = TestServer::start(vec![Reply::Says(text), Reply::Says(text)]).await;
    for (parallel, expected) in [(true, 2), (false, 1)] {
        let request = chat(json!({"tools": weather_tool(), "parallel_tool_calls": parallel}));
        let body = server.client.chat(&request).await.json();
        let choice = &body["choices"][0];
        assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), expected);
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["content"], "");
    }
}

#[tokio::test]
async fn tools_that_may_not_be_called_are_not_told_to_the_model() {
    let server = TestServer::start(vec![Reply::Says("Hi.")]).await;
    let request = chat(json!({"tools": weather_tool(), "tool_choice": "none"}));
    assert_eq!(server.client.chat(&request).await.status, 200);
    assert!(!server.calls.recv().unwrap().prompt.contains("get_weather"));
}

#[tokio::test]
async fn an_answer_cut_inside_thinking_ends_with_length_and_keeps_its_reasoning() {
    let text = "Let me think about";
    let request = chat(json!({"enable_thinking": true, "max_tokens": 4}));
    let response = both(Reply::RunsOutAfter, text, request).await;
    let (message, finish_reason, usage) = join(&response.events());
    assert_eq!(finish_reason, "length");
    assert_eq!(message["reasoning_content"], text);
    assert_eq!(message["content"], "");
    assert_eq!(usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]);
}

#[tokio::test]
async fn a_model_that_ends_its_turn_inside_thinking_has_not_answered() {
    let request = chat(json!({"enable_thinking": true, "max_tokens": 400}));
    for text in ["I am done.", "", "A call: <tool", "The end </thin"] {
        let response = both(Reply::Says, text, request.clone()).await;
        let (message, finish_reason, _) = join(&response.events());
        assert_eq!((&message["content"], finish_reason), (&json!(""), json!("length")), "{text}");
        let reasoning = message["reasoning_content"].as_str().unwrap_or_default();
        assert!(text.starts_with(reasoning) && reasoning.is_empty() == text.is_empty(), "{text}");
    }
    // Whoever ends the reasoning and says nothing more has ended the turn.
    let response = both(Reply::Says, "I am done.\n</think>\n\n", request.clone()).await;
    assert_eq!(join(&response.events()).1, "stop");
    // A call ends the reasoning.
    let text: &str = Box::leak(format!("I call it. {WEATHER_CALL}").into_boxed_str());
    let mut request = request;
    request["tools"] = weather_tool();
    let response = both(Reply::Says, text, request).await;
    assert_eq!(join(&response.events()).1, "tool_calls");
}

#[tokio::test]
async fn a_stop_string_ends_the_answer_and_does_not_show() {
    let request = chat(json!({"stop": "beta gamma"}));
    let response = both(Reply::Says, "alpha beta gamma delta", request).await;
    let (message, finish_reason, _) = join(&response.events());
    assert_eq!(message["content"], "alpha ");
    assert_eq!(finish_reason, "stop");
}

#[tokio::test]
async fn a_think_tag_inside_an_answer_is_part_of_it() {
    let text = "The tag is <think> and no other.";
    let response = both(Reply::Says, text, chat(json!({}))).await;
    assert_eq!(join(&response.events()).0["content"], text);
}

#[tokio::test]
async fn characters_that_span_tokens_arrive_whole() {
    let text = "ď 👋 日";
    let response = both(Reply::Says, text, chat(json!({}))).await;
    assert!(!response.body.contains('\u{fffd}'));
    assert_eq!(join(&response.events()).0["content"], text);
}

#[tokio::test]
async fn a_character_cut_by_the_limit_ends_the_text_and_the_stream_only() {
    for (text, kept) in [("a 👋", "a "), ("a 日", "a "), ("ab ď", "ab ")] {
        let whole_ids = tokenizer().encode(text).unwrap();
        let cut: Vec<u32> = whole_ids[..whole_ids.len() - 1].to_vec();
        let bytes: Vec<u8> =
            cut.iter().flat_map(|&id| tokenizer().token_bytes(id).unwrap().0.to_vec()).collect();
        // Where the vocabulary has the character as one token there is nothing to cut.
        let expected = match std::str::from_utf8(&bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("{kept}\u{fffd}"),
        };
        let reply = || Reply::Gives(cut.clone(), FinishReason::Length);
        let server = TestServer::start(vec![reply(), reply()]).await;
        let request = chat(json!({"logprobs": true}));
        let whole = server.client.chat(&request).await.json()["choices"][0].clone();
        assert_eq!(whole["message"]["content"], expected);
        assert_eq!(whole["finish_reason"], "length");
        assert_eq!(whole["logprobs"]["content"].as_array().unwrap().len(), cut.len());
        let mut streaming = request;
        streaming["stream"] = json!(true);
        let (message, finish_reason, _) = join(&server.client.chat(&streaming).await.events());
        assert_eq!((&message["content"], finish_reason), (&json!(expected), json!("length")));
    }
    assert!(tokenizer().encode("a 👋").unwrap().len() > 3, "the demo model cuts no emoji");
}

#[tokio::test]
async fn a_long_argument_streams_in_many_deltas_that_join_to_json() {
    let text: &'static str = Box::leak(
        WEATHER_CALL.replace("Lisbon", &"Lisbon \"on\" the Tagus, ".repeat(20)).into_boxed_str(),
    );
    let response = both(Reply::Says, text, chat(json!({"tools": weather_tool()}))).await;
    let events = response.events();
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]);
    assert!(deltas.filter(|delta| delta["function"]["arguments"] != "").count() > 20);
    let (message, ..) = join(&events);
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert!(arguments["city"].as_str().unwrap().ends_with("the Tagus, "));
}

#[tokio::test]
async fn further_closing_tags_are_text_in_both_forms() {
    let text = "Hm.\n</think>\n\nThe tag is </think> and </think>.";
    let response = both(Reply::Says, text, chat(json!({"enable_thinking": true}))).await;
    let (message, ..) = join(&response.events());
    assert_eq!(message["reasoning_content"], "Hm.");
    assert_eq!(message["content"], "The tag is </think> and </think>.");
}

#[tokio::test]
async fn a_stop_string_matches_in_the_content_only() {
    let text: &'static str =
        Box::leak(format!("Lisbon?\n</think>\n\n{WEATHER_CALL}").into_boxed_str());
    let fields = json!({"stop": "Lisbon", "enable_thinking": true, "tools": weather_tool()});
    let response = both(Reply::Says, text, chat(fields)).await;
    let (message, finish_reason, _) = join(&response.events());
    assert_eq!(message["reasoning_content"], "Lisbon?");
    assert_eq!(finish_reason, "tool_calls");
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(arguments.contains("Lisbon"), "{arguments}");
}

#[tokio::test]
async fn log_probabilities_cover_exactly_the_tokens_of_the_content() {
    let text = "Short.\n</think>\n\nHi there.";
    let request = chat(json!({"enable_thinking": true, "logprobs": true, "top_logprobs": 2}));
    let server = TestServer::start(vec![Reply::Says(text), Reply::Says(text)]).await;
    let whole = server.client.chat(&request).await.json();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let bytes = content.iter().flat_map(|token| token["bytes"].as_array().unwrap());
    let bytes: Vec<u8> = bytes.map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), "Hi there.");
    assert!(content.iter().all(|token| token["logprob"] == -0.5));
    assert!(content.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));

    let mut streaming = request;
    streaming["stream"] = json!(true);
    let events = server.client.chat(&streaming).await.events();
    let streamed = events.iter().flat_map(|event| {
        event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default()
    });
    assert_eq!(streamed.collect::<Vec<_>>(), content);
}

#[tokio::test]
async fn log_probabilities_of_text_held_back_for_a_stop_string_come_with_it() {
    // The text a stop string might begin with is held, and either shows later or never does.
    let texts = |content: &Value| {
        let tokens = content.as_array().unwrap().iter();
        let texts: Vec<_> = tokens.map(|token| token["token"].as_str().unwrap()).collect();
        texts.concat()
    };
    for (text, stop, content, tokens) in [
        ("alpha beta delta", "beta gamma", "alpha beta delta", "alpha beta delta"),
        ("aaab", "aaaac", "aaab", "aaab"),
        // A token of which a part shows is there.
        ("alpha beta gamma delta", "beta gamma", "alpha ", "alpha be"),
    ] {
        let server = TestServer::start(vec![Reply::Says(text), Reply::Says(text)]).await;
        let mut request = chat(json!({"stop": stop, "logprobs": true}));
        let whole = server.client.chat(&request).await.json()["choices"][0].clone();
        assert_eq!(whole["message"]["content"], content);
        let all = &whole["logprobs"]["content"];
        assert!(texts(all).starts_with(content), "{all}");
        assert_eq!(texts(all), tokens, "{all}");
        request["stream"] = json!(true);
        let events = server.client.chat(&request).await.events();
        let streamed = events.iter().flat_map(|event| {
            event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default()
        });
        assert_eq!(&Value::from_iter(streamed), all);
    }
}

#[tokio::test]
async fn a_failure_before_the_answer_is_complete_is_a_500_and_the_next_request_runs() {
    let server = TestServer::start(vec![Reply::FailsAfter("Hi"), Reply::Says("Hi")]).await;
    let response = server.client.chat(&chat(json!({}))).await;
    assert_eq!(response.status, 500);
    assert_eq!(response.error("type"), "server_error");
    assert!(response.error("message").as_str().unwrap().contains("not finite"));
    assert_eq!(server.client.chat(&chat(json!({}))).await.status, 200);
}

#[tokio::test]
async fn a_failure_after_streaming_began_is_an_error_event_and_the_end() {
    let server = TestServer::start(vec![Reply::FailsAfter("Hi")]).await;
    let response = server.client.chat(&chat(json!({"stream": true}))).await;
    insta::assert_snapshot!(redacted(&response));
}

#[tokio::test]
async fn the_progress_of_a_long_prefill_comes_as_comments() {
    let server = TestServer::start(vec![Reply::PrefillsThenSays("Hi.")]).await;
    let response = server.client.chat(&chat(json!({"stream": true}))).await;
    let comments: Vec<&str> = response.body.lines().filter(|line| line.starts_with(':')).collect();
    assert!(matches!(comments[..], [comment] if comment.starts_with(": prefill 1/")));
}

#[tokio::test]
async fn the_reported_name_is_the_served_one_whatever_was_asked_for() {
    let options = ServerOptions { model_name: "mine".to_owned(), ..options() };
    let server = TestServer::with_options(options, vec![Reply::Says("Hi.")]).await;
    let body = server.client.chat(&chat(json!({"model": "gpt-4o"}))).await.json();
    assert_eq!(body["model"], "mine");
}

#[tokio::test]
async fn sampling_comes_from_the_request_and_else_from_the_model() {
    let server = TestServer::start(Vec::new()).await;
    let request = chat(json!({
        "temperature": 0, "top_p": 0.5, "top_k": null, "min_p": 0.25, "seed": -1,
        "presence_penalty": 1.5, "frequency_penalty": -2, "repetition_penalty": 1.25,
        "logit_bias": {"17": -100}, "max_completion_tokens": 7.0,
    }));
    assert_eq!(server.client.chat(&request).await.status, 200);
    let asked = server.calls.recv().unwrap().options;
    assert_eq!(asked.max_tokens, Some(7));
    assert_eq!(asked.stop_tokens, [4049, 4047]);
    insta::assert_snapshot!(format!("{:#?}", asked.sampling));
}

#[tokio::test]
async fn thinking_is_switched_in_any_of_its_places() {
    let server = TestServer::start(Vec::new()).await;
    let (on, off) = ("<think>\n", "<think>\n\n</think>\n\n");
    for (fields, ending) in [
        (json!({"enable_thinking": null}), on),
        (json!({"enable_thinking": true}), on),
        (json!({"enable_thinking": false}), off),
        (json!({"enable_thinking": null, "reasoning_effort": "none"}), off),
        (json!({"enable_thinking": null, "chat_template_kwargs": {"enable_thinking": false}}), off),
        (json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": true}}), on),
    ] {
        assert_eq!(server.client.chat(&chat(fields.clone())).await.status, 200, "{fields}");
        let prompt = server.calls.recv().unwrap().prompt;
        assert!(prompt.ends_with(ending), "{fields}: {prompt:?}");
    }
}
