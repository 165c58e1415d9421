//! The engine on the CPU device, against the golden checkpoints and the demonstration model.

use std::io::Write as _;
use std::path::PathBuf;

use lily_checkpoint::Checkpoint;
use lily_cpu::{CpuDevice, CpuOptions};
use lily_device::NoProgress;
use lily_engine::{CancelToken, Engine, EngineOptions, GenerateOptions, SamplingParams, Session};

const GOLDENS: [&str; 4] =
    ["moe_hybrid_4bit_gs64", "dense_tied_4bit_gs64", "moe_mixed_bits_gs32", "moe_bf16_hf"];

/// The folder of golden checkpoints; `None`, said aloud, where it is missing and not required.
fn goldens() -> Option<PathBuf> {
    let sibling = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    let shared = std::env::var_os("LILY_SHARED").map_or_else(sibling, PathBuf::from);
    let goldens = shared.join("goldens");
    if goldens.is_dir() {
        return Some(goldens);
    }
    assert!(std::env::var_os("LILY_REQUIRE_SHARED").is_none_or(|v| v != "1"), "shared/ is missing");
    // Written past the capture of passing tests, so that a skip is seen.
    drop(writeln!(std::io::stderr(), "skipped: shared/ is missing"));
    None
}

fn load(checkpoint: &Checkpoint, options: EngineOptions) -> Engine {
    let device = CpuDevice::new(CpuOptions::default());
    Engine::load(checkpoint, &device, options, &NoProgress).expect("a valid checkpoint")
}

fn generate(session: &mut Session, prompt: &[u32], options: GenerateOptions) -> Vec<u32> {
    let cancel = CancelToken::new();
    let mut generation = session.generate(prompt, options, &cancel).expect("a valid request");
    std::iter::from_fn(|| generation.next_token().expect("runs")).map(|token| token.id).collect()
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

fn ids(value: &serde_json::Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("token ids")
}

#[test]
fn the_golden_tokens_come_out_whatever_the_chunk() {
    let Some(goldens) = goldens() else { return };
    for name in GOLDENS {
        let dir = goldens.join(name);
        let json = std::fs::read(dir.join("golden.json")).expect("golden.json");
        let golden: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        let prompt = ids(&golden["prompts"]["short"]);
        let expected = ids(&golden["greedy"]["tokens"]);
        let checkpoint = Checkpoint::open(&dir).expect("a valid checkpoint");
        for prefill_chunk in [1, 7, 64, 2048] {
            let options = EngineOptions { prefill_chunk, context: Some(64), ..Default::default() };
            let mut session = load(&checkpoint, options).new_session().expect("memory");
            let found = generate(&mut session, &prompt, greedy(expected.len()));
            assert_eq!(found, expected, "{name}, chunks of {prefill_chunk}");
        }
    }
}

#[test]
fn scores_are_the_logits_that_generation_sees() {
    let Some(goldens) = goldens() else { return };
    let checkpoint = Checkpoint::open(&goldens.join(GOLDENS[0])).expect("a valid checkpoint");
    let options = EngineOptions { score: true, context: Some(128), ..Default::default() };
    let engine = load(&checkpoint, options);
    let prompt: Vec<u32> = (0..70).map(|i| i * 5 % 300).collect();
    let mut session = engine.new_session().expect("memory");
    let tokens = generate(&mut session, &prompt, greedy(20));
    session.reset();
    let mut best = Vec::new();
    let timeline = [prompt, tokens.clone()].concat();
    session
        .score(&timeline[..timeline.len() - 1], tokens.len(), |position, logits| {
            assert_eq!(position, 69 + best.len());
            let largest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            best.push(largest.expect("not empty") as u32);
        })
        .expect("runs");
    assert_eq!(best, tokens);
}

#[test]
fn the_demonstration_model_ends_its_answer_and_repeats_it_with_the_same_seed() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/checkpoint");
    let checkpoint = Checkpoint::open(dir.as_ref()).expect("a valid checkpoint");
    let engine = load(&checkpoint, EngineOptions { context: Some(512), ..Default::default() });
    assert_eq!(engine.stop_tokens(), [4049, 4047]);
    let defaults = engine.default_sampling();
    assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p), (0.6, 20, 0.95));
    let answer = |seed| {
        let sampling =
            SamplingParams { temperature: 2.0, top_k: 0, top_p: 1.0, seed, ..defaults.clone() };
        let options =
            GenerateOptions { sampling, max_tokens: Some(32), ..engine.default_options() };
        let mut session = engine.new_session().expect("memory");
        generate(&mut session, &[1, 2, 3], options)
    };
    assert_eq!(answer(Some(5)), answer(Some(5)));
    assert_ne!(answer(Some(5)), answer(Some(6)));
}
