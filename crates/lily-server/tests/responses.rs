//! `/v1/responses`: what an answer looks like, streamed and whole, and what the
//! model is told.

mod common;

use common::TestServer;
use common::WEATHER_CALL;
use common::client::Response;
use common::redact;
use common::script::Reply;
use serde_json::Value;
use serde_json::json;

const RESPONSES: &str = "/v1/responses";

/// A request for one answer without thinking, with the fields of `extra` added.
fn ask(extra: Value) -> Value {
    let mut body = json!({
        "model": "gpt", "input": "Hello", "reasoning": {"effort": "none"},
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn weather_tool() -> Value {
    let mut function = common::weather_tool()[0]["function"].clone();
    function["type"] = json!("function");
    json!([function])
}

/// Asks for the same text whole and streamed, checks that both answers are the
/// same, and gives back the streamed one.
async fn both(reply: fn(&'static str) -> Reply, text: &'static str, request: Value) -> Response {
    let server = TestServer::start(vec![reply(text), reply(text)]).await;
    let whole = server.client.post(RESPONSES, &request).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let mut whole = whole.json();
    redact::redact(&mut whole);
    let mut streaming = request;
    streaming["stream"] = json!(true);
    let response = server.client.post(RESPONSES, &streaming).await;
    assert_eq!(last(&response), whole);
    assert_eq!(join(&response), whole["output"]);
    response
}

/// The response that the last event holds.
fn last(response: &Response) -> Value {
    let (_, mut event) = response.named_events().pop().unwrap();
    redact::redact(&mut event);
    event["response"].take()
}

/// Puts the output together from the deltas, and checks the numbers and that
/// what is done equals what was streamed.
fn join(response: &Response) -> Value {
    let mut output: Vec<Value> = Vec::new();
    for (number, (name, mut event)) in response.named_events().into_iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{name}");
        redact::redact(&mut event);
        if name == "response.output_item.added" {
            assert_eq!(event["output_index"], output.len());
            output.push(event["item"].clone());
            continue;
        }
        let Some(index) = event["output_index"].as_u64() else { continue };
        let item = &mut output[index as usize];
        assert!(event["item_id"].is_null() || event["item_id"] == item["id"], "{name}");
        match name.as_str() {
            "response.content_part.added" => parts(item, "content").push(event["part"].clone()),
            "response.reasoning_summary_part.added" => {
                parts(item, "summary").push(event["part"].clone());
            }
            "response.output_text.delta" => {
                extend(&mut item["content"][0]["text"], &event["delta"]);
                let logprobs = item["content"][0]["logprobs"].as_array_mut().unwrap();
                logprobs.extend(event["logprobs"].as_array().unwrap().clone());
            }
            "response.reasoning_text.delta" => {
                extend(&mut item["content"][0]["text"], &event["delta"]);
            }
            "response.reasoning_summary_text.delta" => {
                extend(&mut item["summary"][0]["text"], &event["delta"]);
            }
            "response.function_call_arguments.delta" => {
                extend(&mut item["arguments"], &event["delta"]);
            }
            "response.custom_tool_call_input.delta" => extend(&mut item["input"], &event["delta"]),
            "response.content_part.done" => assert_eq!(item["content"][0], event["part"]),
            "response.reasoning_summary_part.done" => {
                assert_eq!(item["summary"][0], event["part"]);
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(item["content"][0]["text"], event["text"]);
            }
            "response.reasoning_summary_text.done" => {
                assert_eq!(item["summary"][0]["text"], event["text"]);
            }
            "response.function_call_arguments.done" => {
                assert_eq!(item["arguments"], event["arguments"]);
            }
            "response.custom_tool_call_input.done" => assert_eq!(item["input"], event["input"]),
            "response.output_item.done" => {
                let done = &event["item"];
                item["status"] = done["status"].clone();
                if let Some(sealed) = done.get("encrypted_content") {
                    item["encrypted_content"] = sealed.clone();
                }
                assert_eq!(item, done);
            }
            other => panic!("{other}"),
        }
    }
    output.into()
}

fn parts<'a>(item: &'a mut Value, name: &str) -> &'a mut Vec<Value> {
    if item[name].is_null() {
        item[name] = json!([]);
    }
    item[name].as_array_mut().unwrap()
}

fn extend(text: &mut Value, more: &Value) {
    *text = json!(format!("{}{}", text.as_str().unwrap(), more.as_str().unwrap()));
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_one_response() {
    let server = TestServer::start(vec![Reply::Says("Hi there.")]).await;
    let request = ask(json!({
        "instructions": "Be brief.", "metadata": {"a": "b"}, "store": true, "user": "ann",
        "max_output_tokens": 50, "temperature": 0.5, "top_p": 0.25, "tools": weather_tool(),
        "parallel_tool_calls": false, "prompt_cache_key": "key", "tool_choice": "auto",
    }));
    let response = server.client.post(RESPONSES, &request).await;
    assert_eq!(response.status, 200, "{}", response.body);
    insta::assert_snapshot!(redact::body(&response));
}

#[tokio::test]
async fn reasoning_and_text_stream_as_items_with_all_their_events() {
    let text = "I greet back.\n</think>\n\nHi.";
    let request = ask(json!({"reasoning": {"effort": "high"}}));
    let response = both(Reply::Says, text, request).await;
    insta::assert_snapshot!(redact::stream(&response));
}

#[tokio::test]
async fn a_function_call_streams_as_an_item_of_its_own() {
    let text: &str = Box::leak(format!("I look.\n\n{WEATHER_CALL}").into_boxed_str());
    let response = both(Reply::Says, text, ask(json!({"tools": weather_tool()}))).await;
    insta::assert_snapshot!(redact::stream(&response));
    let call = &last(&response)["output"][1];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Lisbon", "unit": "celsius"}));
}

#[tokio::test]
async fn reasoning_is_its_own_summary_where_one_is_asked_for() {
    let text = "I greet back.\n</think>\n\nHi.";
    let request = ask(json!({
        "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"],
    }));
    let response = both(Reply::Says, text, request).await;
    let item = &last(&response)["output"][0];
    assert_eq!(item["summary"], json!([{"type": "summary_text", "text": "I greet back."}]));
    assert!(item.get("content").is_none());
    let names = response.named_events().into_iter().map(|(name, _)| name);
    let reasoning: Vec<String> = names.filter(|name| name.contains("summary")).collect();
    assert_eq!(reasoning.first().unwrap(), "response.reasoning_summary_part.added");
    assert_eq!(reasoning.last().unwrap(), "response.reasoning_summary_part.done");

    // Back comes what the client could not read.
    let mut item = item.clone();
    item["summary"] = json!([]);
    let request = ask(json!({
        "reasoning": {"context": "all_turns"},
        "input": [
            {"role": "user", "content": "Hello"},
            item,
            {"type": "message", "role": "assistant", "status": "completed", "id": "msg_1",
             "content": [{"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}]},
            {"role": "user", "content": "Sure?"},
        ],
    }));
    let prompt = prompt(&request).await;
    assert!(prompt.contains("<think>\nI greet back.\n</think>\n\nHi."), "{prompt}");
}

#[tokio::test]
async fn an_answer_cut_by_the_limit_is_incomplete() {
    let request = ask(json!({"reasoning": null, "max_output_tokens": 4}));
    let response = both(Reply::RunsOutAfter, "Let me think about", request).await;
    assert_eq!(response.named_events().last().unwrap().0, "response.incomplete");
    let response = last(&response);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["output"][0]["content"][0]["text"], "Let me think about");
}

#[tokio::test]
async fn a_response_that_ends_inside_its_reasoning_is_incomplete() {
    let response = both(Reply::Says, "I am done.", ask(json!({"reasoning": null}))).await;
    assert_eq!(response.named_events().last().unwrap().0, "response.incomplete");
    let response = last(&response);
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(response["output"][0]["content"][0]["text"], "I am done.");
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_incomplete() {
    let text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nLis";
    let request = ask(json!({"tools": weather_tool()}));
    for reply in [Reply::RunsOutAfter, Reply::Says] {
        let response = last(&both(reply, text, request.clone()).await);
        assert_eq!(response["output"][0]["type"], "function_call");
        assert_eq!(response["output"][0]["status"], "incomplete");
    }
}

#[tokio::test]
async fn a_custom_tool_takes_one_text() {
    let call = "<tool_call>\n<function=note>\n<parameter=input>\nBuy \"milk\"\n</parameter>\n\
        </function>\n</tool_call>";
    let tools = json!([{"type": "custom", "name": "note", "description": "Writes a note.",
                        "format": {"type": "text"}}]);
    let response = both(Reply::Says, call, ask(json!({"tools": tools}))).await;
    let item = last(&response)["output"][0].clone();
    assert_eq!((&item["type"], &item["name"]), (&json!("custom_tool_call"), &json!("note")));
    assert_eq!(item["input"], "Buy \"milk\"");

    let request = ask(json!({"tools": tools, "input": [
        {"role": "user", "content": "Note it."},
        item,
        {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"},
    ]}));
    let prompt = prompt(&request).await;
    assert!(prompt.contains("<parameter=input>\nBuy \"milk\"\n</parameter>"), "{prompt}");
    assert!(prompt.contains("<tool_response>\ndone\n</tool_response>"), "{prompt}");
}

#[tokio::test]
async fn a_tool_of_a_namespace_is_called_by_both_names() {
    let call = "<tool_call>\n<function=agents.stop>\n<parameter=id>\n7\n</parameter>\n\
        </function>\n</tool_call>";
    let parameters = json!({"type": "object", "properties": {"id": {"type": "string"}}});
    let tools = json!([{"type": "namespace", "name": "agents", "description": "Agents.", "tools": [
        {"type": "function", "name": "stop", "description": "Stops one.", "strict": false,
         "parameters": parameters},
    ]}]);
    let response = both(Reply::Says, call, ask(json!({"tools": tools}))).await;
    let item = last(&response)["output"][0].clone();
    assert_eq!((&item["namespace"], &item["name"]), (&json!("agents"), &json!("stop")));

    let request = ask(json!({"tools": tools, "input": [
        {"role": "user", "content": "Stop it."},
        item,
        {"type": "function_call_output", "call_id": item["call_id"],
         "output": [{"type": "input_text", "text": "stopped"}]},
    ]}));
    let prompt = prompt(&request).await;
    assert!(prompt.contains("\"name\": \"agents.stop\", \"description\": \"Agents."), "{prompt}");
    assert!(prompt.contains("<function=agents.stop>"), "{prompt}");
}

#[tokio::test]
async fn log_probabilities_come_with_the_text_where_they_are_asked_for() {
    for fields in [
        json!({"include": ["message.output_text.logprobs"]}),
        json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        json!({"top_logprobs": 2}),
    ] {
        let response = last(&both(Reply::Says, "Hi there.", ask(fields.clone())).await);
        let logprobs = response["output"][0]["content"][0]["logprobs"].as_array().unwrap().clone();
        let text: String = logprobs.iter().map(|token| token["token"].as_str().unwrap()).collect();
        assert_eq!(text, "Hi there.");
        let top = fields["top_logprobs"].as_u64().unwrap_or(0) as usize;
        assert!(logprobs.iter().all(|t| t["top_logprobs"].as_array().unwrap().len() == top));
    }
}

#[tokio::test]
async fn characters_that_span_tokens_and_tags_in_a_text_arrive_whole() {
    let text = "ď 👋 日 <think> <tool_call>";
    let response = last(&both(Reply::Says, text, ask(json!({}))).await);
    assert_eq!(response["output"][0]["content"][0]["text"], text);
}

#[tokio::test]
async fn a_failure_after_streaming_began_ends_the_response() {
    let server = TestServer::start(vec![Reply::FailsAfter("Hi")]).await;
    let response = server.client.post(RESPONSES, &ask(json!({"stream": true}))).await;
    let mut events = response.named_events();
    let (name, failed) = events.pop().unwrap();
    assert_eq!(name, "response.failed");
    assert_eq!(failed["response"]["status"], "failed");
    let message = failed["response"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("not finite"), "{message}");
    let (name, error) = events.pop().unwrap();
    assert_eq!((name.as_str(), &error["message"]), ("error", &json!(message)));
}

/// The prompt that a request becomes.
async fn prompt(request: &Value) -> String {
    let server = TestServer::start(Vec::new()).await;
    let response = server.client.post(RESPONSES, request).await;
    assert_eq!(response.status, 200, "{request} -> {}", response.body);
    server.calls.recv().unwrap().prompt
}

#[tokio::test]
async fn a_conversation_with_tools_reaches_the_template_in_order() {
    let request = ask(json!({
        "instructions": "Be brief.",
        "reasoning": null,
        "tools": weather_tool(),
        "input": [
            {"type": "message", "role": "developer",
             "content": [{"type": "input_text", "text": "Be kind."}]},
            {"role": "user", "content": "Hello."},
            {"role": "user", "content": [{"type": "input_text", "text": "Lisbon and Rome?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed",
             "content": [{"type": "reasoning_text", "text": "Two calls."}]},
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAAB"},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather",
             "arguments": "{\"city\": \"Lisbon\"}", "id": "fc_1", "status": "completed"},
            {"type": "function_call", "call_id": "call_2", "name": "get_weather",
             "arguments": "{\"city\": \"Ro"},
            {"type": "function_call_output", "call_id": "call_2", "output": "broken"},
            {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        ],
    }));
    insta::assert_snapshot!(prompt(&request).await);
}

#[tokio::test]
async fn thinking_is_switched_by_the_effort() {
    let (on, off) = ("<think>\n", "<think>\n\n</think>\n\n");
    for (fields, ending) in [
        (json!({"reasoning": null}), on),
        (json!({"reasoning": {"summary": "auto"}}), on),
        (json!({"reasoning": {"effort": "low"}}), on),
        (json!({"reasoning": {"effort": "none"}}), off),
        (json!({"reasoning": null, "enable_thinking": false}), off),
    ] {
        let prompt = prompt(&ask(fields.clone())).await;
        assert!(prompt.ends_with(ending), "{fields}: {prompt:?}");
    }
}

/// What Codex 0.171 sends, with shorter texts and fewer tools.
#[tokio::test]
async fn a_request_of_codex_is_answered() {
    let text = |role: &str, text: &str| {
        json!({"type": "message", "id": "msg_1", "role": role,
               "content": [{"type": "input_text", "text": text}]})
    };
    let parameters = json!({"type": "object", "properties": {"cmd": {"type": "string"}},
                            "required": ["cmd"], "additionalProperties": false});
    let request = json!({
        "model": "lily", "stream": true,
        "input": [
            text("developer", "You are a coding agent."),
            text("developer", "The sandbox is read-only."),
            text("user", "<environment_context>\n</environment_context>"),
            text("user", "Hello"),
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "description": "Runs a command.",
             "strict": false, "parameters": parameters},
            {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.", "tools": [
                {"type": "function", "name": "close_agent", "description": "Closes an agent.",
                 "strict": false, "parameters": parameters},
            ]},
            {"type": "web_search", "external_web_access": false},
        ],
        "tool_choice": "auto", "parallel_tool_calls": true,
        "reasoning": {"summary": "auto"}, "store": false,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a22c63", "client_metadata": {"thread_id": "01a22c63"},
    });
    let text = "Well.\n</think>\n\nHi.";
    let server = TestServer::start(vec![Reply::Says(text)]).await;
    let response = server.client.post(RESPONSES, &request).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let whole = last(&response);
    assert_eq!(whole["output"][1]["content"][0]["text"], "Hi.");
    // A search that cannot find anything is not offered, and the response says so.
    let offered: Vec<&Value> = whole["tools"].as_array().unwrap().iter().collect();
    assert!(offered.iter().all(|tool| tool["type"] != "web_search"));
    assert!(!server.calls.recv().unwrap().prompt.contains("web_search"));
}

#[tokio::test]
async fn nothing_is_stored_and_asking_for_it_is_a_404() {
    let server = TestServer::start(vec![Reply::Says("Hi.")]).await;
    let response = server.client.post(RESPONSES, &ask(json!({"store": true}))).await.json();
    assert_eq!(response["store"], false);
    let id = response["id"].as_str().unwrap();
    for (method, path) in [
        ("GET", format!("{RESPONSES}/{id}")),
        ("DELETE", format!("{RESPONSES}/{id}")),
        ("GET", format!("{RESPONSES}/{id}/input_items")),
        ("POST", format!("{RESPONSES}/{id}/cancel")),
    ] {
        let gone = server.client.send(method, &path, &[], b"").await;
        assert_eq!((gone.status, gone.error("code")), (404, json!("response_not_found")));
        assert!(gone.error("message").as_str().unwrap().contains(id), "{method} {path}");
    }
}

#[tokio::test]
async fn tokens_are_counted_as_the_answer_would_report_them() {
    let server = TestServer::start(vec![Reply::Says("Hi.")]).await;
    let request = ask(json!({"instructions": "Be brief.", "tools": weather_tool()}));
    let answered = server.client.post(RESPONSES, &request).await.json();
    let counted = server.client.post("/v1/responses/input_tokens", &request).await.json();
    let expected = json!({
        "object": "response.input_tokens", "input_tokens": answered["usage"]["input_tokens"],
    });
    assert_eq!(counted, expected);
}
