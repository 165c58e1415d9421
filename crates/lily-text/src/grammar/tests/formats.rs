//! The form of the content.

use super::*;

#[test]
fn whatever_ends_is_valid_for_its_schema() {
    let mut ended = 0;
    for seed in 0..150 {
        let schema = random_schema(&mut Random(seed), 3);
        let grammar = Grammar::of_format(tokenizer(), &Format::JsonSchema(schema.clone()))
            .unwrap_or_else(|error| panic!("{error}: {schema}"));
        for round in 0..4 {
            if let Some(tokens) = wander(&grammar, seed * 10 + round, 400) {
                assert_valid(&schema, &tokenizer().decode(&tokens, false));
                ended += 1;
            }
        }
    }
    assert!(ended > 400, "only {ended} of 600 ended");
}

#[test]
fn a_json_object_may_hold_anything_and_is_the_whole() {
    let object = of(Format::JsonObject);
    for text in ["{}", "{\"a\": [1, null, {\"b\": \"ü\\n\\\"\"}]}", "{\n  \"a\": 1.5e3\n}"] {
        assert!(takes(&object, text), "{text}");
    }
    for text in ["", "[]", "1", "{", "{}x", "{'a': 1}", "\n{}", "{\"a\":1,}", "{\"a\":\"\n\"}"] {
        assert!(!takes(&object, text), "{text}");
    }
    for seed in 0..50 {
        if let Some(tokens) = wander(&object, seed, 300) {
            assert_valid(&json!({"type": "object"}), &tokenizer().decode(&tokens, false));
        }
    }
}

#[test]
fn nothing_follows_a_complete_object_but_the_end() {
    for grammar in [of(Format::JsonObject), schema(json!({"type": "array"}))] {
        let text = if takes(&grammar, "{}") { "{}" } else { "[]" };
        let mut grammar = grammar.start();
        for id in tokenizer().encode(text).expect("text") {
            grammar.take(id).expect("allowed");
        }
        assert_eq!(grammar.next(tokenizer()), Ok(Next::End));
    }
    // More digits may follow a number, and it may end.
    let mut number = schema(json!({"type": "integer", "minimum": 0, "maximum": 99})).start();
    number.take(tokenizer().encode("1").expect("text")[0]).expect("allowed");
    assert!(
        matches!(number.next(tokenizer()), Ok(Next::Tokens(words, true)) if ids(&words).len() > 5)
    );
}

#[test]
fn white_space_does_not_go_on_for_ever() {
    let object = of(Format::JsonObject);
    assert!(takes(&object, "{\n        \"a\" : 1\n}"));
    assert!(!takes(&object, &format!("{{{}}}", "\n".repeat(20))));
    assert!(!takes(&object, &format!("{{{}}}", " ".repeat(100))));
}

#[test]
fn a_regular_expression_matches_the_whole() {
    let grammar = of(Format::Regex(r"(yes|no)/\d{2}".to_owned()));
    assert!(takes(&grammar, "yes/12"));
    for text in ["yes/1", "maybe/12", "yes/123", " yes/12"] {
        assert!(!takes(&grammar, text), "{text}");
    }
}

#[test]
fn a_choice_is_one_of_the_texts_whatever_they_are_made_of() {
    let texts = ["red", "dark \"red\"\\", "two\nlines", "日本", "re", "<|im_end|>"];
    let grammar = of(Format::Choice(texts.map(str::to_owned).to_vec()));
    for text in &texts[..5] {
        assert!(takes(&grammar, text), "{text:?}");
    }
    assert!(!takes(&grammar, "dark") && !takes(&grammar, "redd"));
    // Read as text: the special token of that name is not it.
    let special = tokenizer().token_id("<|im_end|>").expect("there");
    assert!(!takes_tokens(&grammar, &[special]));
    for seed in 0..20 {
        let tokens = wander(&grammar, seed, 60).expect("short");
        assert!(texts.contains(&tokenizer().decode(&tokens, false).as_str()));
    }
}

#[test]
fn a_lark_grammar_is_followed() {
    let text = "start: \"sum \" NUM (\" + \" NUM)*\nNUM: /[0-9]{1,3}/";
    let grammar = of(Format::Lark(text.to_owned()));
    assert!(takes(&grammar, "sum 1 + 22 + 333"));
    assert!(!takes(&grammar, "sum 1 +") && !takes(&grammar, "sum 4444"));
}

#[test]
fn tokens_that_cross_the_borders_of_the_grammar_are_allowed() {
    // Some token holds the end of the string and what follows it.
    let grammar = schema(json!({
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": ["a", "b"],
        "additionalProperties": false,
    }));
    let mut start = grammar.start();
    for id in tokenizer().encode("{\"a\": \"x").expect("text") {
        start.take(id).expect("allowed");
    }
    let Ok(Next::Tokens(words, false)) = start.next(tokenizer()) else { panic!("not at its end") };
    let crossing = ids(&words)
        .into_iter()
        .find(|&id| tokenizer().token_bytes(id).is_some_and(|(bytes, _)| bytes == b"\","));
    start.take(crossing.expect("the vocabulary has `\",`")).expect("allowed");
    let rest = tokenizer().encode(" \"b\": \"\"}").expect("text");
    rest.into_iter().for_each(|id| start.take(id).expect("allowed"));
    assert_eq!(start.next(tokenizer()), Ok(Next::End));
}

#[test]
fn characters_may_be_spread_over_tokens_and_only_whole_ones_end_a_string() {
    let tokenizer = tokenizer();
    let grammar = schema(json!({"type": "string"}));
    let byte = |byte: u8| {
        let single = |id: &u32| tokenizer.token_bytes(*id) == Some((&[byte], false));
        (0..tokenizer.len() as u32).find(single).expect("every byte is a token")
    };
    let quote = byte(b'"');
    let whole: Vec<u32> = "\"日\"".bytes().map(byte).collect();
    assert!(takes_tokens(&grammar, &whole));
    let cut = [quote, byte(0xE6), byte(0x97), quote];
    assert!(!takes_tokens(&grammar, &cut));
    assert!(!takes_tokens(&grammar, &[quote, byte(0xFF), quote]));
}

#[test]
fn recursive_schemas_are_followed() {
    let tree = json!({
        "$ref": "#/$defs/Node",
        "$defs": {"Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["name", "children"],
            "additionalProperties": false,
        }},
    });
    let text = r#"{"name": "a", "children": [{"name": "b", "children": []}]}"#;
    assert_valid(&tree, text);
    assert!(takes(&schema(tree), text));
}

#[test]
fn what_a_schema_asks_for_and_is_not_enforced_is_refused_by_name_and_place() {
    let inside = |inner: Value| json!({"type": "object", "properties": {"a/b": inner}});
    for (inner, keyword) in [
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"if": {}, "then": {}}), "if"),
        (json!({"type": "array", "contains": {}}), "contains"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "propertyNames": {"maxLength": 3}}), "propertyNames"),
        (json!({"type": "object", "dependentRequired": {}}), "dependentRequired"),
        (json!({"type": "object", "unevaluatedProperties": false}), "unevaluatedProperties"),
        (json!({"type": "string", "nullable": true}), "nullable"),
        (json!({"type": "string", "format": "iri"}), "format"),
        (json!({"type": "string", "enum": []}), "enum"),
        (json!({"$ref": "https://example.com/schema"}), "$ref"),
        (json!({"type": "string", "x-guidance": {"lenient": true}}), "x-guidance"),
    ] {
        for schema in [inside(inner.clone()), json!({"anyOf": [{"items": inside(inner.clone())}]})]
        {
            let message = refused_schema(schema);
            assert!(message.contains(&format!("\"{keyword}\"")), "{keyword}: {message}");
            assert!(message.contains("/properties/a~1b"), "{keyword}: {message}");
        }
    }
}

#[test]
fn keywords_that_ask_for_nothing_are_accepted() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "uniqueItems": false,
        "items": {"type": "integer", "format": "int32", "nullable": false, "x-order": 1},
    });
    assert!(takes(&super::schema(schema), "[1, 2]"));
}

#[test]
fn schemas_and_grammars_that_cannot_be_followed_are_refused_with_the_reason() {
    let messages = [
        refused_schema(json!({"type": "sting"})),
        refused_schema(json!({"properties": {"a/b": {"items": {"type": ["null", "obj"]}}}})),
        refused_schema(json!({"items": {"type": {"x": "y".repeat(100)}}})),
        refused_schema(json!({"properties": {"a": {"anyOf": {"type": "null"}}}})),
        refused_schema(json!({"properties": {"a": {"enum": "x"}}})),
        refused_schema(json!({"items": {"$ref": 3}})),
        refused_schema(json!(false)),
        refused_schema(json!([1])),
        refused_schema(json!({"type": "object", "properties": 3})),
        refused_schema(json!({"$ref": "#/$defs/Nowhere"})),
        refused_schema(json!({"type": "string", "pattern": "("})),
        refused_schema(json!({"type": "integer", "minimum": 3, "maximum": 2})),
        refused_schema(json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]})),
        refused(Format::Regex("(".to_owned())),
        refused(Format::Regex("a(?=b)".to_owned())),
        refused(Format::Regex(String::new())),
        refused(Format::Choice(Vec::new())),
        refused(Format::Lark("start: nowhere".to_owned())),
        refused(Format::Lark("no grammar".to_owned())),
    ];
    insta::assert_snapshot!(messages.join("\n---\n"));
}
