//! Generations whose tokens the device chooses itself.

use std::ops::ControlFlow;

use super::mock::{Mock, VOCAB_SIZE};
use crate::{
    CancelToken, EngineError, EngineOptions, FinishReason, GenerateOptions, SamplingParams, Session,
};

fn session(mock: &Mock) -> Session {
    let engine = mock.engine(EngineOptions::default()).expect("the mock loads");
    engine.new_session().expect("the mock has memory")
}

fn devices() -> [Mock; 4] {
    [None, Some(0), Some(1), Some(3)].map(|ahead| Mock { ahead, ..Mock::default() })
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max_tokens),
        stop_tokens: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
    }
}

fn prompt(n: usize) -> Vec<u32> {
    (0..n).map(|i| (i * 31 % VOCAB_SIZE) as u32).collect()
}

type Step = Result<ControlFlow<()>, EngineError>;

/// Tokens up to the one at which `each` breaks, and why the generation ended.
fn generate(
    session: &mut Session,
    prompt: &[u32],
    options: GenerateOptions,
    cancel: &CancelToken,
    mut each: impl FnMut(usize) -> Step,
) -> (Vec<u32>, Result<Option<FinishReason>, EngineError>) {
    let mut tokens = Vec::new();
    let mut generation = session.generate(prompt, options, cancel).expect("a valid request");
    let result = generation.for_each(|token| {
        tokens.push(token.id);
        each(tokens.len())
    });
    let finish = generation.finish_reason();
    assert_eq!(generation.n_generated(), tokens.len());
    (tokens, result.map(|()| finish))
}

fn on(_: usize) -> Step {
    Ok(ControlFlow::Continue(()))
}

fn whole(session: &mut Session, prompt: &[u32], n: usize) -> Vec<u32> {
    generate(session, prompt, greedy(n), &CancelToken::new(), on).0
}

/// What the timeline goes on with must not depend on what the device had fed.
fn assert_goes_on(session: &mut Session, timeline: &[u32]) {
    assert_eq!(session.tokens(), timeline);
    assert_eq!(session.position(), timeline.len());
    let more = whole(session, &[7, 8], 5);
    let fresh = whole(&mut self::session(&Mock::default()), &[timeline, &[7, 8]].concat(), 5);
    assert_eq!(more, fresh);
}

#[test]
fn the_length_limit_ends_the_steps() {
    let expected = whole(&mut session(&Mock::default()), &prompt(9), 12);
    for mock in devices() {
        let mut session = session(&mock);
        let cancel = CancelToken::new();
        let (tokens, finish) = generate(&mut session, &prompt(9), greedy(12), &cancel, on);
        assert_eq!(tokens, expected);
        assert_eq!(finish.expect("runs"), Some(FinishReason::Length));
        assert_goes_on(&mut session, &[prompt(9), expected.clone()].concat());
    }
}

#[test]
fn a_stop_token_is_not_given_out_and_tokens_after_it_leave_no_trace() {
    let expected = whole(&mut session(&Mock::default()), &prompt(9), 12);
    for mock in devices() {
        let mut session = session(&mock);
        let options = GenerateOptions { stop_tokens: vec![expected[6]], ..greedy(12) };
        let (tokens, finish) = generate(&mut session, &prompt(9), options, &CancelToken::new(), on);
        assert_eq!(tokens, expected[..6]);
        assert_eq!(finish.expect("runs"), Some(FinishReason::Stop));
        assert_goes_on(&mut session, &[prompt(9), tokens].concat());
    }
}

#[test]
fn a_cancelled_generation_gives_no_further_token() {
    let expected = whole(&mut session(&Mock::default()), &prompt(9), 12);
    for mock in devices() {
        let mut session = session(&mock);
        let cancel = CancelToken::new();
        let (tokens, finish) = generate(&mut session, &prompt(9), greedy(12), &cancel, |n| {
            if n == 5 {
                cancel.cancel();
            }
            Ok(ControlFlow::Continue(()))
        });
        assert_eq!(tokens, expected[..5]);
        assert_eq!(finish.expect("runs"), Some(FinishReason::Cancelled));
        assert_goes_on(&mut session, &[prompt(9), tokens].concat());
    }
}

#[test]
fn a_cancelled_answer_can_go_on_from_its_last_token() {
    let expected = whole(&mut session(&Mock::default()), &prompt(9), 12);
    for mock in devices() {
        let mut session = session(&mock);
        let cancel = CancelToken::new();
        let (mut tokens, _) = generate(&mut session, &prompt(9), greedy(12), &cancel, |n| {
            if n == 5 {
                cancel.cancel();
            }
            Ok(ControlFlow::Continue(()))
        });
        tokens.extend(whole(&mut session, &[], 7));
        assert_eq!(tokens, expected);
    }
}

#[test]
fn a_receiver_that_has_enough_ends_the_steps_and_can_go_on() {
    let expected = whole(&mut session(&Mock::default()), &prompt(9), 12);
    for mock in devices() {
        let mut session = session(&mock);
        let cancel = CancelToken::new();
        let mut generation =
            session.generate(&prompt(9), greedy(12), &cancel).expect("a valid request");
        let mut tokens = Vec::new();
        for enough in [4, 5, 12] {
            let each = |token: crate::GeneratedToken| -> Step {
                tokens.push(token.id);
                let done = tokens.len() >= enough;
                Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            };
            generation.for_each(each).expect("runs");
            assert_eq!(tokens, expected[..enough]);
        }
        assert_eq!(generation.finish_reason(), Some(FinishReason::Length));
        drop(generation);
        assert_goes_on(&mut session, &[prompt(9), tokens].concat());
    }
}

#[test]
fn the_end_of_the_context_ends_the_steps() {
    for mock in devices() {
        let options = EngineOptions { context: Some(32), ..EngineOptions::default() };
        let engine = mock.engine(options).expect("the mock loads");
        let mut session = engine.new_session().expect("the mock has memory");
        let options = GenerateOptions { max_tokens: None, ..greedy(0) };
        let (tokens, finish) =
            generate(&mut session, &prompt(20), options, &CancelToken::new(), on);
        assert_eq!((tokens.len(), session.position()), (12, 32));
        assert_eq!(finish.expect("runs"), Some(FinishReason::Length));
    }
}

#[test]
fn errors_of_the_receiver_and_of_the_device_come_back() {
    for mock in devices() {
        let cancel = CancelToken::new();
        let fail = |n| if n == 4 { Err(EngineError::ScoreNotPrepared) } else { on(n) };
        let (tokens, result) = generate(&mut session(&mock), &prompt(9), greedy(12), &cancel, fail);
        assert_eq!(tokens.len(), 4);
        assert!(matches!(result, Err(EngineError::ScoreNotPrepared)), "{result:?}");

        let lost = Mock { lost_at: Some(13), ..mock.clone() };
        let mut session = session(&lost);
        let (_, result) = generate(&mut session, &prompt(9), greedy(12), &cancel, on);
        assert!(matches!(result, Err(EngineError::Device(_))), "{result:?}");
        let error = session.generate(&[1], greedy(1), &cancel).map(drop).expect_err("lost");
        assert!(matches!(error, EngineError::SessionLost), "{error:?}");
    }
}

#[test]
fn logits_that_are_no_numbers_are_an_error_that_names_the_position() {
    let mock = Mock { nan_at: Some(11), ahead: Some(2), ..Mock::default() };
    let cancel = CancelToken::new();
    let (tokens, result) = generate(&mut session(&mock), &prompt(9), greedy(12), &cancel, on);
    assert_eq!(tokens.len(), 3);
    assert!(matches!(result, Err(EngineError::NoToken { position: 11 })), "{result:?}");
}

#[test]
fn what_needs_the_logits_does_not_run_ahead() {
    let mock = Mock { ahead: Some(3), ..Mock::default() };
    let with = |options: GenerateOptions| {
        mock.take_runs();
        let (tokens, _) =
            generate(&mut session(&mock), &prompt(9), options, &CancelToken::new(), |n| {
                Ok(if n == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
        assert_eq!(tokens.len(), 2);
        mock.take_runs().len()
    };
    let biased = SamplingParams { logit_bias: vec![(1, 1.0)], ..SamplingParams::greedy() };
    let penalised = SamplingParams { presence_penalty: 1.0, ..SamplingParams::greedy() };
    let sampled = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    for sampling in [biased, penalised, sampled] {
        assert_eq!(with(GenerateOptions { sampling, ..greedy(12) }), 2);
    }
    assert_eq!(with(GenerateOptions { logprobs: Some(1), ..greedy(12) }), 2);
    assert_eq!(with(greedy(12)), 2 + 3, "three tokens more were fed");
}
