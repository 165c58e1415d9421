//! Anthropic's API: what an answer looks like, streamed and whole, and what the
//! model is told.

mod common;

use common::TestServer;
use common::WEATHER_CALL;
use common::client::Response;
use common::options;
use common::redact;
use common::script::Reply;
use lily_server::ServerOptions;
use serde_json::Value;
use serde_json::json;

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// A request for one answer without thinking, with the fields of `extra` added.
fn ask(extra: Value) -> Value {
    let mut body = json!({
        "model": "claude-sonnet",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Hello"}],
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn weather_tool() -> Value {
    let function = common::weather_tool()[0]["function"].clone();
    json!([{
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }])
}

/// Asks for the same text whole and streamed, checks that both answers are the
/// same, and gives back the streamed one.
async fn both(reply: fn(&'static str) -> Reply, text: &'static str, request: Value) -> Response {
    let server = TestServer::start(vec![reply(text), reply(text)]).await;
    let whole = server.client.post(MESSAGES, &request).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let mut whole = whole.json();
    redact::redact(&mut whole);
    let mut streaming = request;
    streaming["stream"] = json!(true);
    let response = server.client.post(MESSAGES, &streaming).await;
    assert_eq!(join(&response), whole);
    response
}

/// Puts the events of a stream together as a client does.
fn join(response: &Response) -> Value {
    let mut message = Value::Null;
    let mut arguments = String::new();
    for (name, mut event) in response.named_events() {
        redact::redact(&mut event);
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match name.as_str() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index, "blocks are numbered in order");
                content.push(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &event["delta"]);
                match delta["type"].as_str().unwrap() {
                    "text_delta" => extend(&mut block["text"], &delta["text"]),
                    "thinking_delta" => extend(&mut block["thinking"], &delta["thinking"]),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    "input_json_delta" => {
                        arguments.push_str(delta["partial_json"].as_str().unwrap());
                    }
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let block = &mut message["content"][index];
                if let Ok(input) = serde_json::from_str(&arguments) {
                    block["input"] = input;
                }
            }
            "message_delta" => {
                let delta = event["delta"].as_object().unwrap().clone();
                message.as_object_mut().unwrap().extend(delta);
                message["usage"] = event["usage"].clone();
            }
            "message_stop" | "ping" => {}
            other => panic!("{other}"),
        }
    }
    message
}

fn extend(text: &mut Value, more: &Value) {
    *text = json!(format!("{}{}", text.as_str().unwrap(), more.as_str().unwrap()));
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_one_message() {
    let server = TestServer::start(vec![Reply::Says("Hi there.")]).await;
    let response = server.client.post(MESSAGES, &ask(json!({}))).await;
    assert_eq!(response.status, 200, "{}", response.body);
    assert!(response.header("request-id").unwrap().starts_with("req_"));
    insta::assert_snapshot!(redact::body(&response));
}

#[tokio::test]
async fn thinking_streams_as_a_block_with_a_signature_before_the_text() {
    let text = "I greet back.\n</think>\n\nHi.";
    let request = ask(json!({"thinking": {"type": "adaptive"}}));
    let response = both(Reply::Says, text, request).await;
    insta::assert_snapshot!(redact::stream(&response));
}

#[tokio::test]
async fn a_tool_call_streams_as_a_block_of_its_own_after_the_text() {
    let text: &str = Box::leak(format!("Let me look.\n\n{WEATHER_CALL}").into_boxed_str());
    let response = both(Reply::Says, text, ask(json!({"tools": weather_tool()}))).await;
    insta::assert_snapshot!(redact::stream(&response));
    let message = join(&response);
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["content"][1]["input"], json!({"city": "Lisbon", "unit": "celsius"}));
}

#[tokio::test]
async fn the_stop_sequence_that_ended_the_answer_is_named() {
    let request = ask(json!({"stop_sequences": ["nowhere", "beta gamma"]}));
    let response = both(Reply::Says, "alpha beta gamma delta", request).await;
    let message = join(&response);
    assert_eq!(message["content"][0]["text"], "alpha ");
    assert_eq!(message["stop_reason"], "stop_sequence");
    assert_eq!(message["stop_sequence"], "beta gamma");
}

#[tokio::test]
async fn the_limit_and_the_end_of_the_context_are_told_apart() {
    for (max_tokens, reason) in [(1, "max_tokens"), (1000, "model_context_window_exceeded")] {
        let request = ask(json!({"max_tokens": max_tokens}));
        let response = both(Reply::RunsOutAfter, "Hi there", request).await;
        assert_eq!(join(&response)["stop_reason"], reason);
    }
}

#[tokio::test]
async fn an_answer_cut_inside_thinking_keeps_its_thinking() {
    let request = ask(json!({"max_tokens": 4, "thinking": {"type": "adaptive"}}));
    let response = both(Reply::RunsOutAfter, "Let me think about", request).await;
    let message = join(&response);
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["content"][0]["thinking"], "Let me think about");
    assert_eq!(message["content"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_model_that_ends_its_turn_inside_thinking_has_not_ended_the_answer() {
    let request = ask(json!({"thinking": {"type": "adaptive"}}));
    let message = join(&both(Reply::Says, "Let me think", request).await);
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["content"][0]["thinking"], "Let me think");
}

#[tokio::test]
async fn a_call_that_was_cut_off_has_no_input() {
    let text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nLis";
    let request = ask(json!({"max_tokens": 1, "tools": weather_tool()}));
    let response = both(Reply::RunsOutAfter, text, request).await;
    let message = join(&response);
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["content"][0]["input"], json!({}));
}

#[tokio::test]
async fn characters_that_span_tokens_and_tags_in_a_text_arrive_whole() {
    let text = "ď 👋 日 <think> <tool_call>";
    let response = both(Reply::Says, text, ask(json!({}))).await;
    assert_eq!(join(&response)["content"][0]["text"], text);
}

#[tokio::test]
async fn thinking_that_is_not_shown_comes_back_in_its_signature() {
    let text = "I greet back.\n</think>\n\nHi.";
    let request = ask(json!({"thinking": {"type": "adaptive", "display": "omitted"}}));
    let response = both(Reply::Says, text, request.clone()).await;
    let message = join(&response);
    assert_eq!(message["content"][0]["thinking"], "");
    assert!(!response.body.contains("greet"));

    let server = TestServer::start(vec![Reply::Says("Yes.")]).await;
    let mut again = request;
    let messages = again["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": message["content"]}));
    messages.push(json!({"role": "user", "content": "Sure?"}));
    again["context_management"] =
        json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
    assert_eq!(server.client.post(MESSAGES, &again).await.status, 200);
    let prompt = server.calls.recv().unwrap().prompt;
    assert!(prompt.contains("<think>\nI greet back.\n</think>\n\nHi."), "{prompt}");
}

/// The prompt that a request becomes.
async fn prompt(request: &Value) -> String {
    let server = TestServer::start(Vec::new()).await;
    let response = server.client.post(MESSAGES, request).await;
    assert_eq!(response.status, 200, "{request} -> {}", response.body);
    server.calls.recv().unwrap().prompt
}

#[tokio::test]
async fn a_conversation_with_tools_reaches_the_template_in_order() {
    let call = |id: &str, city: &str| {
        json!({"type": "tool_use", "id": id, "name": "get_weather",
               "input": {"city": city, "unit": "celsius"}, "caller": {"type": "direct"}})
    };
    let request = ask(json!({
        "system": [
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be kind."},
        ],
        "thinking": {"type": "adaptive"},
        "tools": weather_tool(),
        "messages": [
            {"role": "user", "content": "Hello."},
            {"role": "user", "content": [
                {"type": "text", "text": "Weather in Lisbon and Rome?",
                 "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            ]},
            {"role": "system", "content": "The user is in a hurry."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Two calls.", "signature": "anything"},
                {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"},
                {"type": "text", "text": "I look."},
                call("toolu_1", "Lisbon"),
                call("toolu_2", "Rome"),
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true,
                 "content": [{"type": "text", "text": "no such city"}]},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
            ]},
        ],
    }));
    insta::assert_snapshot!(prompt(&request).await);
}

#[tokio::test]
async fn thinking_must_be_asked_for() {
    let (on, off) = ("<think>\n", "<think>\n\n</think>\n\n");
    for (fields, ending) in [
        (json!({}), off),
        (json!({"thinking": {"type": "disabled"}}), off),
        (json!({"thinking": {"type": "adaptive", "display": "summarized"}}), on),
        (json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}), on),
    ] {
        let prompt = prompt(&ask(fields.clone())).await;
        assert!(prompt.ends_with(ending), "{fields}: {prompt:?}");
    }
}

#[tokio::test]
async fn an_answer_that_has_begun_goes_on() {
    let request = ask(json!({"messages": [
        {"role": "user", "content": "What is the capital of Japan?"},
        {"role": "assistant", "content": "The capital"},
    ]}));
    let prompt = prompt(&request).await;
    assert!(prompt.ends_with("<think>\n\n</think>\n\nThe capital"), "{prompt}");
}

#[tokio::test]
async fn tools_that_may_not_be_called_are_not_told_to_the_model() {
    let fields = json!({"tools": weather_tool(), "tool_choice": {"type": "none"}});
    assert!(!prompt(&ask(fields)).await.contains("get_weather"));
}

#[tokio::test]
async fn without_parallel_tool_use_the_turn_ends_after_the_first_call() {
    let text: &str = Box::leak(format!("{WEATHER_CALL}\n{WEATHER_CALL}").into_boxed_str());
    for (single, calls) in [(false, 2), (true, 1)] {
        let choice = json!({"type": "auto", "disable_parallel_tool_use": single});
        let request = ask(json!({"tools": weather_tool(), "tool_choice": choice}));
        let message = join(&both(Reply::Says, text, request).await);
        assert_eq!(message["content"].as_array().unwrap().len(), calls);
        assert_eq!(message["stop_reason"], "tool_use");
    }
}

/// What Claude Code 2.1 sends, with shorter texts.
#[tokio::test]
async fn a_request_of_claude_code_is_answered() {
    let request = json!({
        "model": "lily",
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>\n"},
                {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}},
            ]},
            {"role": "system", "content": "Available agent types: none."},
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "properties": {"command": {"type": "string"}}, "required": ["command"],
            "additionalProperties": false,
        }, "eager_input_streaming": true}],
        "metadata": {"user_id": "{\"device_id\":\"0\",\"session_id\":\"1\"}"},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": true,
    });
    let server = TestServer::start(vec![Reply::Says("Well.\n</think>\n\nHi.")]).await;
    let headers = [
        ("content-type", "application/json"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14"),
    ];
    let body = serde_json::to_vec(&request).unwrap();
    let path = "/v1/messages?beta=true";
    let response = server.client.send("POST", path, &headers, &body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(join(&response)["content"][1]["text"], "Hi.");
}

#[tokio::test]
async fn sampling_comes_from_the_request_and_else_from_the_model() {
    let server = TestServer::start(Vec::new()).await;
    let request = ask(json!({"temperature": 0.25, "top_p": 0.5, "top_k": null}));
    assert_eq!(server.client.post(MESSAGES, &request).await.status, 200);
    let asked = server.calls.recv().unwrap().options;
    assert_eq!(asked.max_tokens, Some(100));
    let sampling = asked.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.25, 0.5, 20));
}

#[tokio::test]
async fn tokens_are_counted_as_the_answer_would_report_them() {
    let server = TestServer::start(vec![Reply::Says("Hi.")]).await;
    let request = ask(json!({"system": "Be brief.", "tools": weather_tool()}));
    let answered = server.client.post(MESSAGES, &request).await.json();
    let mut without_limit = request;
    without_limit.as_object_mut().unwrap().remove("max_tokens");
    let counted = server.client.post(COUNT, &without_limit).await;
    assert_eq!(counted.status, 200, "{}", counted.body);
    assert_eq!(counted.json(), json!({"input_tokens": answered["usage"]["input_tokens"]}));
    // A client that asks whether a prompt fits is not refused because it does not.
    let long = json!({"messages": [{"role": "user", "content": "one two three ".repeat(3000)}]});
    let counted = server.client.post(COUNT, &long).await.json();
    assert!(counted["input_tokens"].as_u64().unwrap() > common::CONTEXT as u64);
}

#[tokio::test]
async fn a_failure_after_streaming_began_is_an_error_event_and_the_end() {
    let server = TestServer::start(vec![Reply::FailsAfter("Hi")]).await;
    let response = server.client.post(MESSAGES, &ask(json!({"stream": true}))).await;
    let events = response.named_events();
    let (name, data) = events.last().unwrap();
    assert_eq!(name, "error");
    assert_eq!(data["error"]["type"], "api_error");
    assert!(data["error"]["message"].as_str().unwrap().contains("not finite"));
}

#[tokio::test]
async fn silence_is_filled_with_pings() {
    let (started, _started) = tokio::sync::oneshot::channel();
    let (release, released) = std::sync::mpsc::channel();
    let reply = Reply::Waits { started, release: released, reply: Box::new(Reply::Says("Hi.")) };
    let keep_alive = std::time::Duration::from_millis(1);
    let options = ServerOptions { keep_alive, ..options() };
    let server = TestServer::with_options(options, vec![reply]).await;
    let body = serde_json::to_vec(&ask(json!({"stream": true}))).unwrap();
    let headers = [("content-type", "application/json")];
    let mut connection = server.client.begin("POST", MESSAGES, &headers, &body).await;
    // The answer may begin once two pings beyond that after the start have been read.
    let mut begun = Vec::new();
    while String::from_utf8_lossy(&begun).matches("event: ping").count() < 3 {
        tokio::io::AsyncReadExt::read_buf(&mut connection, &mut begun).await.unwrap();
    }
    release.send(()).unwrap();
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut connection, &mut rest).await.unwrap();
    assert!(rest.contains("message_stop"), "{rest}");
}
