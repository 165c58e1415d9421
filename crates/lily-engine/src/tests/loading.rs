//! What is refused before anything is loaded, and what a loaded engine says about itself.

use lily_checkpoint::config::GenerationConfig;

use super::mock::{Mock, VOCAB_SIZE};
use crate::{Engine, EngineError, EngineOptions, SamplingParams, Session};

fn options() -> EngineOptions {
    EngineOptions::default()
}

#[test]
fn handles_can_be_sent_between_threads() {
    fn sent<T: Send>() {}
    fn shared<T: Sync>() {}
    sent::<Engine>();
    shared::<Engine>();
    sent::<Session>();
    sent::<crate::Generation<'_>>();
}

#[test]
fn the_context_defaults_to_the_models_own() {
    let engine = Mock::default().engine(options()).expect("loads");
    assert_eq!(engine.context(), 4096);
    assert_eq!(engine.memory().context, 4096);
}

#[test]
fn options_outside_their_range_are_refused_by_name() {
    let cases = [
        ("context", EngineOptions { context: Some(0), ..options() }),
        ("context", EngineOptions { context: Some(4097), ..options() }),
        ("prefill_chunk", EngineOptions { prefill_chunk: 0, ..options() }),
        ("token_limit", EngineOptions { token_limit: Some(0), ..options() }),
    ];
    for (name, options) in cases {
        match Mock::default().engine(options) {
            Err(EngineError::Options { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_the_context_that_would() {
    let mock = Mock::default();
    let whole = mock.engine(options()).expect("loads").memory();
    let limit = whole.total() - whole.kv() / 2;
    let limited = EngineOptions { memory_limit: Some(limit), ..options() };
    let fitting = match mock.engine(limited.clone()) {
        Err(EngineError::Memory { need, available, context, fitting_context: Some(fitting) }) => {
            assert_eq!((need, available, context), (whole.total(), limit, 4096));
            fitting
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(fitting, 2048);
    mock.engine(EngineOptions { context: Some(fitting), ..limited.clone() }).expect("fits");
    mock.engine(EngineOptions { context: Some(fitting + 1), ..limited }).expect_err("too long");
}

#[test]
fn a_model_whose_weights_alone_do_not_fit_names_no_context() {
    let refused = Mock::default().engine(EngineOptions { memory_limit: Some(1000), ..options() });
    let error = refused.expect_err("1000 bytes do not suffice");
    assert!(matches!(error, EngineError::Memory { fitting_context: None, .. }), "{error:?}");
    assert!(error.to_string().ends_with("no context would fit"), "{error}");
}

#[test]
fn the_score_plan_counts_as_memory() {
    let memory = |score| Mock::default().engine(EngineOptions { score, ..options() });
    let with = memory(true).expect("loads").memory().scratch;
    // 64 rows of logits.
    assert!(with >= 64 * 4 * VOCAB_SIZE as u64);
}

#[test]
fn stop_tokens_of_the_generation_config_win_over_the_configs() {
    let stop_tokens = |eos_token_ids| {
        let generation = GenerationConfig { eos_token_ids, ..Default::default() };
        let engine = Mock::default().engine_with(&generation, options()).expect("loads");
        assert_eq!(engine.default_options().stop_tokens, engine.stop_tokens());
        engine.stop_tokens().to_vec()
    };
    assert_eq!(stop_tokens(vec![]), [298]);
    assert_eq!(stop_tokens(vec![1, 2]), [1, 2]);
}

#[test]
fn sampling_defaults_come_from_the_generation_config_and_are_checked() {
    let generation = GenerationConfig {
        do_sample: Some(true),
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        ..Default::default()
    };
    let engine = Mock::default().engine_with(&generation, options()).expect("loads");
    let expected =
        SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..Default::default() };
    assert_eq!(engine.default_sampling(), expected);

    let generation = GenerationConfig { top_p: Some(7.0), ..generation };
    let error = Mock::default().engine_with(&generation, options()).expect_err("top_p of 7");
    assert!(matches!(error, EngineError::Defaults(_)), "{error:?}");
}
