//! Rendering with the family's own chat template.

mod common;

use lily_text::{ChatTemplate, RenderOptions, TextError};
use serde_json::{Map, Value, json};

fn render(template: &ChatTemplate, messages: &Value, kwargs: &Value) -> Result<String, TextError> {
    template.render(&RenderOptions {
        messages: messages.as_array().unwrap(),
        tools: None,
        add_generation_prompt: true,
        kwargs: kwargs.as_object().unwrap(),
    })
}

fn source(source: &str) -> Result<String, TextError> {
    render(&ChatTemplate::new(source)?, &json!([{"role": "user", "content": "a"}]), &json!({}))
}

#[test]
fn the_published_cases_render_exactly() {
    let (Some(template), Some(cases)) =
        (common::qwen36("chat_template.jinja"), common::qwen36("template-cases.json"))
    else {
        return;
    };
    let template = ChatTemplate::new(std::str::from_utf8(&template).unwrap()).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&cases).unwrap();
    assert_eq!(cases.len(), 33);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let mut kwargs = case["kwargs"].as_object().unwrap().clone();
        let add_generation_prompt =
            kwargs.remove("add_generation_prompt").is_some_and(|value| value == true);
        let rendered = template.render(&RenderOptions {
            messages: case["messages"].as_array().unwrap(),
            tools: case["tools"].as_array().map(Vec::as_slice),
            add_generation_prompt,
            kwargs: &kwargs,
        });
        let Some(error) = case.get("error") else {
            assert_eq!(rendered.unwrap(), case["expected"].as_str().unwrap(), "{name}");
            continue;
        };
        let refused = rendered.expect_err(name);
        assert!(refused.is_client_fault(), "{name}: {refused:?}");
        let message = if error["type"] == "TemplateError" {
            Some(&error["message"])
        } else {
            error.get("template_message")
        };
        match (message, &refused) {
            (Some(expected), TextError::TemplateRaised { message }) => {
                assert_eq!(message, expected.as_str().unwrap(), "{name}");
            }
            (None, TextError::Render { .. }) => {}
            _ => panic!("{name}: {refused:?}"),
        }
    }
}

#[test]
fn the_demo_template_opens_a_think_block_unless_told_not_to() {
    let template = String::from_utf8(common::demo("chat_template.jinja")).unwrap();
    let template = ChatTemplate::new(&template).unwrap();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let prompt = render(&template, &messages, &json!({})).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n");
    assert!(lily_text::ends_in_thinking(&prompt));
    let prompt = render(&template, &messages, &json!({"enable_thinking": false})).unwrap();
    assert!(prompt.ends_with("<think>\n\n</think>\n\n"));
    assert!(!lily_text::ends_in_thinking(&prompt));
}

#[test]
fn a_template_argument_cannot_replace_the_conversation() {
    let template = ChatTemplate::new("{{ messages[0].content }}").unwrap();
    let error = render(&template, &json!([]), &json!({"messages": []})).unwrap_err();
    assert_eq!(error.to_string(), "the chat template argument `messages` is reserved");
}

#[test]
fn the_python_of_published_templates_works() {
    for (template, expected) in [
        ("{{ {'b': 1.0, 'a': '<é>'} | tojson }}", r#"{"b": 1.0, "a": "<é>"}"#),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ [1] | tojson(ensure_ascii=False) }}", "[1]"),
        ("{{ 'a</think>b'.split('</think>')[-1].lstrip('b') ~ 'x' }}", "x"),
        ("{% if true %}\n  {% set x = 1 %}\n{{ x }}\n{% endif %}\n", "1\n"),
        ("{{ messages[::-1][0].role }}", "user"),
    ] {
        assert_eq!(source(template).unwrap(), expected, "{template}");
    }
}

#[test]
fn the_templates_own_faults_are_not_the_clients() {
    for template in ["{% if %}", "{{ strftime_now('%Y') }}", "{{ 1 | nofilter }}"] {
        let error = source(template).unwrap_err();
        assert!(matches!(error, TextError::Template { .. }), "{template}: {error:?}");
        assert!(!error.is_client_fault());
    }
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    for template in [
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{{ c }}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for a in range(999) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    ] {
        source(template).unwrap_err();
    }
}

#[test]
fn a_long_conversation_stays_within_the_budget() {
    let template = String::from_utf8(common::demo("chat_template.jinja")).unwrap();
    let template = ChatTemplate::new(&template).unwrap();
    let turn = json!([
        {"role": "user", "content": "word ".repeat(200)},
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [
            {"function": {"name": "f", "arguments": {"a": "x", "b": [1, 2]}}}]},
        {"role": "tool", "content": "{}"},
    ]);
    let messages: Vec<Value> =
        std::iter::repeat_n(turn.as_array().unwrap().clone(), 2000).flatten().collect();
    let prompt = render(&template, &Value::from(messages), &json!({})).unwrap();
    assert_eq!(prompt.matches("<tool_response>").count(), 2000);
}

#[test]
fn rendering_twice_gives_the_same_prompt() {
    let template = String::from_utf8(common::demo("chat_template.jinja")).unwrap();
    let template = ChatTemplate::new(&template).unwrap();
    let messages = [json!({"role": "user", "content": "Hi"})];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let kwargs = Map::new();
    let options = RenderOptions {
        messages: &messages,
        tools: Some(&tools),
        add_generation_prompt: true,
        kwargs: &kwargs,
    };
    assert_eq!(template.render(&options).unwrap(), template.render(&options).unwrap());
}
