//! Encoding, decoding and streaming with real vocabularies.

mod common;

use lily_text::{Detokenizer, OutputEvent, OutputParser, ParserOptions, TextError, Tokenizer};
use proptest::prelude::*;

fn demo() -> Tokenizer {
    Tokenizer::from_json(&common::demo("tokenizer.json")).unwrap()
}

fn nfc(text: &str) -> String {
    let mut text = tokenizers::NormalizedString::from(text);
    text.nfc();
    text.get().to_owned()
}

fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

#[test]
fn the_published_vectors_encode_and_decode_exactly() {
    let (Some(json), Some(vectors)) =
        (common::qwen36("tokenizer.json"), common::qwen36("tokenizer-vectors.json"))
    else {
        return;
    };
    let tokenizer = Tokenizer::from_json(&json).unwrap();
    assert_eq!(tokenizer.len(), 248_077);
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(248_046));
    assert_eq!(tokenizer.token_id("</think>"), Some(248_069));
    let vectors: Vec<serde_json::Value> = serde_json::from_slice(&vectors).unwrap();
    assert_eq!(vectors.len(), 61);
    for vector in vectors {
        let name = vector["name"].as_str().unwrap();
        let text = vector["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(vector["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}");
        let decoded = tokenizer.decode(&ids, false);
        assert_eq!(decoded, nfc(text), "{name}");
        assert_eq!(stream(&tokenizer, &ids), tokenizer.decode(&ids, true), "{name}");
    }
}

#[test]
fn a_character_over_several_tokens_appears_when_it_is_whole() {
    let tokenizer = demo();
    let text = "ď 👋 日";
    let ids = tokenizer.encode(text).unwrap();
    assert!(ids.len() > text.chars().count(), "the vocabulary is too good for this test");
    let mut detokenizer = Detokenizer::new(&tokenizer);
    let pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')));
    assert_eq!(pieces.concat(), text);
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn a_character_that_is_cut_off_becomes_one_replacement_character() {
    let tokenizer = demo();
    let ids = tokenizer.encode("a👋").unwrap();
    let cut = &ids[..ids.len() - 1];
    assert_eq!(stream(&tokenizer, cut), "a\u{fffd}");
    assert_eq!(tokenizer.decode(cut, true), "a\u{fffd}");
}

#[test]
fn special_tokens_are_hidden_and_merely_added_ones_are_not() {
    let tokenizer = demo();
    let ids = tokenizer.encode("<think>a</think><|im_end|>").unwrap();
    assert_eq!(tokenizer.decode(&ids, true), "<think>a</think>");
    assert_eq!(tokenizer.decode(&ids, false), "<think>a</think><|im_end|>");
    assert_eq!(stream(&tokenizer, &ids), "<think>a</think>");
}

#[test]
fn an_unknown_id_has_no_text() {
    let tokenizer = demo();
    assert_eq!(tokenizer.decode(&[u32::MAX], false), "");
    assert_eq!(stream(&tokenizer, &[u32::MAX]), "");
}

#[test]
fn a_long_run_of_white_space_can_be_encoded() {
    let tokenizer = demo();
    let text = format!("a{}b", " ".repeat(100_000));
    let ids = tokenizer.encode(&text).unwrap();
    assert_eq!(tokenizer.decode(&ids, true), text);
}

#[test]
fn files_that_are_no_byte_level_tokenizer_are_refused() {
    assert!(matches!(Tokenizer::from_json(b"{}"), Err(TextError::Tokenizer { .. })));
    assert!(matches!(Tokenizer::from_json(b"\xff"), Err(TextError::Tokenizer { .. })));
    let mut json: serde_json::Value =
        serde_json::from_slice(&common::demo("tokenizer.json")).unwrap();
    json["decoder"] = serde_json::json!({"type": "Fuse"});
    let error = Tokenizer::from_json(&serde_json::to_vec(&json).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the tokenizer's decoder is Fuse, expected ByteLevel");
    assert!(!error.is_client_fault());
}

#[test]
fn the_parser_sees_tags_that_are_single_tokens() {
    let tokenizer = demo();
    let ids = tokenizer.encode("Let me see.\n</think>\n\n4 👋<|im_end|>").unwrap();
    let options = ParserOptions { starts_in_thinking: true, ..ParserOptions::default() };
    let mut parser = OutputParser::new(&tokenizer, options);
    let mut events: Vec<OutputEvent> = ids.iter().flat_map(|&id| parser.push(id)).collect();
    events.extend(parser.finish());
    let (mut reasoning, mut content) = (String::new(), String::new());
    for event in events {
        match event {
            OutputEvent::Reasoning(text) => reasoning += &text,
            OutputEvent::Content(text) => content += &text,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((reasoning.as_str(), content.as_str()), ("Let me see.", "4 👋"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tokens_stream_to_what_they_decode_to(ids in prop::collection::vec(0_u32..4200, 0..40)) {
        thread_local!(static DEMO: Tokenizer = demo());
        DEMO.with(|tokenizer| {
            prop_assert_eq!(stream(tokenizer, &ids), tokenizer.decode(&ids, true));
            Ok(())
        })?;
    }

    #[test]
    fn any_text_survives_encoding(text in "\\PC{0,60}") {
        thread_local!(static DEMO: Tokenizer = demo());
        DEMO.with(|tokenizer| {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false), nfc(&text));
            Ok(())
        })?;
    }
}
