//! Requests that want to cost more than they may.

use super::*;

/// Follows a grammar for a while; what fails must fail with a reason.
fn follow(grammar: &Grammar) -> Result<(), String> {
    for seed in 0..3 {
        let mut wanderer = Wanderer::new(seed);
        let mut grammar = grammar.start();
        for _ in 0..60 {
            match grammar.next(tokenizer())? {
                Next::Tokens(words, _) if !is_empty(&words) => {
                    grammar.take(wanderer.choose(&words))?;
                }
                _ => break,
            }
        }
    }
    Ok(())
}

fn nested(depth: usize, inner: Value, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(inner, |schema, _| wrap(schema))
}

#[test]
fn what_is_too_large_or_too_deep_is_refused_before_it_is_compiled() {
    let many: serde_json::Map<String, Value> =
        (0..6_000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let values: Vec<String> = (0..20_000).map(|n| format!("value {n}")).collect();
    for (schema, what) in [
        (json!({"type": "object", "properties": many}), "number of schemas"),
        (json!({"enum": values}), "number of enum values"),
        (nested(100, json!({}), |schema| json!({"items": schema})), "depth of the schema"),
        (json!({"type": "string", "maxLength": 1_000_000_000u64}), "\"maxLength\""),
        (json!({"type": "array", "minItems": u64::MAX}), "\"minItems\""),
        (json!({"type": "integer", "multipleOf": 999_983}), "\"multipleOf\""),
        (json!({"type": "number", "multipleOf": 1e-300}), "\"multipleOf\""),
        (json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 9.91}]}), "\"multipleOf\""),
        (json!({"type": "integer", "multipleOf": 0}), "\"multipleOf\""),
        (json!({"type": "integer", "minimum": -1e300}), "\"minimum\""),
        (json!({"enum": [[{"a": 1e300}]]}), "\"enum\""),
    ] {
        let message = refused_schema(schema);
        assert!(message.contains(what), "{what}: {message}");
    }
    assert!(refused(Format::Regex("a".repeat(100_000))).contains("length in bytes"));
    assert!(refused(Format::Lark("a".repeat(100_000))).contains("length in bytes"));
    let choices = Format::Choice(vec![String::new(); 5_000]);
    assert!(refused(choices).contains("number of choices"));
}

#[test]
fn costly_grammars_end_in_a_bounded_time_one_way_or_the_other() {
    let chain: serde_json::Map<String, Value> = (0..2_000)
        .map(|n| (format!("d{n}"), json!({"$ref": format!("#/$defs/d{}", n + 1)})))
        .chain([("d2000".to_owned(), json!({"type": "string"}))])
        .collect();
    let branching = nested(12, json!({"type": "string"}), |inner| {
        json!({"anyOf": [
            {"type": "object", "properties": {"a": inner}, "required": ["a"]},
            {"type": "array", "items": {"type": "string"}},
        ]})
    });
    let product: Vec<Value> = (0..12)
        .map(|n| {
            json!({"anyOf": [
                {"properties": {format!("a{n}"): {"type": "string"}}},
                {"properties": {format!("b{n}"): {"type": "integer"}}},
            ]})
        })
        .collect();
    let optional: serde_json::Map<String, Value> =
        (0..1_500).map(|n| (format!("p{n}"), json!({"type": ["string", "null"]}))).collect();
    let formats = [
        Format::JsonSchema(json!({"$ref": "#/$defs/d0", "$defs": chain})),
        Format::JsonSchema(json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})),
        Format::JsonSchema(
            json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}}, "$ref": "#/$defs/a"}),
        ),
        Format::JsonSchema(json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1})),
        Format::JsonSchema(branching),
        Format::JsonSchema(json!({"type": "object", "allOf": product})),
        Format::JsonSchema(json!({"type": "object", "properties": optional})),
        Format::JsonSchema(json!({"type": "string", "maxLength": 100_000})),
        Format::JsonSchema(json!({"type": "array", "minItems": 100_000, "items": {}})),
        Format::JsonSchema(json!({"type": "string", "pattern": "(a|aa|aaa){1,1000}b{1000}"})),
        Format::JsonSchema(
            json!({"type": "string", "pattern": "^(([a-z]{1,100}){1,100}){1,100}$"}),
        ),
        Format::JsonSchema(json!({"type": "integer", "multipleOf": 997})),
        Format::JsonSchema(json!({"type": "number", "multipleOf": 0.997, "minimum": -1e15})),
        Format::Regex("(.*a){40}".to_owned()),
        Format::Regex("(((((x{1,50}){1,50}){1,50}){1,50}){1,50})".to_owned()),
        Format::Regex(r"[\w\W]{1,60000}\p{L}{50000}".to_owned()),
        Format::Lark("start: start start | \"a\" | \"\"".to_owned()),
        Format::Lark("start: a~1..100000\na: b~1..100000\nb: \"x\"".to_owned()),
        Format::Lark(format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000))),
        Format::Lark(format!("start: /{}a{}/", "(".repeat(20_000), ")".repeat(20_000))),
        Format::Lark("start: A\nA: /(.*a){30}/ & ~/(.*b){30}/".to_owned()),
        Format::Choice((0..4_000).map(|n| format!("{n} {}", n * 7)).collect()),
    ];
    for format in formats {
        let outcome = match Grammar::of_format(tokenizer(), &format) {
            Ok(grammar) => follow(&grammar),
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = &outcome {
            assert!(!reason.is_empty() && reason.len() < 1000, "{reason}");
        }
    }
}

#[test]
fn long_text_of_bounded_length_is_followed_to_its_end() {
    let text = format!("\"{}\"", "word and more ".repeat(2_000));
    assert!(takes(&schema(json!({"type": "string", "maxLength": 100_000})), &text));
    assert!(takes(&schema(json!({"type": "string", "minLength": 20_000})), &text));
    assert!(!takes(&schema(json!({"type": "string", "maxLength": 20_000})), &text));
}
