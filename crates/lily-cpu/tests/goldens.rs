//! The golden checkpoints: logits against a double-precision reference, greedy tokens, and all the
//! ways of running them that must not matter.

mod golden;

use golden::{Golden, LAST, Model, Setting, goldens, max_difference, rms_difference};
use lily_cpu::Isa;
use lily_model::Fusions;
use lily_plan::buffer::Elem;

/// The tolerance of an engine that keeps activations in `f32`.
const TOLERANCE: f32 = 1e-3;

fn last_rows(golden: &Golden, logits: &[f32]) -> Vec<f32> {
    logits[logits.len() - LAST * golden.vocab()..].to_vec()
}

fn greedy(golden: &Golden, setting: Setting) -> (Vec<u32>, Vec<f32>) {
    let model = Model::load(golden, setting);
    model.greedy(&mut model.timeline(), &golden.short, golden.greedy.len())
}

#[test]
fn logits_agree_with_the_reference_on_every_instruction_set() {
    for golden in goldens().into_iter().flatten() {
        for isa in Isa::available() {
            let model = Model::load(&golden, Setting { isa, ..Setting::default() });
            for (prompt, key) in [(&golden.short, "short"), (&golden.long, "long")] {
                let logits = model.score(&mut model.timeline(), prompt);
                let want = golden.tensor(&format!("{key}.logits.ref"));
                let difference = max_difference(&last_rows(&golden, &logits), &want);
                eprintln!("{} {isa} {key}: largest difference {difference:e}", golden.name);
                assert!(difference <= TOLERANCE, "{} {isa} {key}: {difference}", golden.name);
            }
        }
    }
}

#[test]
fn greedy_tokens_and_their_logits_agree_with_the_reference_on_every_instruction_set() {
    for golden in goldens().into_iter().flatten() {
        for isa in Isa::available() {
            let (tokens, logits) = greedy(&golden, Setting { isa, ..Setting::default() });
            assert_eq!(tokens, golden.greedy, "{} {isa}", golden.name);
            let difference = max_difference(&logits, &golden.tensor("greedy.logits.ref"));
            assert!(difference <= TOLERANCE, "{} {isa}: {difference}", golden.name);
        }
    }
}

#[test]
fn prefill_in_chunks_of_any_size_gives_the_same_tokens() {
    for golden in goldens().into_iter().flatten() {
        let mut logits_of_long = Vec::new();
        for chunk in [1, 7, 64, 2048] {
            let model = Model::load(&golden, Setting { chunk, ..Setting::default() });
            let n = golden.greedy.len();
            let (tokens, _) = model.greedy(&mut model.timeline(), &golden.short, n);
            assert_eq!(tokens, golden.greedy, "{} in chunks of {chunk}", golden.name);
            logits_of_long.push(model.prefill(&mut model.timeline(), &golden.long));
        }
        for logits in &logits_of_long {
            let difference = max_difference(logits, &logits_of_long[0]);
            assert!(difference <= 2e-4, "{}: {difference}", golden.name);
        }
    }
}

#[test]
fn a_bf16_cache_stays_within_its_tolerance_and_gives_the_same_tokens() {
    for golden in goldens().into_iter().flatten() {
        let setting = Setting { kv: Elem::Bf16, ..Setting::default() };
        let model = Model::load(&golden, setting);
        for (prompt, key) in [(&golden.short, "short"), (&golden.long, "long")] {
            let logits = model.score(&mut model.timeline(), prompt);
            let want = golden.tensor(&format!("{key}.logits.ref"));
            let rms = rms_difference(&last_rows(&golden, &logits), &want);
            assert!(rms <= 0.2, "{} {key}: {rms}", golden.name);
        }
        assert_eq!(greedy(&golden, setting).0, golden.greedy, "{}", golden.name);
    }
}

/// No fusion, all of them, and all but one.
fn choices_of_fusions() -> Vec<Fusions> {
    let names = Fusions::names();
    let without = |off: &str| {
        let on: Vec<_> = names.into_iter().filter(|&name| name != off).collect();
        on.join(",").parse::<Fusions>().unwrap()
    };
    let mut choices = vec![Fusions::none(), Fusions::all()];
    choices.extend(names.map(without));
    choices
}

#[test]
fn plans_with_other_fusions_give_the_same_tokens() {
    for golden in goldens().into_iter().flatten() {
        let plain = greedy(&golden, Setting::default()).1;
        for fusions in choices_of_fusions() {
            let (tokens, logits) = greedy(&golden, Setting { fusions, ..Setting::default() });
            assert_eq!(tokens, golden.greedy, "{} {fusions}", golden.name);
            let difference = max_difference(&logits, &plain);
            assert!(difference <= 2e-4, "{} {fusions}: {difference}", golden.name);
        }
    }
}

#[test]
fn fused_steps_read_a_bf16_cache_like_their_twins() {
    for golden in goldens().into_iter().flatten() {
        let with =
            |fusions| greedy(&golden, Setting { kv: Elem::Bf16, fusions, ..Setting::default() });
        let (fused, plain) = (with(Fusions::all()), with(Fusions::cpu()));
        assert_eq!(fused.0, plain.0, "{}", golden.name);
        let difference = max_difference(&fused.1, &plain.1);
        assert!(difference <= 2e-4, "{}: {difference}", golden.name);
    }
}

#[test]
fn bf16_activations_stay_within_their_tolerance_and_give_the_same_tokens() {
    for golden in goldens().into_iter().flatten() {
        for fusions in [Fusions::none(), Fusions::all()] {
            let setting = Setting { activations: Elem::Bf16, fusions, ..Setting::default() };
            let model = Model::load(&golden, setting);
            let logits = model.score(&mut model.timeline(), &golden.short);
            let want = golden.tensor("short.logits.ref");
            let rms = rms_difference(&last_rows(&golden, &logits), &want);
            assert!(rms > 0.0 && rms <= 0.2, "{} {fusions}: {rms}", golden.name);
            assert_eq!(greedy(&golden, setting).0, golden.greedy, "{} {fusions}", golden.name);
        }
    }
}

#[test]
fn a_token_slot_chooses_the_same_tokens() {
    for golden in goldens().into_iter().flatten() {
        let setting = Setting { token_slot: true, fusions: Fusions::all(), ..Setting::default() };
        let model = Model::load(&golden, setting);
        let n = golden.greedy.len();
        let (tokens, _) = model.greedy(&mut model.timeline(), &golden.short, n);
        assert_eq!(tokens, golden.greedy, "{}", golden.name);
        let mut timeline = model.timeline();
        model.prefill(&mut timeline, &golden.short);
        let ahead = model.run_ahead(&mut timeline, golden.greedy[0], n - 1);
        assert_eq!(ahead, golden.greedy[1..], "{}", golden.name);
    }
}

#[test]
fn neither_a_second_run_nor_the_number_of_threads_changes_a_bit() {
    for golden in goldens().into_iter().flatten() {
        let runs: Vec<_> = [1, 1, 2, 5]
            .into_iter()
            .map(|threads| {
                let model = Model::load(&golden, Setting { threads, ..Setting::default() });
                let scored = model.score(&mut model.timeline(), &golden.long);
                let (_, greedy) = model.greedy(&mut model.timeline(), &golden.short, 8);
                (scored, greedy)
            })
            .collect();
        for run in &runs {
            assert!(*run == runs[0], "{}", golden.name);
        }
    }
}

#[test]
fn interleaved_sequences_do_not_disturb_each_other() {
    for golden in goldens().into_iter().flatten() {
        let model = Model::load(&golden, Setting { chunk: 16, ..Setting::default() });
        let alone = |prompt: &[u32]| model.greedy(&mut model.timeline(), prompt, 6);
        let (short, long) = (alone(&golden.short), alone(&golden.long));
        let (mut a, mut b) = (model.timeline(), model.timeline());
        let mut a_logits = model.prefill(&mut a, &golden.short);
        let mut b_logits = model.prefill(&mut b, &golden.long);
        let (mut a_all, mut b_all) = (a_logits.clone(), b_logits.clone());
        for step in 0..5 {
            a_logits = model.decode(&mut a, short.0[step]);
            b_logits = model.decode(&mut b, long.0[step]);
            a_all.extend_from_slice(&a_logits);
            b_all.extend_from_slice(&b_logits);
        }
        assert!(a_all == short.1 && b_all == long.1, "{}", golden.name);
    }
}

#[test]
fn a_sequence_that_was_reset_is_like_a_new_one() {
    for golden in goldens().into_iter().flatten() {
        let model = Model::load(&golden, Setting::default());
        let fresh = model.greedy(&mut model.timeline(), &golden.short, 8);
        let mut timeline = model.timeline();
        model.greedy(&mut timeline, &golden.long, 8);
        timeline.sequence.reset();
        timeline.position = 0;
        assert!(model.greedy(&mut timeline, &golden.short, 8) == fresh, "{}", golden.name);
    }
}

#[test]
fn a_sequence_of_another_model_is_refused() {
    for golden in goldens().into_iter().flatten().take(1) {
        let (model, other) = (
            Model::load(&golden, Setting::default()),
            Model::load(&golden, Setting { kv: Elem::Bf16, ..Setting::default() }),
        );
        let error = model.try_decode(&mut other.timeline(), 1).unwrap_err();
        assert!(error.to_string().contains("not made for"), "{error}");
    }
}
