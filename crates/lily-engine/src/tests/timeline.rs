//! Sessions: what runs, in which chunks, and where the timeline stands afterwards.

use std::sync::{Arc, Mutex};

use lily_plan::plan::Phase;

use super::mock::{Mock, Run, VOCAB_SIZE};
use crate::{
    CancelToken, Engine, EngineError, EngineOptions, FinishReason, GenerateOptions, Generation,
    SamplingParams, Session,
};

fn load(mock: &Mock, options: EngineOptions) -> Engine {
    mock.engine(options).expect("the mock loads")
}

fn session(mock: &Mock, options: EngineOptions) -> Session {
    load(mock, options).new_session().expect("the mock has memory")
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

fn collect(generation: &mut Generation<'_>) -> Vec<u32> {
    std::iter::from_fn(|| generation.next_token().expect("the mock runs")).map(|t| t.id).collect()
}

fn generate(session: &mut Session, prompt: &[u32], options: GenerateOptions) -> Vec<u32> {
    let cancel = CancelToken::new();
    collect(&mut session.generate(prompt, options, &cancel).expect("a valid request"))
}

/// What a session of its own gives.
fn fresh(prompt: &[u32], n: usize) -> Vec<u32> {
    generate(&mut session(&Mock::default(), EngineOptions::default()), prompt, greedy(n))
}

#[test]
fn chunks_of_any_size_give_the_same_tokens() {
    let prompt = prompt(100);
    let expected = fresh(&prompt, 16);
    assert_eq!(expected.len(), 16);
    for prefill_chunk in [1, 7, 64, 100, 2048] {
        let options = EngineOptions { prefill_chunk, ..Default::default() };
        let mut session = session(&Mock::default(), options);
        assert_eq!(generate(&mut session, &prompt, greedy(16)), expected, "{prefill_chunk}");
    }
}

#[test]
fn a_short_chunk_runs_in_the_plan_for_few_rows() {
    let rows = |prefill_chunk, length| {
        let mock = Mock::default();
        let options = EngineOptions { prefill_chunk, context: Some(4000), ..Default::default() };
        generate(&mut session(&mock, options), &prompt(length), greedy(1));
        mock.rows.lock().unwrap().clone()
    };
    assert_eq!(rows(2048, 2048 + 512), [2048, 512]);
    assert_eq!(rows(2048, 513), [2048]);
    assert_eq!(rows(2048, 17), [512]);
    assert_eq!(rows(512, 17), [512]);
    assert_eq!(rows(64, 65), [64, 1]);
}

#[test]
fn the_prompt_runs_in_chunks_and_each_token_alone() {
    let mock = Mock::default();
    let mut session = session(&mock, EngineOptions { prefill_chunk: 8, ..Default::default() });
    generate(&mut session, &prompt(20), greedy(3));
    let run = |phase, position, n_tokens| Run { phase, position, n_tokens };
    // The last token given has not run: nothing asked for what follows it.
    let expected = [
        run(Phase::Prefill, 0, 8),
        run(Phase::Prefill, 8, 8),
        run(Phase::Prefill, 16, 4),
        run(Phase::Decode, 20, 1),
        run(Phase::Decode, 21, 1),
    ];
    assert_eq!(mock.take_runs(), expected);
    assert_eq!(session.position(), 23);
}

#[test]
fn nothing_runs_before_the_first_token_is_asked_for() {
    let mock = Mock::default();
    let mut session = session(&mock, EngineOptions::default());
    let generation = session.generate(&prompt(5), greedy(1), &CancelToken::new()).expect("valid");
    drop(generation);
    assert_eq!(mock.take_runs(), []);
    assert_eq!(session.position(), 0);
}

#[test]
fn a_stop_token_ends_the_generation_and_is_not_given_out() {
    let tokens = fresh(&prompt(9), 8);
    let stop = tokens[5];
    assert!(!tokens[..5].contains(&stop), "the mock repeats itself");
    let mut session = session(&Mock::default(), EngineOptions::default());
    let options = GenerateOptions { stop_tokens: vec![1, stop], ..greedy(8) };
    let cancel = CancelToken::new();
    let mut generation = session.generate(&prompt(9), options, &cancel).expect("valid");
    assert_eq!(collect(&mut generation), tokens[..5]);
    assert_eq!(generation.finish_reason(), Some(FinishReason::Stop));
    assert_eq!(generation.n_generated(), 5);
    drop(generation);
    assert_eq!(session.position(), 9 + 5);
}

#[test]
fn the_token_limit_of_the_request_ends_the_generation() {
    let mut session = session(&Mock::default(), EngineOptions::default());
    let cancel = CancelToken::new();
    let mut generation = session.generate(&prompt(9), greedy(2), &cancel).expect("valid");
    assert!(generation.next_token().expect("runs").is_some());
    assert_eq!(generation.finish_reason(), None);
    assert!(generation.next_token().expect("runs").is_some());
    // Known with the last token already.
    assert_eq!(generation.finish_reason(), Some(FinishReason::Length));
    assert_eq!(generation.next_token().expect("runs"), None);
}

#[test]
fn zero_tokens_only_run_the_prompt() {
    let mut session = session(&Mock::default(), EngineOptions::default());
    assert!(generate(&mut session, &prompt(9), greedy(0)).is_empty());
    assert_eq!(session.position(), 9);
    let rest = generate(&mut session, &[5], greedy(4));
    assert_eq!(rest, fresh(&[prompt(9), vec![5]].concat(), 4));
}

#[test]
fn the_end_of_the_context_ends_the_generation() {
    for (n_prompt, n_tokens) in [(1, 31), (20, 12), (31, 1), (32, 0)] {
        let options = EngineOptions { context: Some(32), ..Default::default() };
        let mut session = session(&Mock::default(), options);
        let cancel = CancelToken::new();
        let options = GenerateOptions { max_tokens: None, ..greedy(0) };
        let mut generation = session.generate(&prompt(n_prompt), options, &cancel).expect("fits");
        assert_eq!(collect(&mut generation).len(), n_tokens);
        assert_eq!(generation.finish_reason(), Some(FinishReason::Length));
        drop(generation);
        assert_eq!(session.position(), 32);
    }
}

#[test]
fn prompts_that_cannot_run_are_refused_with_their_numbers() {
    let options = EngineOptions { context: Some(32), ..Default::default() };
    let mut session = session(&Mock::default(), options);
    let mut refused = |prompt: &[u32]| {
        let result = session.generate(prompt, greedy(1), &CancelToken::new());
        result.map(drop).expect_err("the prompt is invalid").to_string()
    };
    assert_eq!(refused(&[]), "the prompt is empty");
    let words = "the prompt has 33 tokens; with an answer it does not fit into the context of 32";
    assert_eq!(refused(&prompt(33)), words);
    assert_eq!(
        refused(&[1, 300]),
        "token 300 at index 1 of the prompt is outside the vocabulary of 300"
    );
    generate(&mut session, &prompt(10), greedy(2));
    let error = session.generate(&prompt(21), greedy(1), &CancelToken::new()).map(drop);
    let error = error.expect_err("12 + 21 tokens are more than 32");
    assert!(matches!(error, EngineError::PromptTooLong { tokens: 33, context: 32 }), "{error:?}");
}

#[test]
fn a_timeline_goes_on_where_it_ended() {
    let mut session = session(&Mock::default(), EngineOptions::default());
    let first = generate(&mut session, &prompt(10), greedy(4));
    let second = generate(&mut session, &[7, 8], greedy(4));
    let timeline = [prompt(10), first, vec![7, 8]].concat();
    assert_eq!(second, fresh(&timeline, 4));
    assert_eq!(session.tokens(), [timeline, second].concat());
}

#[test]
fn an_empty_prompt_goes_on_from_the_last_token() {
    let mut session = session(&Mock::default(), EngineOptions::default());
    let mut tokens = generate(&mut session, &prompt(10), greedy(4));
    tokens.extend(generate(&mut session, &[], greedy(4)));
    assert_eq!(tokens, fresh(&prompt(10), 8));
}

#[test]
fn a_cancelled_prefill_leaves_a_true_position_and_can_go_on() {
    let mut session =
        session(&Mock::default(), EngineOptions { prefill_chunk: 8, ..Default::default() });
    let cancel = CancelToken::new();
    let (hook_cancel, seen) = (cancel.clone(), Arc::new(Mutex::new(Vec::new())));
    let hook_seen = Arc::clone(&seen);
    let prompt = prompt(30);
    let mut generation = session.generate(&prompt, greedy(4), &cancel).expect("valid").on_prefill(
        move |done, total| {
            hook_seen.lock().expect("unpoisoned").push((done, total));
            if done == 16 {
                hook_cancel.cancel();
            }
        },
    );
    assert_eq!(generation.next_token().expect("runs"), None);
    assert_eq!(generation.finish_reason(), Some(FinishReason::Cancelled));
    drop(generation);
    assert_eq!(*seen.lock().expect("unpoisoned"), [(8, 30), (16, 30)]);
    assert_eq!(session.position(), 16);
    assert_eq!(generate(&mut session, &prompt[16..], greedy(4)), fresh(&prompt, 4));
}

#[test]
fn a_cancelled_answer_can_go_on() {
    let mut session = session(&Mock::default(), EngineOptions::default());
    let cancel = CancelToken::new();
    let mut generation = session.generate(&prompt(10), greedy(8), &cancel).expect("valid");
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(generation.next_token().expect("runs").expect("not the end").id);
    }
    cancel.cancel();
    assert_eq!(generation.next_token().expect("runs"), None);
    assert_eq!(generation.finish_reason(), Some(FinishReason::Cancelled));
    drop(generation);
    assert_eq!(session.position(), 13);
    tokens.extend(generate(&mut session, &[], greedy(5)));
    assert_eq!(tokens, fresh(&prompt(10), 8));
}

#[test]
fn a_session_is_lost_with_its_device() {
    let mock = Mock { lost_at: Some(12), ..Default::default() };
    let mut session = session(&mock, EngineOptions::default());
    let cancel = CancelToken::new();
    let mut generation = session.generate(&prompt(10), greedy(8), &cancel).expect("valid");
    for _ in 0..3 {
        generation.next_token().expect("runs").expect("not the end");
    }
    let error = generation.next_token().expect_err("the device is gone");
    assert!(matches!(error, EngineError::Device(_)), "{error:?}");
    assert_eq!(generation.next_token().expect("has ended"), None);
    assert_eq!(generation.finish_reason(), None);
    drop(generation);
    session.reset();
    let error = session.generate(&[1], greedy(1), &cancel).map(drop).expect_err("lost");
    assert!(matches!(error, EngineError::SessionLost), "{error:?}");
}

#[test]
fn logits_that_are_no_numbers_are_an_error_that_names_the_position() {
    let mock = Mock { nan_at: Some(11), ..Default::default() };
    let mut session = session(&mock, EngineOptions::default());
    let cancel = CancelToken::new();
    let mut generation = session.generate(&prompt(10), greedy(8), &cancel).expect("valid");
    for _ in 0..2 {
        generation.next_token().expect("runs").expect("not the end");
    }
    let error = generation.next_token().expect_err("not a number");
    assert_eq!(error.to_string(), "logit 7 after position 11 is not finite");
}

#[test]
fn padded_rows_are_never_given() {
    let mock = Mock { loud_from: Some(200), ..Default::default() };
    let options = EngineOptions { token_limit: Some(200), ..Default::default() };
    let engine = load(&mock, options);
    for sampling in
        [SamplingParams::greedy(), SamplingParams { seed: Some(1), ..Default::default() }]
    {
        let mut session = engine.new_session().expect("memory");
        let options = GenerateOptions { sampling, ..greedy(50) };
        let tokens = generate(&mut session, &prompt(4), options);
        assert_eq!(tokens.len(), 50);
        assert!(tokens.iter().all(|&id| id < 200), "{tokens:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let engine = load(&Mock::default(), EngineOptions::default());
    let sampled = |seed| {
        let sampling = SamplingParams { seed, top_k: 20, ..Default::default() };
        let mut session = engine.new_session().expect("memory");
        generate(&mut session, &prompt(9), GenerateOptions { sampling, ..greedy(24) })
    };
    assert_eq!(sampled(Some(11)), sampled(Some(11)));
    assert_ne!(sampled(Some(11)), sampled(Some(12)));
    assert_ne!(sampled(None), sampled(None));
}

#[test]
fn sessions_of_one_engine_do_not_disturb_each_other() {
    let engine = load(&Mock::default(), EngineOptions::default());
    let (mut a, mut b) = (engine.new_session().expect("ok"), engine.new_session().expect("ok"));
    let cancel = CancelToken::new();
    let (prompt_a, prompt_b) = (prompt(10), prompt(23));
    let mut generation_a = a.generate(&prompt_a, greedy(6), &cancel).expect("valid");
    let mut generation_b = b.generate(&prompt_b, greedy(6), &cancel).expect("valid");
    let (mut tokens_a, mut tokens_b) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        tokens_a.push(generation_a.next_token().expect("runs").expect("a token").id);
        tokens_b.push(generation_b.next_token().expect("runs").expect("a token").id);
    }
    assert_eq!(tokens_a, fresh(&prompt_a, 6));
    assert_eq!(tokens_b, fresh(&prompt_b, 6));
}

#[test]
fn a_reset_session_is_like_a_new_one() {
    let mut session = session(&Mock::default(), EngineOptions::default());
    generate(&mut session, &prompt(10), greedy(3));
    session.reset();
    assert_eq!(session.position(), 0);
    assert_eq!(generate(&mut session, &prompt(12), greedy(3)), fresh(&prompt(12), 3));
}

#[test]
fn the_repetition_penalty_knows_the_whole_timeline() {
    let sampling = SamplingParams { repetition_penalty: 1e6, ..SamplingParams::greedy() };
    let options = GenerateOptions { sampling, ..greedy(4) };
    let mut session = session(&Mock::default(), EngineOptions::default());
    let all = prompt(VOCAB_SIZE / 2);
    generate(&mut session, &all, greedy(0));
    let half: Vec<u32> = (0..VOCAB_SIZE as u32).filter(|id| !all.contains(id)).collect();
    let tokens = generate(&mut session, &half[..half.len() - 4], options);
    let mut rest = half[half.len() - 4..].to_vec();
    let mut found = tokens.clone();
    found.sort_unstable();
    rest.sort_unstable();
    assert_eq!(found, rest, "only four tokens had not been seen");
}

#[test]
fn greedy_tokens_come_with_their_log_probabilities() {
    let mut session = session(&Mock::default(), EngineOptions::default());
    let options = GenerateOptions { logprobs: Some(3), ..greedy(4) };
    let cancel = CancelToken::new();
    let mut generation = session.generate(&prompt(10), options, &cancel).expect("valid");
    while let Some(token) = generation.next_token().expect("runs") {
        let logprobs = token.logprobs.expect("asked for");
        assert_eq!(logprobs.top.len(), 3);
        assert_eq!(logprobs.top[0], (token.id, logprobs.logprob));
    }
}

#[test]
fn more_than_twenty_log_probabilities_are_refused() {
    let mut session = session(&Mock::default(), EngineOptions::default());
    let options = GenerateOptions { logprobs: Some(21), ..greedy(4) };
    let error = session.generate(&[1], options, &CancelToken::new()).map(drop);
    let error = error.expect_err("21 are too many");
    assert!(matches!(error, EngineError::TooManyLogprobs { found: 21, max: 20 }), "{error:?}");
}

#[test]
fn scoring_hands_out_the_logits_of_the_last_positions() {
    let mock = Mock::default();
    let options = EngineOptions { score: true, prefill_chunk: 16, ..Default::default() };
    let mut session = session(&mock, options);
    let tokens = prompt(200);
    let mut scored = Vec::new();
    let best = |logits: &[f32]| {
        assert_eq!(logits.len(), VOCAB_SIZE);
        (0..VOCAB_SIZE).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("not empty") as u32
    };
    session
        .score(&tokens, 150, |position, logits| scored.push((position, best(logits))))
        .expect("runs");
    assert_eq!(scored.len(), 150);
    for (i, &(position, best)) in scored.iter().enumerate().step_by(37) {
        assert_eq!(position, 50 + i);
        assert_eq!(fresh(&tokens[..=position], 1), [best]);
    }
    let sizes: Vec<usize> = mock.take_runs().iter().map(|run| run.n_tokens).collect();
    assert_eq!(sizes, [16, 16, 16, 2, 64, 64, 22]);
    // The timeline goes on.
    assert_eq!(generate(&mut session, &[3], greedy(2)), fresh(&[tokens, vec![3]].concat(), 2));
}

#[test]
fn scores_that_cannot_be_given_are_refused() {
    let mut plain = session(&Mock::default(), EngineOptions::default());
    let error = plain.score(&[1, 2], 1, |_, _| {}).expect_err("no score plan");
    assert!(matches!(error, EngineError::ScoreNotPrepared), "{error:?}");

    let mut session =
        session(&Mock::default(), EngineOptions { score: true, ..Default::default() });
    let error = session.score(&[1, 2], 3, |_, _| {}).expect_err("three of two");
    assert!(matches!(error, EngineError::ScoreRange { last_n: 3, tokens: 2 }), "{error:?}");
    let error = session.score(&[], 0, |_, _| {}).expect_err("nothing");
    assert!(matches!(error, EngineError::EmptyPrompt), "{error:?}");
}
