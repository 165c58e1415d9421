//! Every kind of bad request to Anthropic's API gets its own clear answer, in
//! the shape that its clients read.

mod common;

use common::TestServer;
use common::client::Response;
use common::options;
use common::script::Reply;
use lily_server::ApiKeys;
use lily_server::ServerOptions;
use serde_json::Value;
use serde_json::json;

const MESSAGES: &str = "/v1/messages";
const JSON: (&str, &str) = ("content-type", "application/json");

fn ask(extra: Value) -> Value {
    let mut body = json!({"max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Fields that make a good request bad, and the field the error must name.
fn bad_fields() -> Vec<(Value, &'static str)> {
    let message = |message: Value| json!({"messages": [message]});
    let user = |content: Value| message(json!({"role": "user", "content": content}));
    let assistant = |block: Value| {
        json!({"messages": [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": [block]},
            {"role": "user", "content": "Go on."},
        ]})
    };
    let begun = |content: Value| {
        json!({"messages": [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": content},
        ]})
    };
    let thinks_on = || {
        let mut fields = begun(json!("I go"));
        fields["thinking"] = json!({"type": "adaptive"});
        fields
    };
    let format = |format: Value| json!({"output_config": {"format": format}});
    let formats = || {
        let mut fields = format(json!({"type": "json_schema", "schema": {"type": "object"}}));
        fields["output_format"] = json!({"type": "json_schema", "schema": {"type": "string"}});
        fields
    };
    let begun_form = || {
        let mut fields = begun(json!("I go"));
        let schema = json!({"type": "json_schema", "schema": {"type": "object"}});
        fields["output_config"] = json!({"format": schema});
        fields
    };
    let tool = |fields: Value| {
        let mut tool = json!({"name": "f", "input_schema": {"type": "object"}});
        tool.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"tools": [tool]})
    };
    let thinking = |thinking: Value| json!({"thinking": thinking});
    let edit = |edit: Value| json!({"context_management": {"edits": [edit]}});
    let result = |result: Value| {
        json!({"messages": [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
            ]},
            {"role": "user", "content": [result]},
        ]})
    };
    vec![
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": "64"}), "max_tokens"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": ["Hello"]}), "messages[0]"),
        (message(json!({"content": "Hello"})), "messages[0].role"),
        (message(json!({"role": "tool", "content": "Hello"})), "messages[0].role"),
        (message(json!({"role": "user"})), "messages[0].content"),
        (message(json!({"role": "user", "content": "a", "name": "b"})), "messages[0].name"),
        (begun(json!(" ")), "messages[1].content"),
        (begun(json!([])), "messages[1].content"),
        (thinks_on(), "messages[1].role"),
        (user(json!("")), "messages[0].content"),
        (user(json!([])), "messages[0].content"),
        (user(json!([{"type": "text", "text": " "}])), "messages[0].content"),
        (user(json!(["Hello"])), "messages[0].content[0]"),
        (user(json!([{"text": "Hello"}])), "messages[0].content[0].type"),
        (user(json!([{"type": "text"}])), "messages[0].content[0].text"),
        (user(json!([{"type": "text", "text": "a", "b": 1}])), "messages[0].content[0].b"),
        (
            user(json!([{"type": "image", "source": {"type": "base64", "data": ""}}])),
            "messages[0].content[0].type",
        ),
        (
            user(json!([{"type": "document", "source": {"type": "text", "data": ""}}])),
            "messages[0].content[0].type",
        ),
        (
            user(json!([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])),
            "messages[0].content[0].type",
        ),
        (
            user(json!([{"type": "tool_result", "tool_use_id": "toolu_9", "content": "a"}])),
            "messages[0].content[0].tool_use_id",
        ),
        (assistant(json!({"type": "server_tool_use"})), "messages[1].content[0].type"),
        (assistant(json!({"type": "tool_use", "id": "a"})), "messages[1].content[0].name"),
        (
            assistant(json!({"type": "tool_use", "id": "a", "name": "f", "input": "{}"})),
            "messages[1].content[0].input",
        ),
        (
            assistant(json!({"type": "tool_use", "id": "a", "name": "f", "input": {}})),
            "messages[1].content[0].id",
        ),
        (
            assistant(json!({"type": "thinking", "signature": ""})),
            "messages[1].content[0].thinking",
        ),
        (result(json!({"type": "tool_result"})), "messages[2].content[0].tool_use_id"),
        (
            result(json!({"type": "tool_result", "tool_use_id": "toolu_1", "is_error": "no"})),
            "messages[2].content[0].is_error",
        ),
        (
            result(json!({"type": "tool_result", "tool_use_id": "toolu_1",
                          "content": [{"type": "image", "source": {}}]})),
            "messages[2].content[0].content[0].type",
        ),
        (json!({"system": 1}), "system"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"temperature": 1.5}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"stop_sequences": "a"}), "stop_sequences"),
        (json!({"stop_sequences": ["a", 1]}), "stop_sequences[1]"),
        (json!({"stop_sequences": [" "]}), "stop_sequences[0]"),
        (json!({"stop_sequences": vec!["a"; 65]}), "stop_sequences"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"tools": {}}), "tools"),
        (json!({"tools": ["f"]}), "tools[0]"),
        (tool(json!({"name": null})), "tools[0].name"),
        (tool(json!({"name": "a<b"})), "tools[0].name"),
        (tool(json!({"input_schema": null})), "tools[0].input_schema"),
        (tool(json!({"type": "web_search_20250305"})), "tools[0].type"),
        (tool(json!({"type": "bash_20250124"})), "tools[0].type"),
        (tool(json!({"defer_loading": true})), "tools[0].defer_loading"),
        (tool(json!({"allowed_callers": ["code_execution_20250825"]})), "tools[0].allowed_callers"),
        (tool(json!({"parameters": {}})), "tools[0].parameters"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"tool_choice": {}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "some"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name"),
        (json!({"tool_choice": {"type": "tool", "name": "g"}}), "tool_choice.name"),
        (tool(json!({"strict": "yes"})), "tools[0].strict"),
        (tool(json!({"strict": true, "input_schema": {"type": "object", "if": {}}})), "tools"),
        (thinking(json!(true)), "thinking"),
        (thinking(json!({"type": "sometimes"})), "thinking.type"),
        (thinking(json!({"type": "enabled"})), "thinking.budget_tokens"),
        (thinking(json!({"type": "enabled", "budget_tokens": 0})), "thinking.budget_tokens"),
        (thinking(json!({"type": "adaptive", "display": "all"})), "thinking.display"),
        (thinking(json!({"type": "disabled", "budget_tokens": 9})), "thinking.budget_tokens"),
        (edit(json!({"type": "clear_tool_uses_20250919"})), "context_management.edits[0].type"),
        (
            edit(json!({"type": "clear_thinking_20251015", "keep": 3})),
            "context_management.edits[0].keep",
        ),
        (json!({"output_config": {"effort": "huge"}}), "output_config.effort"),
        (json!({"output_config": {"format": {}}}), "output_config.format.type"),
        (format(json!({"type": "xml"})), "output_config.format.type"),
        (format(json!({"type": "json_schema"})), "output_config.format.schema"),
        (
            format(json!({"type": "json_schema", "schema": {"if": {}}})),
            "output_config.format.schema",
        ),
        (json!({"output_format": {"type": "json_schema"}}), "output_format.schema"),
        (formats(), "output_format"),
        (begun_form(), "messages[1].role"),
        (json!({"metadata": {"name": "ann"}}), "metadata.name"),
        (json!({"mcp_servers": [{}]}), "mcp_servers"),
        (json!({"container": "c"}), "container"),
        (json!({"frequency_penalty": 1}), "frequency_penalty"),
    ]
}

fn message(response: &Response) -> String {
    response.error("message").as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn each_bad_field_is_refused_by_name() {
    let server = TestServer::start(Vec::new()).await;
    let mut wrong = Vec::new();
    for (fields, param) in bad_fields() {
        let response = server.client.post(MESSAGES, &ask(fields.clone())).await;
        let named = message(&response).starts_with(&format!("'{param}"));
        let kind = response.error("type");
        if response.status != 400
            || response.json()["type"] != "error"
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
async fn null_and_hints_stand_for_the_default_of_every_field() {
    let server = TestServer::start(Vec::new()).await;
    let mut fields = serde_json::Map::new();
    for name in [
        "model",
        "system",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "stream",
        "tools",
        "tool_choice",
        "thinking",
        "metadata",
        "service_tier",
        "speed",
        "cache_control",
        "context_management",
        "output_config",
        "container",
        "unheard_of",
    ] {
        fields.insert(name.to_owned(), Value::Null);
    }
    let hints = json!({
        "model": "claude", "metadata": {"user_id": "ann"}, "service_tier": "auto",
        "cache_control": {"type": "ephemeral"}, "tools": [], "speed": "standard",
        "tool_choice": {"type": "auto"}, "context_management": {"edits": []},
        "thinking": {"type": "disabled"}, "output_config": {"effort": "low"},
    });
    for fields in [Value::Object(fields), hints] {
        let response = server.client.post(MESSAGES, &ask(fields)).await;
        assert_eq!(response.status, 200, "{}", response.body);
    }
}

#[tokio::test]
async fn errors_have_the_shape_of_the_api_wherever_they_come_from() {
    let options = ServerOptions {
        api_keys: ApiKeys::new(["secret"]).unwrap(),
        max_body_bytes: 5000,
        ..options()
    };
    let server = TestServer::with_options(options, vec![Reply::FailsAfter("Hi")]).await;
    let key = ("x-api-key", "secret");
    let good = serde_json::to_vec(&ask(json!({}))).unwrap();
    let large = serde_json::to_vec(&ask(json!({"system": "x".repeat(6000)}))).unwrap();
    for (path, headers, body, status, kind) in [
        (MESSAGES, vec![JSON], &good, 401, "authentication_error"),
        (MESSAGES, vec![JSON, key], &b"{".to_vec(), 400, "invalid_request_error"),
        (MESSAGES, vec![key], &good, 415, "invalid_request_error"),
        (MESSAGES, vec![JSON, key], &large, 413, "request_too_large"),
        (MESSAGES, vec![JSON, key], &good, 500, "api_error"),
        ("/v1/messages/batches", vec![JSON, key], &good, 404, "not_found_error"),
        (
            "/v1/files",
            vec![JSON, key, ("anthropic-version", "2023-06-01")],
            &good,
            404,
            "not_found_error",
        ),
    ] {
        let response = server.client.send("POST", path, &headers, body).await;
        assert_eq!(response.status, status, "{path}: {}", response.body);
        let error = response.json();
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!(kind)));
        assert!(!message(&response).is_empty());
        assert_eq!(error["request_id"].as_str(), response.header("request-id"));
    }
    let wrong = server.client.send("GET", MESSAGES, &[key], b"").await;
    assert_eq!((wrong.status, wrong.error("type")), (405, json!("invalid_request_error")));
    let other = server.client.send("GET", "/v1/nothing", &[key], b"").await;
    assert_eq!(other.error("code"), "unknown_url");
}

#[tokio::test]
async fn a_full_queue_is_a_rate_limit_with_a_time_to_come_back() {
    let (started, begun) = tokio::sync::oneshot::channel();
    let (release, released) = std::sync::mpsc::channel();
    let reply = Reply::Waits { started, release: released, reply: Box::new(Reply::Says("Hi.")) };
    let options = ServerOptions { queue_limit: 0, ..options() };
    let server = TestServer::with_options(options, vec![reply]).await;
    let client = server.client;
    let first = tokio::spawn(async move { client.post(MESSAGES, &ask(json!({}))).await });
    begun.await.unwrap();
    let second = server.client.post(MESSAGES, &ask(json!({}))).await;
    assert_eq!((second.status, second.error("type")), (429, json!("rate_limit_error")));
    assert!(second.header("retry-after").is_some());
    release.send(()).unwrap();
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_in_the_words_that_clients_look_for() {
    let server = TestServer::start(Vec::new()).await;
    let request = ask(json!({"system": "one two three ".repeat(3000)}));
    let response = server.client.post(MESSAGES, &request).await;
    assert_eq!(response.status, 400);
    let message = message(&response);
    assert!(message.starts_with("prompt is too long: "), "{message}");
    assert!(message.ends_with("> 4096 maximum"), "{message}");
}
