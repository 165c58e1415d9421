//! Every kind of bad request to `/v1/responses` gets its own clear answer.

mod common;

use common::TestServer;
use serde_json::Value;
use serde_json::json;

const RESPONSES: &str = "/v1/responses";

fn ask(extra: Value) -> Value {
    let mut body = json!({"input": "Hello"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Fields that make a good request bad, and the field the error must name.
fn bad_fields() -> Vec<(Value, &'static str)> {
    let item = |item: Value| json!({"input": [{"role": "user", "content": "Go."}, item]});
    let user = |content: Value| item(json!({"role": "user", "content": content}));
    let call = |call: Value| {
        let mut whole =
            json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"});
        whole.as_object_mut().unwrap().extend(call.as_object().unwrap().clone());
        item(whole)
    };
    let tool = |tool: Value| json!({"tools": [tool]});
    let custom = |format: Value| tool(json!({"type": "custom", "name": "f", "format": format}));
    let choice = |choice: Value| json!({"tool_choice": choice});
    vec![
        (json!({"input": null}), "input"),
        (json!({"input": 1}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ["Hello"]}), "input[0]"),
        (item(json!({"content": "Hello"})), "input[1].role"),
        (item(json!({"role": "tool", "content": "Hello"})), "input[1].role"),
        (item(json!({"role": "user"})), "input[1].content"),
        (user(json!(" ")), "input[1].content"),
        (user(json!([])), "input[1].content"),
        (user(json!(["Hello"])), "input[1].content[0]"),
        (user(json!([{"text": "Hello"}])), "input[1].content[0].type"),
        (user(json!([{"type": "input_text"}])), "input[1].content[0].text"),
        (user(json!([{"type": "input_image", "image_url": "data:,"}])), "input[1].content[0].type"),
        (user(json!([{"type": "input_file", "file_id": "a"}])), "input[1].content[0].type"),
        (item(json!({"type": "item_reference", "id": "a"})), "input[1].type"),
        (item(json!({"type": "web_search_call", "id": "a"})), "input[1].type"),
        (item(json!({"role": "user", "content": "a", "b": 1})), "input[1].b"),
        (call(json!({"name": null})), "input[1].name"),
        (call(json!({"arguments": null})), "input[1].arguments"),
        (call(json!({"call_id": null})), "input[1].call_id"),
        (call(json!({})), "input[1].call_id"),
        (
            item(json!({"type": "function_call_output", "call_id": "a", "output": "b"})),
            "input[1].call_id",
        ),
        (item(json!({"type": "function_call_output", "call_id": "a"})), "input[1].output"),
        (item(json!({"type": "reasoning", "summary": "a"})), "input[1].summary"),
        (json!({"instructions": ["a"]}), "instructions"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": {"id": "conv_1"}}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"prompt": {"id": "pmpt_1"}}), "prompt"),
        (json!({"max_tool_calls": 1}), "max_tool_calls"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_tokens": 10}), "max_tokens"),
        (json!({"temperature": 2.5}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"include": ["everything"]}), "include[0]"),
        (json!({"include": [1]}), "include[0]"),
        (json!({"stream": 1}), "stream"),
        (json!({"stream_options": 1}), "stream_options"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options.include_usage"),
        (
            json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
            "stream_options.include_obfuscation",
        ),
        (json!({"metadata": "x"}), "metadata"),
        (json!({"store": "no"}), "store"),
        (json!({"reasoning": "high"}), "reasoning"),
        (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
        (json!({"reasoning": {"summary": "long"}}), "reasoning.summary"),
        (json!({"reasoning": {"effort": "none"}, "enable_thinking": true}), "reasoning.effort"),
        (json!({"text": {"format": {}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "text.format.name"),
        (json!({"text": {"format": {"type": "json_schema", "name": "a"}}}), "text.format.schema"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"if": {}}}}}),
            "text.format.schema",
        ),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (json!({"text": {"style": "x"}}), "text.style"),
        (tool(json!({"name": "f"})), "tools[0].type"),
        (tool(json!({"type": "function"})), "tools[0].name"),
        (tool(json!({"type": "function", "function": {"name": "f"}})), "tools[0].name"),
        (tool(json!({"type": "function", "name": "a<b"})), "tools[0].name"),
        (tool(json!({"type": "function", "name": "f", "parameters": []})), "tools[0].parameters"),
        (tool(json!({"type": "web_search"})), "tools[0].type"),
        (tool(json!({"type": "local_shell"})), "tools[0].type"),
        (tool(json!({"type": "mcp", "server_label": "a"})), "tools[0].type"),
        (custom(json!({"type": "grammar", "syntax": "lark"})), "tools[0].format.type"),
        (
            tool(json!({"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]})),
            "tools[0].tools[0].type",
        ),
        (choice(json!(1)), "tool_choice"),
        (choice(json!("some")), "tool_choice"),
        (choice(json!("required")), "tool_choice"),
        (choice(json!({"name": "f"})), "tool_choice.type"),
        (choice(json!({"type": "mcp"})), "tool_choice.type"),
        (choice(json!({"type": "function"})), "tool_choice.name"),
        (choice(json!({"type": "function", "name": "f"})), "tool_choice.name"),
        (choice(json!({"type": "allowed_tools", "tools": []})), "tool_choice.mode"),
        (
            choice(json!({"type": "allowed_tools", "mode": "auto", "tools": []})),
            "tool_choice.tools",
        ),
        (
            choice(json!({"type": "allowed_tools", "mode": "auto",
                          "tools": [{"type": "custom", "name": "f"}]})),
            "tool_choice.tools[0].name",
        ),
        (
            tool(json!({"type": "function", "name": "f", "strict": true,
                        "parameters": {"type": "object", "if": {}}})),
            "tools",
        ),
        (json!({"thinking_budget": -1}), "thinking_budget"),
        (
            json!({"chat_template_kwargs": {"thinking_budget": "a"}}),
            "chat_template_kwargs.thinking_budget",
        ),
        (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
        (json!({"inputs": "Hello"}), "inputs"),
    ]
}

#[tokio::test]
async fn each_bad_field_is_refused_by_name() {
    let server = TestServer::start(Vec::new()).await;
    let mut wrong = Vec::new();
    for (fields, param) in bad_fields() {
        let response = server.client.post(RESPONSES, &ask(fields.clone())).await;
        let message = response.error("message");
        let named = message.as_str().is_some_and(|text| text.contains(param));
        if response.status != 400
            || response.error("param") != param
            || response.error("type") != "invalid_request_error"
            || !named
        {
            wrong.push(format!("{fields} -> {} {}", response.status, response.body));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(server.calls.try_recv().is_err(), "a bad request reached the generator");
}

#[tokio::test]
async fn null_stands_for_the_default_of_every_field() {
    let server = TestServer::start(Vec::new()).await;
    let mut fields = serde_json::Map::new();
    for name in [
        "model",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "temperature",
        "top_p",
        "top_logprobs",
        "include",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "reasoning",
        "text",
        "truncation",
        "store",
        "background",
        "previous_response_id",
        "conversation",
        "prompt",
        "metadata",
        "user",
        "service_tier",
        "unheard_of",
    ] {
        fields.insert(name.to_owned(), Value::Null);
    }
    let response = server.client.post(RESPONSES, &ask(Value::Object(fields))).await;
    assert_eq!(response.status, 200, "{}", response.body);
}
