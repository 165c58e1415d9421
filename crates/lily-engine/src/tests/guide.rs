//! Generations that a guide restricts.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::mock::{Mock, VOCAB_SIZE};
use crate::{
    Allowed, CancelToken, EngineError, EngineOptions, FinishReason, GenerateOptions, Guide,
    GuideError, SamplingParams, Session, TokenMask,
};

/// Answers by a function of what was chosen so far.
struct Scripted<F> {
    chosen: Arc<Mutex<Vec<u32>>>,
    answer: F,
}

impl<F: FnMut(&[u32]) -> Result<Allowed, GuideError> + Send> Guide for Scripted<F> {
    fn allowed(&mut self) -> Result<Allowed, GuideError> {
        (self.answer)(&self.chosen.lock().unwrap())
    }
    fn chosen(&mut self, token: u32) -> Result<(), GuideError> {
        self.chosen.lock().unwrap().push(token);
        Ok(())
    }
}

fn scripted(
    answer: impl FnMut(&[u32]) -> Result<Allowed, GuideError> + Send + 'static,
) -> Box<dyn Guide> {
    Box::new(Scripted { chosen: Arc::default(), answer })
}

fn session(mock: &Mock) -> Session {
    let engine = mock.engine(EngineOptions::default()).expect("the mock loads");
    engine.new_session().expect("the mock has memory")
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max_tokens),
        stop_tokens: vec![298],
        logprobs: None,
        prompt_logprobs: false,
    }
}

const PROMPT: [u32; 4] = [5, 80, 3, 7];

fn run(
    session: &mut Session,
    options: GenerateOptions,
    guide: Option<Box<dyn Guide>>,
) -> (Vec<u32>, Result<Option<FinishReason>, EngineError>) {
    let mut tokens = Vec::new();
    let cancel = CancelToken::new();
    let mut generation = session.generate(&PROMPT, options, &cancel).expect("a valid request");
    if let Some(guide) = guide {
        generation = generation.guided_by(guide);
    }
    let result = generation.for_each(|token| {
        tokens.push(token.id);
        Ok(ControlFlow::Continue(()))
    });
    let finish = generation.finish_reason();
    (tokens, result.map(|()| finish))
}

fn mask(ids: impl IntoIterator<Item = u32>) -> Allowed {
    let mut mask = TokenMask::from_words(Vec::new());
    ids.into_iter().for_each(|id| mask.insert(id));
    Allowed::Tokens(Arc::new(mask))
}

#[test]
fn a_mask_holds_what_was_put_in_whatever_its_length() {
    for len in [0, 1, 31, 32, 33, 300] {
        let mut mask = TokenMask::all(len);
        assert!((0..len as u32).all(|id| mask.contains(id)), "{len}");
        assert!(!mask.contains(len as u32), "{len}");
        mask.insert(400);
        mask.remove(0);
        mask.remove(4000);
        assert!(mask.contains(400) && !mask.contains(0) && !mask.contains(399), "{len}");
    }
    let mut logits = vec![0.0; 70];
    assert!(TokenMask::from_words(vec![1 << 3, u32::MAX]).apply(&mut logits));
    let left = |logits: &[f32]| (0..logits.len()).filter(|&i| logits[i] == 0.0).collect::<Vec<_>>();
    assert_eq!(left(&logits), [3].into_iter().chain(32..64).collect::<Vec<_>>());
    // Only what lies behind the logits is in the set.
    assert!(!TokenMask::from_words(vec![0, 0, 1 << 6]).apply(&mut logits));
    assert!(left(&logits).is_empty());
}

#[test]
fn without_restriction_the_tokens_are_those_of_no_guide() {
    for ahead in [None, Some(3)] {
        let mock = Mock { ahead, ..Mock::default() };
        let (expected, _) = run(&mut session(&mock), greedy(12), None);
        let all = Arc::new(TokenMask::all(VOCAB_SIZE));
        for allowed in [Allowed::Any, Allowed::Unguided, Allowed::Tokens(all)] {
            let guide = scripted(move |_| Ok(allowed.clone()));
            let (tokens, finish) = run(&mut session(&mock), greedy(12), Some(guide));
            assert_eq!(tokens, expected);
            assert_eq!(finish.expect("runs"), Some(FinishReason::Length));
        }
    }
}

#[test]
fn only_tokens_of_the_mask_are_chosen_and_the_best_of_them() {
    let mut session = session(&Mock::default());
    let guide = scripted(|chosen| Ok(mask([10 + chosen.len() as u32, 200])));
    let (tokens, _) = run(&mut session, greedy(12), Some(guide));
    assert!(tokens.iter().zip(10..).all(|(&id, n)| id == n || id == 200), "{tokens:?}");
    assert!(tokens.contains(&200) && tokens.iter().any(|&id| id < 30), "{tokens:?}");
}

#[test]
fn the_guide_hears_of_each_token_once_and_in_order() {
    let chosen = Arc::new(Mutex::new(Vec::new()));
    let guide = Scripted {
        chosen: Arc::clone(&chosen),
        answer: |chosen: &[u32]| {
            Ok(if chosen.len() == 2 { Allowed::Only(77) } else { Allowed::Any })
        },
    };
    let (tokens, _) = run(&mut session(&Mock::default()), greedy(6), Some(Box::new(guide)));
    assert_eq!(tokens[2], 77);
    // Nothing follows the last token, so nothing is asked about it.
    assert_eq!(*chosen.lock().unwrap(), tokens[..5]);
}

#[test]
fn the_end_is_a_stop_even_without_stop_tokens() {
    let guide = scripted(|chosen| Ok(if chosen.len() == 3 { Allowed::End } else { Allowed::Any }));
    let options = GenerateOptions { stop_tokens: Vec::new(), ..greedy(12) };
    let mut session = session(&Mock::default());
    let (tokens, finish) = run(&mut session, options, Some(guide));
    assert_eq!(tokens.len(), 3);
    assert_eq!(finish.expect("runs"), Some(FinishReason::Stop));
    assert_eq!(session.position(), PROMPT.len() + 3);
}

#[test]
fn a_stop_token_that_is_not_allowed_is_not_chosen() {
    // Rows from 298 on are by far the likeliest.
    let mock = Mock { loud_from: Some(298), ..Mock::default() };
    let options = || GenerateOptions { stop_tokens: vec![298, 299], ..greedy(5) };
    let (tokens, finish) = run(&mut session(&mock), options(), None);
    assert_eq!((tokens.len(), finish.expect("runs")), (0, Some(FinishReason::Stop)));
    let guide = scripted(|_| Ok(mask(0..298)));
    let (tokens, finish) = run(&mut session(&mock), options(), Some(guide));
    assert_eq!((tokens.len(), finish.expect("runs")), (5, Some(FinishReason::Length)));
    let guide = scripted(|_| Ok(mask([298])));
    let (tokens, finish) = run(&mut session(&mock), options(), Some(guide));
    assert_eq!((tokens.len(), finish.expect("runs")), (0, Some(FinishReason::Stop)));
}

#[test]
fn a_guided_device_runs_ahead_only_once_the_guide_is_done() {
    let mock = Mock { ahead: Some(3), ..Mock::default() };
    let steps = |answer: fn(&[u32]) -> Result<Allowed, GuideError>| {
        mock.take_runs();
        let mut session = session(&mock);
        let cancel = CancelToken::new();
        let mut generation = session
            .generate(&PROMPT, greedy(12), &cancel)
            .expect("a valid request")
            .guided_by(scripted(answer));
        let mut n = 0;
        let each = |_| -> Result<ControlFlow<()>, EngineError> {
            n += 1;
            Ok(if n == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        generation.for_each(each).expect("runs");
        mock.take_runs().len()
    };
    assert_eq!(steps(|_| Ok(Allowed::Any)), 4);
    let done =
        |chosen: &[u32]| Ok(if chosen.len() < 2 { Allowed::Only(9) } else { Allowed::Unguided });
    assert_eq!(steps(done), 4 + 3, "three tokens more were fed");
}

#[test]
fn a_guide_that_fails_panics_or_allows_nothing_is_an_error_and_no_text() {
    let after = |chosen: &[u32], answer: Result<Allowed, GuideError>| {
        if chosen.len() < 2 { Ok(Allowed::Any) } else { answer }
    };
    let mut session = session(&Mock::default());
    let failed = GuideError { message: "too complex".to_owned() };
    let error = failed.clone();
    let guide = scripted(move |chosen| after(chosen, Err(error.clone())));
    let (tokens, result) = run(&mut session, greedy(9), Some(guide));
    assert_eq!(tokens.len(), 2);
    match result {
        Err(EngineError::Guide { position: 5, source }) => assert_eq!(source, failed),
        other => panic!("{other:?}"),
    }

    session.reset();
    for nothing in [mask([]), mask([VOCAB_SIZE as u32]), Allowed::Only(VOCAB_SIZE as u32)] {
        session.reset();
        let guide = scripted(move |chosen| after(chosen, Ok(nothing.clone())));
        let (tokens, result) = run(&mut session, greedy(9), Some(guide));
        assert_eq!(tokens.len(), 2);
        assert!(matches!(result, Err(EngineError::NothingAllowed { position: 5 })), "{result:?}");
    }

    session.reset();
    let guide = scripted(|chosen| if chosen.len() < 2 { Ok(Allowed::Any) } else { panic!("oh") });
    let (tokens, result) = run(&mut session, greedy(9), Some(guide));
    assert_eq!(tokens.len(), 2);
    assert!(matches!(result, Err(EngineError::GuideLost { position: 5, .. })), "{result:?}");

    // The session is none the worse.
    session.reset();
    assert_eq!(run(&mut session, greedy(9), None).0.len(), 9);
}

#[test]
fn log_probabilities_are_those_of_what_is_allowed() {
    let mut session = session(&Mock::default());
    let options = GenerateOptions { logprobs: Some(5), ..greedy(2) };
    let cancel = CancelToken::new();
    let guide =
        scripted(|chosen| Ok(if chosen.is_empty() { mask([3, 40, 41]) } else { Allowed::Only(8) }));
    let mut generation =
        session.generate(&PROMPT, options, &cancel).expect("a valid request").guided_by(guide);
    let first = generation.next_token().expect("runs").expect("a token").logprobs.expect("asked");
    let mut ids: Vec<u32> = first.top.iter().map(|&(id, _)| id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [3, 40, 41]);
    let total: f32 = first.top.iter().map(|&(_, logprob)| logprob.exp()).sum();
    assert!((total - 1.0).abs() < 1e-5, "{first:?}");
    let second = generation.next_token().expect("runs").expect("a token").logprobs.expect("asked");
    assert_eq!((second.logprob, second.top), (0.0, vec![(8, 0.0)]));
}

#[test]
fn the_next_answer_is_worked_out_while_the_device_runs() {
    /// Waits for the device to have run again after a token.
    struct Waits {
        runs: Arc<Mutex<Vec<super::mock::Run>>>,
        before: usize,
        overlapped: Arc<AtomicBool>,
    }
    impl Guide for Waits {
        fn allowed(&mut self) -> Result<Allowed, GuideError> {
            // Were the guide asked before the device ran, this would never end: it is bounded.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while self.runs.lock().unwrap().len() <= self.before {
                if std::time::Instant::now() > deadline {
                    self.overlapped.store(false, Ordering::Relaxed);
                    return Ok(Allowed::End);
                }
                std::thread::yield_now();
            }
            Ok(Allowed::Any)
        }
        fn chosen(&mut self, _: u32) -> Result<(), GuideError> {
            self.before += 1;
            Ok(())
        }
    }
    let mock = Mock::default();
    let overlapped = Arc::new(AtomicBool::new(true));
    let guide =
        Waits { runs: Arc::clone(&mock.runs), before: 0, overlapped: Arc::clone(&overlapped) };
    let (tokens, _) = run(&mut session(&mock), greedy(5), Some(Box::new(guide)));
    assert!(overlapped.load(Ordering::Relaxed));
    assert_eq!(tokens.len(), 5);
}

#[test]
fn dropping_a_guided_generation_ends_its_thread() {
    struct Ends(Arc<AtomicBool>);
    impl Guide for Ends {
        fn allowed(&mut self) -> Result<Allowed, GuideError> {
            Ok(Allowed::Any)
        }
        fn chosen(&mut self, _: u32) -> Result<(), GuideError> {
            Ok(())
        }
    }
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ended = Arc::new(AtomicBool::new(false));
    let mut session = session(&Mock::default());
    let cancel = CancelToken::new();
    let guide = Box::new(Ends(Arc::clone(&ended)));
    let mut generation =
        session.generate(&PROMPT, greedy(9), &cancel).expect("a valid request").guided_by(guide);
    generation.next_token().expect("runs");
    assert!(!ended.load(Ordering::Relaxed));
    drop(generation);
    assert!(ended.load(Ordering::Relaxed));
}
