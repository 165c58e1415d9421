use proptest::prelude::*;
use serde_json::{Value, json};

use super::machine::Machine;
use super::{Located, OutputEvent, ParserOptions, ends_in_thinking};

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "where": {"type": "object"},
            },
        }}}),
        json!({"name": "f", "parameters": {"properties": {
            "limit": {"type": "integer"}, "obj": {"type": "object"}, "a": {"type": "string"},
            "b": {"type": "string"},
        }}}),
    ]
}

fn thinking() -> ParserOptions {
    ParserOptions { starts_in_thinking: true, ..ParserOptions::default() }
}

fn answering() -> ParserOptions {
    ParserOptions::default()
}

fn with_tools(options: ParserOptions) -> ParserOptions {
    ParserOptions { tools: Some(tools()), ..options }
}

fn with_stop(options: ParserOptions, stop: &str) -> ParserOptions {
    ParserOptions { stop: vec![stop.to_owned()], ..options }
}

fn events(
    options: &ParserOptions,
    pieces: impl IntoIterator<Item = impl AsRef<str>>,
) -> Vec<OutputEvent> {
    located(options, pieces).into_iter().map(|located| located.event).collect()
}

fn located(
    options: &ParserOptions,
    pieces: impl IntoIterator<Item = impl AsRef<str>>,
) -> Vec<Located> {
    let mut machine = Machine::new(options);
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(machine.push(piece.as_ref()));
    }
    events.extend(machine.finish(""));
    events
}

/// An answer, put together from its events.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    reasoning: String,
    content: String,
    /// Name, arguments, complete.
    calls: Vec<(String, String, bool)>,
}

fn merge(events: &[OutputEvent]) -> Answer {
    let mut answer = Answer::default();
    for event in events {
        match event {
            OutputEvent::Reasoning(text) => answer.reasoning += text,
            OutputEvent::Content(text) => answer.content += text,
            OutputEvent::ToolCallStart { index, name } => {
                assert_eq!(*index, answer.calls.len());
                answer.calls.push((name.clone(), String::new(), false));
            }
            OutputEvent::ToolCallArguments { index, fragment } => {
                assert_eq!(*index + 1, answer.calls.len());
                answer.calls[*index].1 += fragment;
            }
            OutputEvent::ToolCallEnd { index } => {
                assert!(!answer.calls[*index].2);
                answer.calls[*index].2 = true;
            }
        }
    }
    answer
}

/// Parses `text` whole and byte by byte (character by character), which must agree.
fn parse(options: &ParserOptions, text: &str) -> Answer {
    let whole = merge(&events(options, [text]));
    let pieces = merge(&events(options, text.chars().map(String::from)));
    assert_eq!(whole, pieces, "{text:?}");
    whole
}

fn split(options: &ParserOptions, text: &str) -> (String, String) {
    let answer = parse(options, text);
    assert_eq!(answer.calls, []);
    (answer.reasoning, answer.content)
}

fn call(arguments: &str) -> (String, String, bool) {
    ("f".to_owned(), arguments.to_owned(), true)
}

fn pair(reasoning: &str, content: &str) -> (String, String) {
    (reasoning.to_owned(), content.to_owned())
}

#[test]
fn reasoning_ends_at_the_closing_tag_though_the_opening_one_was_in_the_prompt() {
    assert_eq!(split(&thinking(), "We need.\n</think>\n\nAnswer."), pair("We need.", "Answer."));
    assert_eq!(split(&thinking(), "\n a \n b \n</think>x"), pair("a \n b", "x"));
    assert_eq!(split(&thinking(), "</think>\n\nx"), pair("", "x"));
}

#[test]
fn an_opening_tag_at_the_head_of_reasoning_is_dropped_once() {
    assert_eq!(split(&thinking(), "<think>\nr</think>c"), pair("r", "c"));
    assert_eq!(split(&thinking(), "\n<think>r <think> s</think>c"), pair("r <think> s", "c"));
}

#[test]
fn reasoning_cut_off_is_reasoning() {
    assert_eq!(split(&thinking(), "We need </thi"), pair("We need </thi", ""));
    assert_eq!(split(&thinking(), ""), pair("", ""));
}

#[test]
fn a_literal_think_tag_in_the_answer_is_text() {
    assert_eq!(
        split(&answering(), "It is <think> literally."),
        pair("", "It is <think> literally.")
    );
    assert_eq!(split(&answering(), "<think>"), pair("", "<think>"));
    assert_eq!(split(&answering(), "<think> opens it"), pair("", "<think> opens it"));
    assert_eq!(split(&thinking(), "r</think>a <think> b"), pair("r", "a <think> b"));
}

#[test]
fn a_think_block_at_the_head_is_reasoning_even_if_the_prompt_opened_none() {
    assert_eq!(split(&answering(), "<think>\nr\n</think>\n\nc"), pair("r", "c"));
    assert_eq!(split(&answering(), "\n<think>\nr\n</think>\n\nc"), pair("r", "c"));
}

#[test]
fn further_closing_tags_are_text() {
    assert_eq!(
        split(&thinking(), "r</think>\n\na</think></think>"),
        pair("r", "a</think></think>")
    );
    assert_eq!(split(&answering(), "a</think>b"), pair("", "a</think>b"));
}

#[test]
fn content_keeps_its_own_white_space() {
    assert_eq!(split(&answering(), "  a \n\n b\n"), pair("", "  a \n\n b\n"));
    assert_eq!(split(&with_tools(answering()), "  a \n\n b\n"), pair("", "  a \n\n b\n"));
}

#[test]
fn a_prompt_ends_in_thinking_if_its_last_tag_opens_a_block() {
    assert!(ends_in_thinking("<|im_start|>assistant\n<think>\n"));
    assert!(!ends_in_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!ends_in_thinking(""));
}

const CALL: &str = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>";

#[test]
fn a_call_after_reasoning_and_text_is_taken_apart() {
    let answer = parse(&with_tools(thinking()), &format!("r\n</think>\n\nLet me look.\n\n{CALL}"));
    assert_eq!(answer.reasoning, "r");
    assert_eq!(answer.content, "Let me look.");
    assert_eq!(
        answer.calls,
        [("get_weather".to_owned(), r#"{"city":"Paris","days":2}"#.to_owned(), true)]
    );
}

#[test]
fn several_calls_follow_one_another() {
    let answer = parse(&with_tools(answering()), &format!("{CALL}\n{CALL}\n"));
    assert_eq!(answer.content, "");
    assert_eq!(answer.calls.len(), 2);
    assert_eq!(answer.calls[0], answer.calls[1]);
}

#[test]
fn a_call_without_parameters_has_an_empty_object() {
    let text = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
    assert_eq!(parse(&with_tools(answering()), text).calls, [call("{}")]);
}

#[test]
fn a_call_inside_an_unclosed_think_block_ends_the_reasoning() {
    let answer = parse(&with_tools(thinking()), &format!("I will look.\n\n{CALL}"));
    assert_eq!(answer.reasoning, "I will look.");
    assert_eq!(answer.calls.len(), 1);
}

#[test]
fn a_thought_may_quote_the_format_with_an_example_name() {
    let quoted = CALL.replace("get_weather", "example_function_name");
    assert_eq!(split(&with_tools(thinking()), &quoted), pair(&quoted, ""));
    assert_eq!(parse(&with_tools(answering()), &quoted).calls[0].0, "example_function_name");
}

#[test]
fn talk_about_the_tag_is_no_call() {
    let text = "The <tool_call> tag and <function=unknown> and <function=f";
    assert_eq!(split(&with_tools(answering()), text), pair("", text));
    assert_eq!(split(&with_tools(thinking()), text), pair(text, ""));
    let unnamed = "<tool_call>\n<function=>\n</function>";
    assert_eq!(split(&with_tools(answering()), unnamed), pair("", unnamed));
}

#[test]
fn without_tools_a_call_is_content() {
    assert_eq!(split(&answering(), CALL), pair("", CALL));
    let none = ParserOptions { tools: Some(Vec::new()), ..answering() };
    assert_eq!(split(&none, CALL), pair("", CALL));
}

#[test]
fn a_bare_function_block_of_a_known_tool_is_a_call() {
    let bare = CALL.replace("<tool_call>\n", "").replace("\n</tool_call>", "");
    let expected = parse(&with_tools(answering()), CALL);
    assert_eq!(parse(&with_tools(answering()), &bare), expected);
    let only_closed = CALL.replace("<tool_call>\n", "");
    assert_eq!(parse(&with_tools(answering()), &only_closed), expected);
}

#[test]
fn parameters_come_in_any_order() {
    let text = "<tool_call><function=get_weather><parameter=days>2</parameter><parameter=city>Paris</parameter></function></tool_call>";
    assert_eq!(parse(&with_tools(answering()), text).calls[0].1, r#"{"days":2,"city":"Paris"}"#);
}

#[test]
fn an_integral_float_is_an_integer_and_the_call_is_not_lost() {
    let text = "<function=f><parameter=limit>140.0</parameter></function>";
    assert_eq!(parse(&with_tools(answering()), text).calls, [call(r#"{"limit":140}"#)]);
}

#[test]
fn what_is_no_json_is_passed_as_a_string() {
    for (value, expected) in
        [("{'a': 1}", r#"{"obj":"{'a': 1}"}"#), ("for i in x: {", r#"{"obj":"for i in x: {"}"#)]
    {
        let text = format!("<function=f><parameter=obj>{value}</parameter></function>");
        assert_eq!(parse(&with_tools(answering()), &text).calls, [call(expected)]);
        let cut = format!("<function=f><parameter=obj>{value}</parameter>");
        assert_eq!(parse(&with_tools(answering()), &cut).calls, [call(expected)]);
    }
}

#[test]
fn one_line_break_at_each_end_of_a_value_is_markup() {
    for (value, expected) in [
        ("\n\na\n\n", r#"{"a":"\na\n"}"#),
        ("\r\na\r\n", r#"{"a":"a"}"#),
        ("\n\n", r#"{"a":""}"#),
        ("\n", r#"{"a":""}"#),
        ("", r#"{"a":""}"#),
        ("\n  a  \n", r#"{"a":"  a  "}"#),
    ] {
        let text = format!("<function=f><parameter=a>{value}</parameter></function>");
        assert_eq!(parse(&with_tools(answering()), &text).calls, [call(expected)], "{value:?}");
    }
}

#[test]
fn a_closing_tag_in_the_middle_of_a_value_is_part_of_it() {
    let value = "print('</parameter>')\nprint('</function>')\n<parameter=x> </tool_call> <b>";
    let text = format!(
        "<tool_call><function=f><parameter=a>\n{value}\n</parameter></function></tool_call>"
    );
    let answer = parse(&with_tools(answering()), &text);
    let arguments: Value = serde_json::from_str(&answer.calls[0].1).unwrap();
    assert_eq!(arguments, json!({"a": value}));
}

#[test]
fn missing_closing_tags_are_made_up_for() {
    for text in [
        "<tool_call><function=f><parameter=a>\nx\n<parameter=b>\ny\n</parameter></function></tool_call>",
        "<tool_call><function=f><parameter=a>\nx\n</parameter><parameter=b>\ny\n</function></tool_call>",
        "<tool_call><function=f><parameter=a>\nx\n</parameter><parameter=b>\ny\n</parameter></tool_call>",
        "<tool_call><function=f><parameter=a>\nx\n</parameter><parameter=b>\ny\n</tool_call>",
        "<tool_call><function=f><parameter=a>\nx\n</parameter><parameter=b>\ny\n</parameter>",
    ] {
        let answer = parse(&with_tools(answering()), text);
        assert_eq!(answer.calls, [call(r#"{"a":"x","b":"y"}"#)], "{text}");
        assert_eq!(answer.content, "");
    }
}

#[test]
fn a_call_that_is_cut_off_shows_what_there_is_and_never_ends() {
    for (text, arguments) in [
        ("<tool_call>\n<function=f>\n", "{"),
        ("<tool_call>\n<function=f>\n<parameter=a>\nrm -rf /t", r#"{"a":"rm -rf /t"#),
        ("<tool_call>\n<function=f>\n<parameter=limit>\n14", r#"{"limit":"14"#),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\n",
            r#"{"a":"x","b":""#,
        ),
    ] {
        let answer = parse(&with_tools(answering()), text);
        assert_eq!(answer.calls, [("f".to_owned(), arguments.to_owned(), false)], "{text}");
    }
}

#[test]
fn markup_that_is_cut_off_is_neither_content_nor_value() {
    let paris = |arguments: &str, ended| ("get_weather".to_owned(), arguments.to_owned(), ended);
    let opened = "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis";
    let complete = "\n</parameter>\n</function>\n</tool_call>";
    let second = format!("{opened}{complete}\n<tool_call>\n<function=get");
    for end in [
        "<tool_call>",
        "<tool_call>\n<func",
        "<tool_call>\n<function",
        "<tool_call>\n<function=get_w",
    ] {
        let answer = parse(&with_tools(answering()), &format!("Let me see.\n{end}"));
        assert_eq!((answer.content.trim_end(), answer.calls.len()), ("Let me see.", 0), "{end}");
    }
    let answer = parse(&with_tools(answering()), &second);
    assert_eq!(answer.calls, [paris(r#"{"city":"Paris"}"#, true)]);
    assert_eq!(answer.content, "Let me see.");
    for end in ["", "\n", "\n<", "\n</para", "\n</parameter"] {
        let answer = parse(&with_tools(answering()), &format!("{opened}{end}"));
        assert_eq!(answer.calls, [paris(r#"{"city":"Paris"#, false)], "{end}");
    }
    for end in ["\n</parameter>", "\n</parameter>\n</funct", "\n</parameter>\n</function>\n</to"] {
        let answer = parse(&with_tools(answering()), &format!("{opened}{end}"));
        assert_eq!(answer.calls, [paris(r#"{"city":"Paris"}"#, true)], "{end}");
        assert_eq!(answer.content, "Let me see.", "{end}");
    }
}

#[test]
fn stray_text_inside_a_call_becomes_content_after_it() {
    let text = "<function=f>\nnote\n<parameter=a>x</parameter>\n</function>";
    let answer = parse(&with_tools(answering()), text);
    assert_eq!(answer.calls, [call(r#"{"a":"x"}"#)]);
    assert_eq!(answer.content, "note");
}

#[test]
fn text_after_a_call_is_content() {
    let answer = parse(&with_tools(answering()), &format!("Before. {CALL}\n\nAfter.\n"));
    assert_eq!(answer.content, "Before.After.");
}

#[test]
fn a_long_string_argument_comes_in_many_fragments() {
    let text = format!(
        "<tool_call><function=f><parameter=a>\n{}\n</parameter></function></tool_call>",
        "word \"x\"\n".repeat(50)
    );
    let events = events(&with_tools(answering()), text.split_inclusive(' '));
    let fragments =
        events.iter().filter(|event| matches!(event, OutputEvent::ToolCallArguments { .. }));
    assert!(fragments.count() > 50);
    let answer = parse(&with_tools(answering()), &text);
    let arguments: Value = serde_json::from_str(&answer.calls[0].1).unwrap();
    assert_eq!(arguments["a"], "word \"x\"\n".repeat(50));
}

#[test]
fn a_stop_string_ends_the_content_and_nothing_follows() {
    let options = with_stop(answering(), "beta gamma");
    let mut machine = Machine::new(&options);
    let content = |text: &str, span| Located { event: OutputEvent::Content(text.to_owned()), span };
    assert_eq!(machine.push("alpha be"), [content("alpha", 0..5)]);
    assert!(!machine.stopped());
    assert_eq!(machine.push("ta gamma delta"), [content(" ", 5..6)]);
    assert!(machine.stopped());
    assert_eq!(machine.push(" more"), []);
    assert_eq!(machine.finish("end"), []);
}

#[test]
fn a_stop_string_does_not_match_in_reasoning_or_arguments() {
    let options = with_stop(with_tools(thinking()), "Paris");
    let answer = parse(&options, &format!("Paris?</think>\n\nYes\n{CALL}\n then Paris is"));
    assert_eq!(answer.reasoning, "Paris?");
    assert_eq!(answer.content, "Yesthen ");
    assert_eq!(answer.calls[0].1, r#"{"city":"Paris","days":2}"#);
}

#[test]
fn a_stop_string_of_line_breaks_sees_the_content_only() {
    let options = with_stop(with_tools(thinking()), "\n\n");
    let answer = parse(&options, "r\n\ns\n</think>\n\nfirst\n\nsecond");
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("r\n\ns", "first"));
}

#[test]
fn a_plain_answer_is_content_to_its_last_character() {
    let options = ParserOptions { plain: true, ..with_tools(thinking()) };
    for text in [" \n<think>\na</think>\n\nb \n", CALL, "<tool_call>\n<function=", "</think>", ""] {
        assert_eq!(split(&options, text), pair("", text));
    }
    let answer = parse(&with_stop(options, "\n"), " a \nb");
    assert_eq!(answer.content, " a ");
}

/// Text made of the format's own tags, which is where a parser goes wrong.
fn adversarial() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<function=f>",
            "</function>",
            "<function=get_weather>",
            "<parameter=a>",
            "<parameter=limit>",
            "<parameter=obj>",
            "</parameter>",
            "<parameter=",
            "<function=",
            "<",
            ">",
            "\n",
            "\r",
            " ",
            "null",
            "{",
            "\"",
            "140.0",
            "{\"k\": [1]}",
            "stop",
            "st",
            "日本",
            "x",
        ])
        .prop_map(str::to_owned),
        Just(CALL.to_owned()),
        "\\PC{0,4}",
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_the_text_gives_the_same_answer(
        text in adversarial(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        starts_in_thinking: bool,
        tools_sent: bool,
        stop: bool,
    ) {
        let options = ParserOptions {
            starts_in_thinking,
            tools: tools_sent.then(tools),
            stop: if stop { vec!["stop".to_owned(), "\n\n".to_owned()] } else { Vec::new() },
            ..ParserOptions::default()
        };
        let whole = merge(&events(&options, [&text]));
        let mut bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        bounds.push(text.len());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| bounds[cut.index(bounds.len())]).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]);
        prop_assert_eq!(&whole, &merge(&events(&options, pieces)));
        prop_assert_eq!(&whole, &merge(&events(&options, text.chars().map(String::from))));
    }

    #[test]
    fn content_is_a_copy_of_the_place_it_is_said_to_come_from(
        text in adversarial(),
        starts_in_thinking: bool,
        plain: bool,
        stop: bool,
    ) {
        let stop = if stop { vec!["stop".to_owned(), "\n\n".to_owned()] } else { Vec::new() };
        let options = ParserOptions { starts_in_thinking, stop, plain, tools: None };
        let mut end = 0;
        for piece in located(&options, text.chars().map(String::from)) {
            if let OutputEvent::Content(content) = piece.event {
                prop_assert_eq!(&text[piece.span.clone()], content);
                prop_assert!(piece.span.start >= end);
                end = piece.span.end;
            }
        }
    }

    #[test]
    fn arguments_of_a_complete_call_are_a_json_object(text in adversarial(), starts_in_thinking: bool) {
        let options = ParserOptions { starts_in_thinking, ..with_tools(answering()) };
        for (_, arguments, complete) in merge(&events(&options, [&text])).calls {
            if complete {
                let parsed: Result<serde_json::Map<String, Value>, _> = serde_json::from_str(&arguments);
                prop_assert!(parsed.is_ok(), "{}", arguments);
            }
        }
    }

    #[test]
    fn any_string_survives_as_an_argument(value in "\\PC{0,40}") {
        prop_assume!(!value.contains('<') && value != "null");
        let text = format!("<function=f><parameter=a>\n{value}\n</parameter></function>");
        let answer = merge(&events(&with_tools(answering()), text.chars().map(String::from)));
        let arguments: Value = serde_json::from_str(&answer.calls[0].1).unwrap();
        prop_assert_eq!(&arguments["a"], &Value::from(value));
    }

    #[test]
    fn without_tools_and_thinking_every_character_is_content(text in adversarial()) {
        prop_assume!(!text.trim_start().starts_with("<think>"));
        let answer = merge(&events(&answering(), text.chars().map(String::from)));
        prop_assert_eq!(answer.content, text);
    }
}
