//! Tool calls: what the grammar lets through is read as calls that are valid.

use super::*;
use crate::parser::{OutputEvent, OutputParser, ParserOptions};

fn functions(tools: &[(Value, bool)]) -> Vec<Function<'_>> {
    tools
        .iter()
        .enumerate()
        .map(|(index, (tool, exact))| Function {
            index,
            name: tool["name"].as_str().expect("a name"),
            parameters: tool.get("parameters"),
            exact: *exact,
        })
        .collect()
}

fn calls(
    tools: &[(Value, bool)],
    otherwise: Otherwise,
    several: bool,
) -> Result<Grammar, GrammarError> {
    let (main, parts) = call_grammars(&functions(tools), CallForm { otherwise, several })?;
    let mut all = vec![main];
    if otherwise == Otherwise::Format {
        all.push(Format::JsonObject.grammar("format").expect("a grammar"));
    }
    all.extend(parts.into_iter().map(|part| part.grammar));
    let blame = |refusal| GrammarError::Tool { index: 0, refusal };
    Grammar::compile(tokenizer(), all).map_err(|error| error.or("grammar", blame))
}

/// Name, arguments and whether it is complete of each call, and the content.
type Read = (Vec<(String, String, bool)>, String);

fn read(tools: &[(Value, bool)], tokens: &[u32]) -> Read {
    let tools: Vec<Value> = tools.iter().map(|(tool, _)| tool.clone()).collect();
    let options = ParserOptions { tools: Some(tools), ..ParserOptions::default() };
    let mut parser = OutputParser::new(tokenizer(), options);
    let mut events: Vec<OutputEvent> = tokens.iter().flat_map(|&id| parser.push(id)).collect();
    events.extend(parser.finish());
    let mut calls: Vec<(String, String, bool)> = Vec::new();
    let mut content = String::new();
    for event in events {
        match event {
            OutputEvent::ToolCallStart { name, .. } => calls.push((name, String::new(), false)),
            OutputEvent::ToolCallArguments { index, fragment } => {
                calls[index].1.push_str(&fragment);
            }
            OutputEvent::ToolCallEnd { index } => calls[index].2 = true,
            OutputEvent::Content(text) | OutputEvent::Reasoning(text) => content.push_str(&text),
        }
    }
    (calls, content)
}

fn weather() -> Value {
    json!({
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "where": {"$ref": "#/$defs/Point"},
                "note": {"anyOf": [{"type": "string", "maxLength": 12}, {"type": "null"}]},
                "mixed": {"type": ["string", "integer", "boolean"]},
                "any": {},
            },
            "required": ["city", "unit"],
            "$defs": {"Point": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x", "y"],
                "additionalProperties": false,
            }},
        },
    })
}

fn call(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
        .collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn every_call_that_ends_is_read_as_one_with_valid_arguments() {
    let mut ended = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let properties: serde_json::Map<String, Value> = (0..random.below(4))
            .map(|n| (format!("param {n}"), random_schema(&mut random, 2)))
            .collect();
        let required: Vec<&String> = properties.keys().skip(random.below(3)).collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        let tools = [
            (json!({"name": "made.up-1", "parameters": parameters}), true),
            (json!({"name": "nothing"}), true),
        ];
        let grammar = match calls(&tools, Otherwise::Nothing, true) {
            Ok(grammar) => grammar,
            // Texts that no tag can carry, and mixtures that the markup cannot tell apart.
            Err(GrammarError::Tool { refusal: Refusal::Keyword { .. }, .. }) => continue,
            Err(error) => panic!("{error:?}: {parameters}"),
        };
        for round in 0..6 {
            let Some(tokens) = wander(&grammar, seed * 10 + round, 500) else { continue };
            ended += 1;
            let (calls, content) = read(&tools, &tokens);
            assert!(!calls.is_empty() && content.is_empty(), "{calls:?} {content:?}");
            for (name, arguments, complete) in calls {
                assert!(complete);
                match name.as_str() {
                    "made.up-1" => assert_valid(&parameters, &arguments),
                    "nothing" => assert_eq!(arguments, "{}"),
                    other => panic!("no function is named {other:?}"),
                }
            }
        }
    }
    assert!(ended > 150, "only {ended} ended");
}

#[test]
fn a_required_call_has_its_required_parameters_in_valid_form() {
    let tools = [(weather(), true)];
    let grammar = calls(&tools, Otherwise::Nothing, false).expect("a grammar");
    let full = call(
        "get_weather",
        &[
            ("city", "São Paulo\n(the \"old\" town)"),
            ("unit", "celsius"),
            ("days", "7"),
            ("where", "{\"x\": 1, \"y\": -2.5}"),
            ("note", "null"),
            ("mixed", "five"),
            ("any", "5"),
        ],
    );
    assert!(takes(&grammar, &full));
    let (read, content) = read(&tools, &tokenizer().encode(&full).expect("text"));
    assert_eq!(content, "");
    assert_valid(&tools[0].0["parameters"], &read[0].1);
    assert!(takes(&grammar, &call("get_weather", &[("city", "x"), ("unit", "fahrenheit")])));
    for text in [
        String::new(),
        "The weather is fine.".to_owned(),
        call("get_weather", &[]),
        call("get_weather", &[("city", "x")]),
        call("get_weather", &[("unit", "celsius")]),
        call("get_weather", &[("city", "x"), ("unit", "kelvin")]),
        call("get_weather", &[("city", "null"), ("unit", "celsius")]),
        call("get_weather", &[("city", "x"), ("unit", "celsius"), ("days", "15")]),
        call("get_weather", &[("city", "x"), ("unit", "celsius"), ("days", "\"2\"")]),
        call("get_weather", &[("city", "x"), ("unit", "celsius"), ("where", "{\"x\": 1}")]),
        call("get_weather", &[("city", "x"), ("unit", "celsius"), ("note", "longer than twelve")]),
        call("get_weather", &[("city", "x"), ("unit", "celsius"), ("mixed", "{}")]),
        call("get_weather", &[("city", "x"), ("unit", "celsius"), ("other", "x")]),
        call("get_time", &[("city", "x"), ("unit", "celsius")]),
        format!("{0}\n{0}", call("get_weather", &[("city", "x"), ("unit", "celsius")])),
    ] {
        assert!(!takes(&grammar, &text), "{text}");
    }
}

#[test]
fn several_calls_may_follow_one_another_where_that_is_wanted() {
    let tools = [(json!({"name": "now"}), true), (weather(), true)];
    let text = format!(
        "{}\n{}",
        call("now", &[]),
        call("get_weather", &[("city", "x"), ("unit", "celsius")])
    );
    assert!(takes(&calls(&tools, Otherwise::Nothing, true).expect("a grammar"), &text));
    assert!(!takes(&calls(&tools, Otherwise::Nothing, false).expect("a grammar"), &text));
}

#[test]
fn a_text_may_hold_tags_as_long_as_it_is_read_whole() {
    let tools = [(
        json!({"name": "write", "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "more": {"type": "string"}},
            "required": ["text"],
        }}),
        true,
    )];
    let grammar = calls(&tools, Otherwise::Nothing, false).expect("a grammar");
    for value in [
        "",
        "\n",
        "<parameter=other>\n</parameter>\nand more",
        "a </parameter> b",
        "x\n</parameter>\ny\n</function>\nz\n</tool_call>\n.",
        "<tool_call> and <function=write>",
        "</think> <|im_end",
    ] {
        let text = call("write", &[("text", value)]);
        assert!(takes(&grammar, &text), "{value:?}");
        let (read, _) = read(&tools, &tokenizer().encode(&text).expect("text"));
        assert_eq!(read.len(), 1, "{value:?}");
        let arguments: Value = serde_json::from_str(&read[0].1).expect("JSON");
        assert_eq!(arguments, json!({"text": value}));
    }
    // What would be read otherwise cannot be written.
    for value in [
        "</parameter> </function>",
        "</function></tool_call>",
        "</tool_call>\n<tool_call>",
        "<parameter=more>",
        "a\n<parameter=more>\nb",
    ] {
        assert!(!takes(&grammar, &call("write", &[("text", value)])), "{value:?}");
    }
}

#[test]
fn beside_free_text_only_calls_are_held_to_a_form() {
    let loose = json!({"name": "note", "parameters": {
        "type": "object", "properties": {"text": {"type": "string"}},
    }});
    let tools = [(weather(), true), (loose, false)];
    let grammar = calls(&tools, Otherwise::Text, true).expect("a grammar");
    let good = call("get_weather", &[("city", "x"), ("unit", "celsius")]);
    let bad = call("get_weather", &[("city", "x"), ("unit", "kelvin")]);
    for text in [
        "Hello! 1 < 2".to_owned(),
        good.clone(),
        format!("Let me see.\n\n{good}"),
        format!("{good}\n{good}"),
        call("note", &[("text", "a\nb"), ("whatever", "5")]),
        call("note", &[]),
    ] {
        assert!(takes(&grammar, &text), "{text}");
    }
    for text in [
        String::new(),
        bad.clone(),
        format!("Let me see.\n\n{bad}"),
        format!("{good}\n{bad}"),
        format!("{good} and more"),
        "<function=get_weather>\n".to_owned(),
        "about <tool_call> tags".to_owned(),
    ] {
        assert!(!takes(&grammar, &text), "{text}");
    }
}

#[test]
fn beside_a_format_there_are_calls_or_that_format() {
    let tools = [(weather(), true)];
    let grammar = calls(&tools, Otherwise::Format, false).expect("a grammar");
    assert!(takes(&grammar, "{\"a\": 1}"));
    assert!(takes(&grammar, &call("get_weather", &[("city", "x"), ("unit", "celsius")])));
    assert!(!takes(&grammar, "Hello") && !takes(&grammar, "{} {}"));
}

#[test]
fn text_of_a_schema_is_text_of_that_form() {
    let of = |schema: Value| {
        let parameters = json!({"type": "object", "properties": {"x": schema}, "required": ["x"]});
        let tools = [(json!({"name": "f", "parameters": parameters}), true)];
        let grammar = calls(&tools, Otherwise::Nothing, false).expect("a grammar");
        move |value: &str| takes(&grammar, &call("f", &[("x", value)]))
    };
    let pattern = of(json!({"type": "string", "pattern": "^[a-z]+/[0-9]$"}));
    assert!(pattern("ab/1") && !pattern("ab/12") && !pattern(" ab/1"));
    let inside = of(json!({"type": "string", "pattern": "[0-9]{3}"}));
    assert!(inside("a123b") && !inside("a12b3"));
    let length = of(json!({"type": "string", "minLength": 2, "maxLength": 3}));
    assert!(length("日本") && length("a\nb") && !length("a") && !length("abcd"));
    let long = of(json!({"type": "string", "minLength": 2_000}));
    assert!(long(&"word and more ".repeat(150)) && !long(&"word and more ".repeat(140)));
    let date = of(json!({"type": "string", "format": "date"}));
    assert!(date("2024-02-28") && !date("2024-13-01") && !date("today"));
    let uuid = of(json!({"type": "string", "format": "uuid"}));
    assert!(uuid("123e4567-e89b-12d3-a456-426614174000") && !uuid("123e4567"));
    let choice = of(json!({"anyOf": [{"const": "a"}, {"enum": ["b", 3]}, {"type": "null"}]}));
    assert!(choice("a") && choice("b") && choice("3") && choice("null") && !choice("4"));
    let list = of(json!({"type": "array", "items": {"type": "string"}}));
    assert!(list("[\"a\", \"b\"]") && list("[]") && !list("a") && !list("[1]"));
    let referred = of(json!({"allOf": [{"type": "string", "maxLength": 1}], "description": "d"}));
    assert!(referred("a") && !referred("ab"));
}

#[test]
fn parameters_that_cannot_be_honoured_are_refused_by_name_and_place() {
    let refused = |parameters: Value| {
        let tools = [(json!({"name": "f", "parameters": parameters}), true)];
        calls(&tools, Otherwise::Nothing, false).expect_err("a refusal").to_string()
    };
    let property = |schema: Value| refused(json!({"type": "object", "properties": {"x": schema}}));
    let messages = [
        refused(json!({"type": "array"})),
        refused(json!({"anyOf": []})),
        refused(json!({"type": "object", "minProperties": 2})),
        refused(json!({"type": "object", "properties": {"a>b": {"type": "string"}}})),
        refused(json!({"type": "object", "required": "x"})),
        property(json!({"type": "string", "format": "uri"})),
        property(json!({"type": "string", "pattern": "^a|b$"})),
        property(json!({"type": "string", "enum": ["null"]})),
        property(json!({"type": ["string", "integer"], "enum": ["5", 5]})),
        property(json!({"minimum": 3})),
        property(json!({"not": {}})),
        property(json!({"type": "array", "items": {"$ref": "#"}})),
        property(json!({"anyOf": [{"$ref": "#/$defs/Nowhere"}, {"type": "string"}]})),
        property(json!({"type": "integer", "minimum": 5, "maximum": 1})),
    ];
    insta::assert_snapshot!(messages.join("\n---\n"));
}
