//! Whole answers, reasoning and all.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::grammar::tests::{Random, Wanderer, ids, tokenizer};
use crate::parser::OutputEvent;

fn stop() -> u32 {
    tokenizer().token_id("<|im_end|>").expect("there")
}

fn plan(rules: AnswerRules<'_>) -> AnswerPlan {
    AnswerPlan::new(tokenizer(), rules).expect("rules that can be kept").expect("something to keep")
}

/// How an answer went.
struct Answer {
    tokens: Vec<u32>,
    text: String,
    ended: bool,
}

/// What a model that wants to say `wishes`, token by token, is made to say. Where little is allowed and
/// a wish is not, chance decides what is said instead, and the wish waits.
fn say(guide: &mut AnswerGuide, wishes: &[u32], seed: u64, limit: usize) -> Answer {
    let tokenizer = tokenizer();
    let mut wanderer = Wanderer::new(seed);
    let mut wishes = wishes.iter().copied().peekable();
    let mut tokens = Vec::new();
    let mut ended = false;
    while tokens.len() < limit {
        let wish = wishes.peek().copied();
        let id = match guide.allowed().expect("the guide goes on") {
            Permitted::End => {
                ended = true;
                break;
            }
            Permitted::Only(id) => {
                wishes.next_if_eq(&id);
                id
            }
            Permitted::Any | Permitted::Unguided => match wishes.next() {
                Some(id) => id,
                None => stop(),
            },
            Permitted::Tokens(words) => match wish.filter(|&id| ids(&words).contains(&id)) {
                Some(id) => {
                    wishes.next();
                    id
                }
                None if ids(&words).contains(&stop()) && (wish.is_none() || wanderer.ends()) => {
                    stop()
                }
                None if ids(&words).len() > tokenizer.len() / 2 && wish.is_some() => {
                    // Not in the reasoning, ever.
                    wishes.next();
                    continue;
                }
                None => wanderer.choose(&words),
            },
        };
        if id == stop() {
            ended = true;
            break;
        }
        tokens.push(id);
        guide.chosen(id).expect("an allowed token");
    }
    Answer { text: tokenizer.decode(&tokens, true), tokens, ended }
}

fn encode(text: &str) -> Vec<u32> {
    tokenizer().encode(text).expect("text")
}

fn read(
    tokens: &[u32],
    starts_in_thinking: bool,
    tools: &[Value],
) -> (String, String, Vec<String>) {
    let tools = Some(tools.to_vec()).filter(|tools| !tools.is_empty());
    let options = ParserOptions { starts_in_thinking, tools, ..ParserOptions::default() };
    let mut parser = OutputParser::new(tokenizer(), options);
    let mut events: Vec<OutputEvent> = tokens.iter().flat_map(|&id| parser.push(id)).collect();
    events.extend(parser.finish());
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    for event in events {
        match event {
            OutputEvent::Reasoning(text) => reasoning.push_str(&text),
            OutputEvent::Content(text) => content.push_str(&text),
            OutputEvent::ToolCallStart { name, .. } => calls.push(format!("{name} ")),
            OutputEvent::ToolCallArguments { index, fragment } => calls[index].push_str(&fragment),
            OutputEvent::ToolCallEnd { .. } => {}
        }
    }
    (reasoning, content, calls)
}

fn answer_schema() -> Format {
    Format::JsonSchema(json!({
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": false,
    }))
}

fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city"],
        },
    }})
}

const CALL_TEXT: &str = "<tool_call>\n<function=get_weather>\n<parameter=city>\nLisbon\n</parameter>\n</function>\n</tool_call>";

#[test]
fn rules_that_leave_everything_free_need_no_guide() {
    let tools = [weather()];
    for rules in [
        AnswerRules::default(),
        AnswerRules { tools: &tools, ..AnswerRules::default() },
        AnswerRules { tools: &tools, single_call: true, ..AnswerRules::default() },
    ] {
        assert!(AnswerPlan::new(tokenizer(), rules).expect("fine").is_none());
    }
}

#[test]
fn a_form_begins_behind_the_reasoning_and_ends_the_answer() {
    let format = answer_schema();
    let plan = plan(AnswerRules { format: Some(&format), ..AnswerRules::default() });
    let json = r#"{"answer": "four", "sure": true}"#;
    let mut guide = plan.start(true, &[stop()]);
    // The model would like to end too early, and to talk.
    let wishes = [encode("2 and 2"), vec![stop()], encode("\n</think>\n\nWell: "), encode(json)];
    let answer = say(&mut guide, &wishes.concat(), 1, 200);
    let (reasoning, content, _) = read(&answer.tokens, true, &[]);
    assert!(answer.ended, "{}", answer.text);
    assert!(reasoning.starts_with("2 and 2"), "{reasoning:?}");
    serde_json::from_str::<Value>(&content).unwrap_or_else(|error| panic!("{error}: {content}"));

    for thinks in [true, false] {
        let text = if thinks { format!("so\n</think>\n\n{json}") } else { json.to_owned() };
        let answer = say(&mut plan.start(thinks, &[stop()]), &encode(&text), 1, 200);
        assert_eq!((answer.text.as_str(), answer.ended), (text.as_str(), true));
    }
}

#[test]
fn an_end_of_reasoning_spelt_out_counts_and_nothing_sticks_to_it() {
    let format = Format::JsonObject;
    let plan = plan(AnswerRules { format: Some(&format), ..AnswerRules::default() });
    let spelt: Vec<u32> = "yes</think>{}"
        .bytes()
        .map(|byte| {
            let single = |id: &u32| tokenizer().token_bytes(*id) == Some((&[byte], false));
            (0..tokenizer().len() as u32).find(single).expect("every byte is a token")
        })
        .collect();
    let answer = say(&mut plan.start(true, &[stop()]), &spelt, 1, 60);
    assert_eq!(answer.text, "yes</think>\n\n{}");
    assert!(answer.ended);

    // A token that would end the tag and begin the content is out of reach.
    let crossing = (0..tokenizer().len() as u32).find(|&id| {
        matches!(tokenizer().token_bytes(id), Some((b">\n" | b"><" | b">(" | b">'", false)))
    });
    let mut guide = plan.start(true, &[stop()]);
    for id in &spelt["yes".len()..spelt.len() - 3] {
        guide.chosen(*id).expect("free");
    }
    let Permitted::Tokens(words) = guide.allowed().expect("goes on") else { panic!("a mask") };
    if let Some(id) = crossing {
        let blank = tokenizer().token_bytes(id).is_some_and(|(bytes, _)| bytes == b">\n");
        assert_eq!(ids(&words).contains(&id), blank);
    }
    assert!(ids(&words).contains(&spelt[spelt.len() - 3]));
}

#[test]
fn the_budget_ends_the_reasoning_in_the_form_of_the_template() {
    for (budget, thought, text) in [
        (0, "Let me think", "\n</think>\n\nDone."),
        (3, "one two three four five", "one two three\n</think>\n\nDone."),
        (100, "short\n</think>\n\nDone.", "short\n</think>\n\nDone."),
    ] {
        let budget_tokens = if budget == 3 { encode("one two three").len() } else { budget };
        let rules = AnswerRules { thinking_budget: Some(budget_tokens), ..AnswerRules::default() };
        let mut guide = plan(rules).start(true, &[stop()]);
        let mut said = Vec::new();
        let mut wishes = encode(thought).into_iter();
        loop {
            let id = match guide.allowed().expect("goes on") {
                Permitted::Any => wishes.next().expect("within the budget"),
                Permitted::Only(id) => id,
                Permitted::Unguided => break,
                Permitted::Tokens(words) => {
                    let tag = tokenizer().token_id("</think>").expect("there");
                    assert!(budget != 100 && !ids(&words).contains(&tag));
                    assert_eq!(ids(&words).len(), tokenizer().len() - 1);
                    break;
                }
                other => panic!("{other:?}"),
            };
            said.push(id);
            guide.chosen(id).expect("allowed");
        }
        said.extend(wishes.filter(|_| budget == 100));
        if budget != 100 {
            said.extend(encode("Done."));
        }
        assert_eq!(tokenizer().decode(&said, false), text);
        let forced = encode("\n</think>\n\n");
        assert!(said.windows(forced.len()).any(|window| window == forced), "one token for the tag");
        assert_eq!(read(&said, true, &[]).1, "Done.");
    }
}

#[test]
fn a_budget_does_not_cut_a_character_and_adds_no_second_line_break() {
    let byte = |byte: u8| {
        let single = |id: &u32| tokenizer().token_bytes(*id) == Some((&[byte], false));
        (0..tokenizer().len() as u32).find(single).expect("every byte is a token")
    };
    let wishes: Vec<u32> = "日本".bytes().map(byte).collect();
    let rules = AnswerRules { thinking_budget: Some(2), ..AnswerRules::default() };
    let answer = say(&mut plan(rules).start(true, &[stop()]), &wishes, 1, 30);
    assert!(answer.text.starts_with("日\n</think>\n\n"), "{:?}", answer.text);

    let thought = encode("so\n");
    let rules = AnswerRules { thinking_budget: Some(thought.len()), ..AnswerRules::default() };
    let answer = say(&mut plan(rules).start(true, &[stop()]), &thought, 1, 30);
    assert_eq!(answer.text, "so\n</think>\n\n");
}

#[test]
fn a_budget_says_nothing_where_there_is_no_reasoning() {
    let rules = AnswerRules { thinking_budget: Some(0), ..AnswerRules::default() };
    let mut guide = plan(rules).start(false, &[stop()]);
    let text = "Hello, <think>\n is a tag.";
    let answer = say(&mut guide, &encode(text), 1, 60);
    assert_eq!(answer.text, text);
    assert_eq!(guide.allowed().expect("goes on"), Permitted::Unguided);
    // A think block that the model opens itself at the head is one.
    let answer =
        say(&mut plan(rules).start(false, &[stop()]), &encode("<think>\nlong thoughts"), 1, 60);
    assert!(answer.text.starts_with("<think>\n</think>\n\n"), "{:?}", answer.text);
}

#[test]
fn a_budget_and_a_form_go_together() {
    let format = answer_schema();
    let rules =
        AnswerRules { format: Some(&format), thinking_budget: Some(4), ..AnswerRules::default() };
    let plan = plan(rules);
    for seed in 0..20 {
        let answer = say(&mut plan.start(true, &[stop()]), &[], seed, 300);
        if answer.ended {
            let (_, content, _) = read(&answer.tokens, true, &[]);
            assert!(serde_json::from_str::<Value>(&content).is_ok(), "{:?}", answer.text);
        }
    }
}

#[test]
fn a_call_begun_in_the_reasoning_is_not_cut_by_the_budget() {
    let tools = [weather()];
    let budget = Some(encode("so <tool_call>").len());
    let rules = AnswerRules { tools: &tools, thinking_budget: budget, ..AnswerRules::default() };
    let text = format!("so {CALL_TEXT}");
    let answer = say(&mut plan(rules).start(true, &[stop()]), &encode(&text), 1, 100);
    assert_eq!(answer.text, text);
    let (_, _, calls) = read(&answer.tokens, true, &tools);
    assert_eq!(calls, [r#"get_weather {"city":"Lisbon"}"#]);
}

#[test]
fn a_required_call_comes_behind_the_reasoning_and_never_in_it() {
    let tools = [weather(), json!({"name": "other"})];
    for calls in [Calls::Required, Calls::Named("get_weather".to_owned())] {
        let rules = AnswerRules {
            tools: &tools,
            calls: Some(&calls),
            single_call: true,
            ..AnswerRules::default()
        };
        let plan = plan(rules);
        for thinks in [true, false] {
            let thought = if thinks { "Hm.\n</think>\n\n" } else { "" };
            let text = format!("{thought}{CALL_TEXT}");
            let answer = say(&mut plan.start(thinks, &[stop()]), &encode(&text), 1, 200);
            assert_eq!((answer.text.as_str(), answer.ended), (text.as_str(), true));
            // Whatever the model would like to say instead.
            for seed in 0..10 {
                let wishes = encode("Hello! <tool_call> is a tag.");
                let answer = say(&mut plan.start(thinks, &[stop()]), &wishes, seed, 300);
                if answer.ended {
                    let (_, content, calls) = read(&answer.tokens, thinks, &tools);
                    assert_eq!((content.as_str(), calls.len()), ("", 1), "{:?}", answer.text);
                }
            }
        }
    }
}

#[test]
fn a_named_function_that_is_not_there_leaves_nothing_to_call() {
    let tools = [weather()];
    let calls = Calls::Named("other".to_owned());
    let rules = AnswerRules { tools: &tools, calls: Some(&calls), ..AnswerRules::default() };
    assert!(
        AnswerPlan::new(tokenizer(), rules).expect("the server has checked the name").is_none()
    );
}

#[test]
fn no_call_means_that_its_tag_cannot_be_chosen() {
    let tools = [weather()];
    let rules = AnswerRules { tools: &tools, calls: Some(&Calls::None), ..AnswerRules::default() };
    let mut guide = plan(rules).start(false, &[stop()]);
    let tag = tokenizer().token_id("<tool_call>").expect("there");
    for id in encode("Hello") {
        let Permitted::Tokens(words) = guide.allowed().expect("goes on") else { panic!("a mask") };
        assert_eq!(ids(&words).len(), tokenizer().len() - 1);
        assert!(!ids(&words).contains(&tag));
        guide.chosen(id).expect("allowed");
    }
}

#[test]
fn strict_functions_are_held_to_their_schema_beside_free_text() {
    let mut strict = weather();
    strict["function"]["strict"] = json!(true);
    let tools = [strict];
    let plan = plan(AnswerRules { tools: &tools, ..AnswerRules::default() });
    for text in ["Just text.".to_owned(), format!("Let me see.\n\n{CALL_TEXT}")] {
        let answer = say(&mut plan.start(false, &[stop()]), &encode(&text), 1, 200);
        assert_eq!((answer.text.as_str(), answer.ended), (text.as_str(), true));
    }
    let wrong = CALL_TEXT.replace("city", "town");
    let answer = say(&mut plan.start(false, &[stop()]), &encode(&wrong), 1, 400);
    if answer.ended {
        let (_, _, calls) = read(&answer.tokens, false, &tools);
        let arguments = calls[0].strip_prefix("get_weather ").expect("the only function");
        let arguments: Value = serde_json::from_str(arguments).expect("JSON");
        assert!(arguments["city"].is_string() && arguments.get("town").is_none());
    }
}

#[test]
fn the_tool_to_blame_is_named() {
    let mut bad = weather();
    bad["function"]["parameters"]["properties"]["days"]["pattern"] = json!("(");
    bad["function"]["parameters"]["properties"]["days"]["type"] = json!(["array", "null"]);
    bad["function"]["parameters"]["properties"]["days"]["items"] = json!({"type": "x"});
    let tools = [weather(), bad];
    let rules =
        AnswerRules { tools: &tools, calls: Some(&Calls::Required), ..AnswerRules::default() };
    let error = AnswerPlan::new(tokenizer(), rules).expect_err("a refusal");
    assert!(matches!(error, GrammarError::Tool { index: 1, .. }), "{error:?}");
    let place = "the keyword \"type\" at #/properties/days/items is \"x\"; expected one of object";
    assert!(error.to_string().starts_with(place), "{error}");
}

#[test]
fn two_answers_of_one_plan_do_not_disturb_each_other() {
    let format = answer_schema();
    let plan = plan(AnswerRules { format: Some(&format), ..AnswerRules::default() });
    let alone = say(&mut plan.start(true, &[stop()]), &[], 5, 120).tokens;
    let (mut first, mut second) = (plan.start(true, &[stop()]), plan.start(false, &[stop()]));
    std::thread::scope(|scope| {
        let one = scope.spawn(|| say(&mut first, &[], 5, 120).tokens);
        let two = scope.spawn(|| say(&mut second, &[], 7, 120).tokens);
        assert_eq!(one.join().expect("no panic"), alone);
        assert_ne!(two.join().expect("no panic"), alone);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the model wants to say, an answer that has ended holds what was asked for.
    #[test]
    fn an_answer_that_has_ended_keeps_the_rules(
        seed in any::<u64>(),
        thinks in any::<bool>(),
        budget in proptest::option::of(0usize..12),
        with_format in any::<bool>(),
        wishes in proptest::collection::vec(0u32..4080, 0..30),
    ) {
        let format = answer_schema();
        let tools = [weather()];
        let rules = AnswerRules {
            format: with_format.then_some(&format),
            tools: if with_format { &[] } else { &tools },
            calls: Some(if with_format { &Calls::Auto } else { &Calls::Required }),
            single_call: Random(seed).below(2) == 0,
            thinking_budget: budget,
        };
        let wishes: Vec<u32> =
            wishes.into_iter().filter(|&id| (id as usize) < tokenizer().len()).collect();
        let answer = say(&mut plan(rules).start(thinks, &[stop()]), &wishes, seed, 400);
        if answer.ended {
            let (_, content, calls) = read(&answer.tokens, thinks, rules.tools);
            if with_format {
                prop_assert!(calls.is_empty());
                let value: Value = serde_json::from_str(&content).expect("JSON");
                prop_assert!(value["answer"].is_string() && value["sure"].is_boolean());
            } else {
                prop_assert_eq!(content, "");
                prop_assert!(!calls.is_empty() && (!rules.single_call || calls.len() == 1));
            }
        }
    }
}
