//! Request messages in all the forms clients send.

mod common;

use lily_text::{ChatTemplate, RenderOptions, TextError, normalise_messages};
use serde_json::{Map, Value, json};

fn normalise(messages: &Value) -> Value {
    Value::from(normalise_messages(messages.as_array().unwrap()).unwrap())
}

fn refusal(messages: &Value) -> String {
    let error = normalise_messages(messages.as_array().unwrap()).unwrap_err();
    assert!(error.is_client_fault());
    error.to_string()
}

fn render(messages: &Value) -> Result<String, TextError> {
    let template = String::from_utf8(common::demo("chat_template.jinja")).unwrap();
    let kwargs = Map::new();
    ChatTemplate::new(&template)?.render(&RenderOptions {
        messages: &normalise_messages(messages.as_array().unwrap())?,
        tools: None,
        add_generation_prompt: false,
        kwargs: &kwargs,
    })
}

fn arguments(arguments: &Value) -> Value {
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
    let messages = json!([{"role": "assistant", "content": null, "tool_calls": [call]}]);
    normalise(&messages)[0]["tool_calls"][0]["function"]["arguments"].clone()
}

#[test]
fn a_developer_is_the_system() {
    assert_eq!(
        normalise(
            &json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
        ),
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    );
}

#[test]
fn system_messages_are_merged_at_the_beginning() {
    let user = json!({"role": "user", "content": "u"});
    assert_eq!(
        normalise(&json!([
            {"role": "system", "content": "one"}, user, {"role": "assistant", "content": "a"},
            {"role": "system", "content": " "}, {"role": "developer", "content": "two"}, user
        ])),
        json!([{"role": "system", "content": "one\n\ntwo"}, user, {"role": "assistant", "content": "a"}, user])
    );
    assert_eq!(
        normalise(&json!([user, {"role": "system", "content": "late"}])),
        json!([{"role": "system", "content": "late"}, user])
    );
    assert_eq!(
        normalise(&json!([{"role": "system", "content": ""}, user])),
        json!([{"role": "system", "content": ""}, user])
    );
}

#[test]
fn arguments_become_a_mapping() {
    for (given, expected) in [
        (json!("{\"b\": 1, \"a\": [null]}"), json!({"b": 1, "a": [null]})),
        (json!({"a": 1}), json!({"a": 1})),
        (json!("null"), json!({})),
        (json!(""), json!({})),
        (json!(" \n"), json!({})),
        (json!(null), json!({})),
        (json!("{}"), json!({})),
    ] {
        assert_eq!(arguments(&given), expected, "{given}");
    }
    let flat =
        json!([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{\"a\":1}"}]}]);
    assert_eq!(normalise(&flat)[0]["tool_calls"][0]["arguments"], json!({"a": 1}));
}

#[test]
fn broken_arguments_are_shown_to_the_model_instead_of_failing_for_ever() {
    assert_eq!(arguments(&json!("{\"a\": \"x")), json!({"arguments": "{\"a\": \"x"}));
    let prompt = render(&json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null,
         "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": \"x"}}]},
        {"role": "tool", "content": "bad arguments"},
    ]));
    assert!(prompt.unwrap().contains("<parameter=arguments>\n{\"a\": \"x\n</parameter>"));
}

#[test]
fn text_parts_are_joined_and_null_is_no_content() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    assert_eq!(
        normalise(&json!([
            {"role": "user", "content": parts, "name": null},
            {"role": "assistant", "content": null, "tool_calls": null, "reasoning": "r"},
            {"role": "tool", "content": parts, "tool_call_id": "c"},
        ])),
        json!([
            {"role": "user", "content": "ab"},
            {"role": "assistant", "reasoning": "r", "reasoning_content": "r"},
            {"role": "tool", "content": "ab", "tool_call_id": "c"},
        ])
    );
}

#[test]
fn bad_messages_are_refused_by_name() {
    let call = |call: Value| json!([{"role": "assistant", "tool_calls": [call]}]);
    for (messages, expected) in [
        (json!([]), "`messages` is empty, expected at least one message"),
        (json!(["hi"]), "`messages[0]` is a string, expected an object"),
        (json!([{"content": "hi"}]), "`messages[0].role` is missing, expected a string"),
        (
            json!([{"role": "robot"}]),
            "`messages[0].role` is `robot`, expected `system`, `developer`, `user`, `assistant` or `tool`",
        ),
        (
            json!([{"role": "user", "content": 5}]),
            "`messages[0].content` is a number, expected a string or a list of text parts",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}]),
            "`messages[0].content[1]` is of type `image_url`, which this model does not accept: only `text` parts are supported",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_audio"}]}]),
            "`messages[0].content[0]` is of type `input_audio`, which this model does not accept: only `text` parts are supported",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "`messages[0].content[0].text` is null, expected a string",
        ),
        (
            json!([{"role": "user", "content": ["a"]}]),
            "`messages[0].content[0]` is a string, expected an object with a `type`",
        ),
        (
            json!([{"role": "assistant", "reasoning_content": 1}]),
            "`messages[0].reasoning_content` is a number, expected a string",
        ),
        (
            json!([{"role": "assistant", "tool_calls": {}}]),
            "`messages[0].tool_calls` is an object, expected a list",
        ),
        (call(json!(1)), "`messages[0].tool_calls[0]` is a number, expected an object"),
        (
            call(json!({"function": {"arguments": {}}})),
            "`messages[0].tool_calls[0].function.name` is missing, expected a function name",
        ),
        (
            call(json!({"function": {"name": "f", "arguments": "[1]"}})),
            "`messages[0].tool_calls[0].function.arguments` is a list, expected a JSON object, or the text of one",
        ),
        (
            call(json!({"function": {"name": "f", "arguments": [1]}})),
            "`messages[0].tool_calls[0].function.arguments` is a list, expected a JSON object, or the text of one",
        ),
        (
            json!([{"role": "assistant", "function_call": {"name": "f"}}]),
            "`messages[0].function_call` is an object, expected absent: send `tool_calls` instead",
        ),
    ] {
        assert_eq!(refusal(&messages), expected);
    }
}

#[test]
fn a_conversation_without_a_user_is_refused_in_the_templates_words() {
    let error = render(&json!([
        {"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "t"}
    ]));
    let error = error.unwrap_err();
    assert!(error.is_client_fault());
    assert_eq!(error.to_string(), "No user query found in messages.");
}
