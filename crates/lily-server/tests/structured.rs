//! Answers that are held to a form, and forms that are refused.

mod common;

use common::TestServer;
use common::chat;
use common::client::Client;
use common::demo;
use common::options;
use common::script::Reply;
use common::weather_tool;
use serde_json::Value;
use serde_json::json;

/// Fields that make a good request bad, and the field the error must name.
fn bad_fields() -> Vec<(Value, &'static str)> {
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}});
    let wrapped =
        |inner: Value| json!({"response_format": {"type": "json_schema", "json_schema": inner}});
    let choice = |choice: Value| json!({"tools": weather_tool(), "tool_choice": choice});
    let allowed =
        |allowed: Value| choice(json!({"type": "allowed_tools", "allowed_tools": allowed}));
    let tool = |parameters: Value| json!({"tools": [{"type": "function", "function": {"name": "a", "strict": true, "parameters": parameters}}]});
    const SCHEMA: &str = "response_format.json_schema.schema";
    vec![
        (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        (
            json!({"response_format": {"type": "json_object", "schema": {}}}),
            "response_format.schema",
        ),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (wrapped(json!("a")), "response_format.json_schema"),
        (wrapped(json!({"schema": {}})), "response_format.json_schema.name"),
        (wrapped(json!({"name": "a b", "schema": {}})), "response_format.json_schema.name"),
        (wrapped(json!({"name": "a"})), SCHEMA),
        (
            wrapped(json!({"name": "a", "schema": {}, "strict": 1})),
            "response_format.json_schema.strict",
        ),
        (
            wrapped(json!({"name": "a", "schema": {}, "extra": 1})),
            "response_format.json_schema.extra",
        ),
        (schema(json!({"type": "sting"})), SCHEMA),
        (schema(json!({"not": {}})), SCHEMA),
        (schema(json!({"type": "integer", "multipleOf": 999_983})), SCHEMA),
        (schema(json!({"properties": {"a": {"format": "iri", "type": "string"}}})), SCHEMA),
        (schema(json!({"oneOf": [{"type": "string"}, {"maxLength": 2}]})), SCHEMA),
        (json!({"structured_outputs": {}}), "structured_outputs"),
        (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs"),
        (json!({"structured_outputs": {"xml": "a"}}), "structured_outputs.xml"),
        (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json"),
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs.regex"),
        (json!({"structured_outputs": {"choice": ["a", 1]}}), "structured_outputs.choice"),
        (json!({"structured_outputs": {"choice": []}}), "structured_outputs.choice"),
        (
            json!({"structured_outputs": {"grammar": "start: nowhere"}}),
            "structured_outputs.grammar",
        ),
        (json!({"guided_json": 1}), "guided_json"),
        (json!({"guided_regex": ["a"]}), "guided_regex"),
        (json!({"guided_choice": "a"}), "guided_choice"),
        (json!({"guided_grammar": "no grammar"}), "guided_grammar"),
        (json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}), "guided_regex"),
        (choice(json!("any")), "tool_choice"),
        (choice(json!({"type": "web_search"})), "tool_choice.type"),
        (choice(json!({"function": {"name": "get_weather"}})), "tool_choice.type"),
        (choice(json!({"type": "function"})), "tool_choice.function"),
        (choice(json!({"type": "function", "function": {}})), "tool_choice.function.name"),
        (
            choice(json!({"type": "function", "function": {"name": "other"}})),
            "tool_choice.function.name",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "a"}}}),
            "tool_choice.function.name",
        ),
        (allowed(json!({"mode": "never", "tools": []})), "tool_choice.allowed_tools.mode"),
        (allowed(json!({"mode": "auto", "tools": []})), "tool_choice.allowed_tools.tools"),
        (
            allowed(
                json!({"mode": "auto", "tools": [{"type": "function", "function": {"name": "b"}}]}),
            ),
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        (tool(json!({"type": "object", "properties": {"x": {"not": {}}}})), "tools"),
        (tool(json!({"type": "object", "minProperties": 3})), "tools"),
        (json!({"thinking_budget": -1}), "thinking_budget"),
        (json!({"thinking_token_budget": "few"}), "thinking_token_budget"),
        (json!({"thinking_budget": 3, "thinking_token_budget": 4}), "thinking_token_budget"),
        (
            json!({"thinking_budget": 3, "chat_template_kwargs": {"thinking_budget": 4}}),
            "chat_template_kwargs.thinking_budget",
        ),
        // The request of `chat` switches thinking off.
        (json!({"thinking_budget": 3}), "thinking_budget"),
    ]
}

#[tokio::test]
async fn each_form_that_cannot_be_honoured_is_refused_by_name() {
    let server = TestServer::start(Vec::new()).await;
    let mut wrong = Vec::new();
    for (fields, param) in bad_fields() {
        let response = server.client.chat(&chat(fields.clone())).await;
        let message = response.error("message");
        let named = message.as_str().is_some_and(|text| text.contains(&format!("'{param}'")));
        if response.status != 400 || response.error("param") != param || !named {
            wrong.push(format!("{fields} -> {} {}", response.status, response.body));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(server.calls.try_recv().is_err(), "a bad request reached the generator");
}

#[tokio::test]
async fn tools_that_must_not_be_called_are_not_shown_to_the_model() {
    let server =
        TestServer::start(vec![Reply::Says("a"), Reply::Says("b"), Reply::Says("c")]).await;
    let tools = json!([weather_tool()[0], {"type": "function", "function": {"name": "get_time"}}]);
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}],
    }});
    for (choice, shown) in
        [(json!("none"), [false, false]), (json!("auto"), [true, true]), (allowed, [false, true])]
    {
        let body = chat(json!({"tools": tools, "tool_choice": choice}));
        assert_eq!(server.client.chat(&body).await.status, 200);
        let prompt = server.calls.recv().unwrap().prompt;
        assert_eq!(["get_weather", "get_time"].map(|name| prompt.contains(name)), shown);
    }
}

/// Fields for a greedy answer to one question.
fn ask(question: &str, extra: Value) -> Value {
    let mut fields = json!({
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 300,
    });
    fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    chat(fields)
}

/// The only choice and the usage, after the same answer has come again and as a stream.
async fn answer(client: &Client, body: &Value) -> (Value, Value) {
    let response = client.chat(body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let whole = response.json();
    let choice = whole["choices"][0].clone();
    assert_eq!(
        client.chat(body).await.json()["choices"][0]["message"]["content"],
        choice["message"]["content"]
    );
    let mut streaming = body.clone();
    streaming["stream"] = json!(true);
    let events = client.chat(&streaming).await.events();
    for field in ["content", "reasoning_content"] {
        let parts = events.iter().filter_map(|e| e["choices"][0]["delta"][field].as_str());
        let joined: String = parts.collect();
        assert_eq!(joined, choice["message"][field].as_str().unwrap_or_default());
    }
    (choice, whole["usage"].clone())
}

fn content(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap()
}

fn calls(choice: &Value) -> Vec<(String, Value)> {
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let read = |call: &Value| {
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        (name, serde_json::from_str(arguments).unwrap())
    };
    calls.iter().map(read).collect()
}

#[tokio::test]
async fn the_demo_model_answers_in_the_form_asked_for_with_thinking_on_and_off() {
    let client = demo::start(options()).await;
    let schema = json!({
        "type": "object",
        "properties": {
            "answer": {"type": "string", "maxLength": 30},
            "number": {"type": "integer", "minimum": 0, "maximum": 999},
            "sure": {"type": "boolean"},
        },
        "required": ["answer", "number", "sure"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}});
    for fields in [
        json!({"enable_thinking": false}),
        json!({"enable_thinking": true}),
        json!({"enable_thinking": true, "thinking_budget": 5}),
        json!({"enable_thinking": true, "temperature": 1.2, "seed": 7}),
    ] {
        let mut body = ask("What is 12 + 30?", json!({"response_format": format}));
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (choice, _) = answer(&client, &body).await;
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        let value: Value = serde_json::from_str(content(&choice)).unwrap();
        assert!(value["answer"].is_string() && value["sure"].is_boolean(), "{value}");
        assert!(value["number"].as_u64().is_some_and(|number| number < 1000), "{value}");
        assert_eq!(value.as_object().unwrap().len(), 3);
        let reasoning = choice["message"]["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(reasoning.is_empty(), fields["enable_thinking"] == false, "{choice}");
    }
}

#[tokio::test]
async fn every_name_for_a_form_is_honoured() {
    let client = demo::start(options()).await;
    let grammar = "start: \"The answer is \" NUMBER \".\"\nNUMBER: /[0-9]{1,3}/";
    let code: fn(&str) -> bool = |text| {
        let (letters, digits) = text.split_once('-').unwrap();
        letters.len() == 3
            && letters.bytes().all(|b| b.is_ascii_uppercase())
            && digits.len() == 2
            && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let town: fn(&str) -> bool = |text| text == "Tokyo" || text == "Kyoto";
    let sentence: fn(&str) -> bool = |text| {
        let number = text.strip_prefix("The answer is ").and_then(|rest| rest.strip_suffix('.'));
        number.unwrap().parse::<u32>().unwrap() < 1000
    };
    let five: fn(&str) -> bool = |text| text == "5";
    for (fields, fits) in [
        (json!({"guided_regex": "[A-Z]{3}-[0-9]{2}"}), code),
        (json!({"structured_outputs": {"regex": "[A-Z]{3}-[0-9]{2}"}}), code),
        (json!({"guided_choice": ["Tokyo", "Kyoto"]}), town),
        (json!({"structured_outputs": {"choice": ["Tokyo", "Kyoto"]}}), town),
        (json!({"guided_grammar": grammar}), sentence),
        (json!({"structured_outputs": {"grammar": grammar}}), sentence),
        (json!({"guided_json": {"const": 5}}), five),
        (json!({"guided_json": "{\"const\": 5}"}), five),
        (
            json!({"structured_outputs": {"json": {"enum": ["a", 1]}}}),
            (|text| text == "\"a\"" || text == "1") as fn(&str) -> bool,
        ),
        (json!({"response_format": {"type": "text"}, "guided_json": {"const": 5}}), five),
    ] {
        let (choice, _) =
            answer(&client, &ask("What is the capital of Japan?", fields.clone())).await;
        assert!(fits(content(&choice)) && choice["finish_reason"] == "stop", "{fields}: {choice}");
    }
    let body =
        ask("Hello!", json!({"response_format": {"type": "json_object"}, "max_tokens": 120}));
    let (choice, _) = answer(&client, &body).await;
    assert!(content(&choice).starts_with('{'), "{choice}");
    if choice["finish_reason"] == "stop" {
        serde_json::from_str::<serde_json::Map<String, Value>>(content(&choice)).unwrap();
    }
}

#[tokio::test]
async fn a_required_or_named_function_is_called_with_valid_arguments() {
    let client = demo::start(options()).await;
    let time = json!({"type": "function", "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}, "hour": {"type": "integer", "minimum": 0, "maximum": 23}},
            "required": ["zone", "hour"],
        },
    }});
    let tools = json!([weather_tool()[0], time]);
    let named = json!({"type": "function", "function": {"name": "get_time"}});
    let only_time = json!({"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}],
    }});
    // A question that the model would answer without any tool.
    for thinking in [false, true] {
        for choice in [json!("required"), named.clone(), only_time.clone()] {
            let body = ask(
                "What is the capital of Japan?",
                json!({
                    "tools": tools,
                    "tool_choice": choice,
                    "parallel_tool_calls": false,
                    "enable_thinking": thinking,
                }),
            );
            let (answered, _) = answer(&client, &body).await;
            assert_eq!(answered["finish_reason"], "tool_calls", "{answered}");
            assert_eq!(content(&answered), "");
            let calls = calls(&answered);
            assert_eq!(calls.len(), 1, "{calls:?}");
            match calls[0].0.as_str() {
                "get_time" => {
                    assert!(["UTC", "CET"].contains(&calls[0].1["zone"].as_str().unwrap()));
                    assert!(calls[0].1["hour"].as_u64().unwrap() < 24);
                }
                name => {
                    assert_eq!((name, choice.as_str()), ("get_weather", Some("required")));
                    assert!(calls[0].1["city"].is_string());
                    assert!(
                        ["celsius", "fahrenheit"].contains(&calls[0].1["unit"].as_str().unwrap())
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn a_strict_function_is_called_as_before_and_text_stays_free() {
    let client = demo::start(options()).await;
    let mut tools = weather_tool();
    tools[0]["function"]["strict"] = json!(true);
    let weather = ask("What is the weather in Lisbon?", json!({"tools": tools}));
    let (choice, _) = answer(&client, &weather).await;
    let called = calls(&choice);
    assert_eq!((called[0].0.as_str(), &called[0].1["city"]), ("get_weather", &json!("Lisbon")));
    let capital = ask("What is the capital of Japan?", json!({"tools": tools}));
    let (choice, _) = answer(&client, &capital).await;
    assert_eq!((content(&choice).is_empty(), calls(&choice).len()), (false, 0), "{choice}");

    let none =
        ask("What is the weather in Lisbon?", json!({"tools": tools, "tool_choice": "none"}));
    let (choice, _) = answer(&client, &none).await;
    assert!(calls(&choice).is_empty() && !content(&choice).contains("<tool_call>"), "{choice}");
}

#[tokio::test]
async fn the_thinking_budget_ends_the_reasoning_and_its_tokens_count() {
    let client = demo::start(options()).await;
    let think = |fields: Value| {
        let mut body = ask("What is 127 + 58?", json!({"enable_thinking": true}));
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let (free, usage) = answer(&client, &think(json!({}))).await;
    let thought = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(thought > 8, "{usage}");
    for (fields, budget) in [
        (json!({"thinking_budget": 0}), 0),
        (json!({"thinking_token_budget": 4}), 4),
        (json!({"chat_template_kwargs": {"thinking_budget": 4}}), 4),
        (json!({"thinking_budget": 4, "temperature": 1.0, "seed": 3}), 4),
    ] {
        let (choice, usage) = answer(&client, &think(fields.clone())).await;
        let reasoning = choice["message"]["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(reasoning.is_empty(), budget == 0, "{choice}");
        assert!(!content(&choice).is_empty() && !content(&choice).contains("think>"), "{choice}");
        assert_eq!(choice["finish_reason"], "stop");
        // The line break, the tag and the empty line behind it are forced.
        let reasoning_tokens = usage["completion_tokens_details"]["reasoning_tokens"].as_u64();
        let expected = if budget == 0 { 0..=0 } else { budget + 2..=budget + 4 };
        assert!(expected.contains(&reasoning_tokens.unwrap()), "{fields} {usage}");
    }
    let (choice, _) = answer(&client, &think(json!({"thinking_budget": 10_000}))).await;
    assert_eq!(choice["message"], free["message"]);
}

#[tokio::test]
async fn log_probabilities_of_a_guided_answer_are_those_of_what_was_allowed() {
    let client = demo::start(options()).await;
    let body =
        ask("Hello!", json!({"guided_choice": ["Kyoto"], "logprobs": true, "top_logprobs": 5}));
    let choice = client.chat(&body).await.json()["choices"][0].clone();
    assert_eq!(content(&choice), "Kyoto");
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "Kyoto");
    for token in tokens {
        let rivals = token["top_logprobs"].as_array().unwrap();
        let total: f64 = rivals.iter().map(|rival| rival["logprob"].as_f64().unwrap().exp()).sum();
        assert!((total - 1.0).abs() < 1e-4 && rivals.len() <= 5, "{token}");
    }
}

#[tokio::test]
async fn a_form_that_becomes_too_complex_is_the_request_s_fault_in_every_api() {
    let client = demo::start(options()).await;
    // Each character may stand in any of many places, all of which are kept in mind.
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^(.{0,40}e.{0,40}){100}x$"}},
        "required": ["a"],
    });
    let form = json!({"type": "json_schema", "name": "a", "schema": schema});
    let anthropic = json!({"type": "json_schema", "schema": schema});
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"guided_json": schema, "messages": messages})),
        ("/v1/responses", json!({"input": "Hello!", "text": {"format": form}})),
        (
            "/v1/messages",
            json!({"output_config": {"format": anthropic}, "messages": messages, "max_tokens": 2000}),
        ),
    ] {
        let mut body = body;
        body["temperature"] = json!(0);
        let response = client.post(path, &body).await;
        assert_eq!(response.status, 400, "{path}: {}", response.body);
        assert_eq!(response.error("type"), "invalid_request_error", "{path}");
        assert!(response.body.contains("cannot be held"), "{path}: {}", response.body);
        body["stream"] = json!(true);
        let stream = client.post(path, &body).await;
        assert_eq!(stream.status, 200);
        let last = stream.body.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.contains("cannot be held"), "{path}: {last}");
        assert!(!stream.body.contains("[DONE]"), "{path}");
    }
    let body = json!({"messages": messages, "enable_thinking": false, "max_tokens": 2});
    assert_eq!(client.chat(&body).await.status, 200);
}
