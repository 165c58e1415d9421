//! The sampler against plain reference implementations that sort everything.

use proptest::prelude::*;

use super::candidates::{exp, largest, select_nucleus};
use super::*;

fn sampler(params: SamplingParams, token_limit: usize) -> Sampler {
    Sampler::new(params, token_limit).expect("valid parameters")
}

/// Ids by rank.
fn ranked(logits: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    ids
}

/// What may be sampled, with probabilities, by rank: the order of the module documentation, word by
/// word, in double precision.
fn reference(logits: &[f32], params: &SamplingParams) -> Vec<(usize, f64)> {
    let probabilities = |ids: &[usize]| {
        let max = f64::from(logits[ids[0]]);
        let weigh =
            |&i: &usize| ((f64::from(logits[i]) - max) / f64::from(params.temperature)).exp();
        let weights: Vec<f64> = ids.iter().map(weigh).collect();
        let total: f64 = weights.iter().sum();
        ids.iter().copied().zip(weights.into_iter().map(|w| w / total)).collect::<Vec<_>>()
    };
    let mut ids = ranked(logits);
    if params.top_k > 0 {
        ids.truncate(params.top_k);
    }
    let mut cumulative = 0.0;
    let mut kept = Vec::new();
    for (id, probability) in probabilities(&ids) {
        kept.push(id);
        cumulative += probability;
        if cumulative >= f64::from(params.top_p) {
            break;
        }
    }
    let best = probabilities(&kept)[0].1;
    let enough = |&(_, p): &(usize, f64)| p >= f64::from(params.min_p) * best;
    let ids: Vec<usize> = probabilities(&kept).into_iter().filter(enough).map(|(i, _)| i).collect();
    probabilities(&ids)
}

/// How often each token is drawn in `n` draws.
fn draws(logits: &[f32], params: &SamplingParams, n: usize) -> Vec<usize> {
    let mut sampler = sampler(params.clone(), logits.len());
    let mut logits = logits.to_vec();
    let mut counts = vec![0; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(&mut logits) as usize] += 1;
    }
    counts
}

/// Logits that fall off smoothly but in scrambled order, so that ranks are not ids.
fn scrambled(n: usize, spread: f32) -> Vec<f32> {
    (0..n).map(|i| -spread * ((i * 7919) % n) as f32 / n as f32).collect()
}

#[test]
fn temperature_zero_takes_the_largest_logit_and_the_lower_id_among_equals() {
    let mut greedy = sampler(SamplingParams::greedy(), 6);
    assert_eq!(greedy.sample(&mut [0.0, 3.0, -1.0, 3.0, 2.0, 3.0]), 1);
    assert_eq!(greedy.sample(&mut [-0.0, 0.0, -1.0, 0.0, -2.0, -3.0]), 0);
    assert_eq!(greedy.sample(&mut [-5.0, -5.0, -5.0, -5.0, -5.0, -4.0]), 5);
}

#[test]
fn rows_above_the_token_limit_are_never_sampled() {
    let mut logits = vec![0.0f32; 100];
    logits[60..].fill(50.0);
    for params in [
        SamplingParams::greedy(),
        SamplingParams::default(),
        SamplingParams { top_k: 20, ..Default::default() },
        SamplingParams { top_p: 0.5, ..Default::default() },
        SamplingParams { min_p: 0.5, seed: Some(3), ..Default::default() },
    ] {
        let mut sampler = sampler(params.clone(), 60);
        for _ in 0..50 {
            assert!(sampler.sample(&mut logits) < 60, "{params:?}");
        }
    }
}

#[test]
fn a_bias_cannot_reach_rows_above_the_token_limit() {
    let params = SamplingParams { logit_bias: vec![(60, 100.0)], ..SamplingParams::greedy() };
    let error = Sampler::new(params, 60).expect_err("row 60 is padding");
    assert_eq!(error, SamplingError::BiasToken { id: 60, token_limit: 60 });
}

#[test]
fn draws_follow_the_distribution() {
    let logits = scrambled(200, 12.0);
    for params in [
        SamplingParams { seed: Some(1), ..Default::default() },
        SamplingParams { seed: Some(2), temperature: 1.7, min_p: 0.02, ..Default::default() },
        SamplingParams { seed: Some(3), top_k: 20, ..Default::default() },
        SamplingParams { seed: Some(4), top_p: 0.8, temperature: 0.6, ..Default::default() },
        SamplingParams { seed: Some(5), top_k: 20, top_p: 0.9, min_p: 0.1, ..Default::default() },
    ] {
        let n = 40_000;
        let counts = draws(&logits, &params, n);
        let expected = reference(&logits, &params);
        // Pearson's statistic over the tokens expected at least ten times; its mean is their number
        // and its deviation the square root of twice that.
        let mut statistic = 0.0;
        let mut degrees = 0.0f64;
        for &(id, p) in expected.iter().filter(|(_, p)| p * n as f64 >= 10.0) {
            statistic += (counts[id] as f64 - p * n as f64).powi(2) / (p * n as f64);
            degrees += 1.0;
        }
        assert!(statistic < degrees + 6.0 * (2.0 * degrees).sqrt(), "{params:?}: {statistic}");
        let kept: usize = expected.iter().map(|&(id, _)| counts[id]).sum();
        assert_eq!(kept, n, "{params:?}: drawn from outside the kept set");
    }
}

#[test]
fn draws_among_what_is_allowed_follow_the_distribution_of_a_vocabulary_without_the_rest() {
    let logits = scrambled(200, 12.0);
    // The likeliest are among those that are not allowed.
    let allowed: Vec<usize> = (0..200).filter(|&i| logits[i] < -1.0 && i % 3 != 0).collect();
    let few: Vec<f32> = allowed.iter().map(|&i| logits[i]).collect();
    let masked: Vec<f32> = (0..200)
        .map(|i| if allowed.contains(&i) { logits[i] } else { f32::NEG_INFINITY })
        .collect();
    for params in [
        SamplingParams { seed: Some(1), ..Default::default() },
        SamplingParams { seed: Some(2), temperature: 1.7, min_p: 0.02, ..Default::default() },
        SamplingParams { seed: Some(3), top_k: 20, ..Default::default() },
        SamplingParams { seed: Some(4), top_p: 0.8, temperature: 0.6, ..Default::default() },
        SamplingParams { seed: Some(5), top_k: 20, top_p: 0.9, min_p: 0.1, ..Default::default() },
        SamplingParams { seed: Some(6), top_k: 190, ..Default::default() },
    ] {
        let n = 40_000;
        let counts = draws(&masked, &params, n);
        let mut statistic = 0.0;
        let mut degrees = 0.0f64;
        let mut kept = 0;
        for (index, p) in reference(&few, &params) {
            let count = counts[allowed[index]];
            kept += count;
            if p * n as f64 >= 10.0 {
                statistic += (count as f64 - p * n as f64).powi(2) / (p * n as f64);
                degrees += 1.0;
            }
        }
        assert!(statistic < degrees + 6.0 * (2.0 * degrees).sqrt(), "{params:?}: {statistic}");
        assert_eq!(kept, n, "{params:?}: drawn from outside what is allowed");
    }
}

#[test]
fn neither_penalty_nor_bias_brings_back_what_is_not_allowed() {
    let params = SamplingParams {
        repetition_penalty: 10.0,
        presence_penalty: -2.0,
        frequency_penalty: -2.0,
        logit_bias: vec![(0, 100.0), (3, -100.0)],
        ..SamplingParams::greedy()
    };
    let mut sampler = sampler(params, 4);
    sampler.see(&[0, 1, 2]);
    let mut logits = [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::MIN];
    for _ in 0..3 {
        assert_eq!(sampler.sample(&mut logits), 3);
    }
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_another_seed_others() {
    let logits = scrambled(500, 3.0);
    let sequence = |seed| {
        let mut sampler = sampler(SamplingParams { seed, ..Default::default() }, 500);
        let mut logits = logits.clone();
        (0..32).map(|_| sampler.sample(&mut logits)).collect::<Vec<_>>()
    };
    assert_eq!(sequence(Some(7)), sequence(Some(7)));
    assert_ne!(sequence(Some(7)), sequence(Some(8)));
    assert_ne!(sequence(None), sequence(None));
}

#[test]
fn a_seed_gives_these_tokens_on_every_machine() {
    let mut logits = scrambled(1000, 9.0);
    let mut first = |top_k| {
        let params = SamplingParams { seed: Some(42), top_k, ..Default::default() };
        let mut sampler = sampler(params, 1000);
        (0..8).map(|_| sampler.sample(&mut logits)).collect::<Vec<_>>()
    };
    // Computed from the documented order by an independent implementation.
    assert_eq!(first(0), [344, 950, 479, 60, 678, 60, 185, 728]);
    assert_eq!(first(20), [74, 901, 111, 679, 827, 679, 37, 506]);
}

#[test]
fn the_repetition_penalty_covers_prompt_and_answer_once_per_token() {
    let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() };
    let mut sampler = sampler(params, 4);
    sampler.see(&[0, 0, 0]);
    // 0: 8 / 2 = 4 against 5, 1 and -1.
    assert_eq!(sampler.sample(&mut [8.0, 5.0, 1.0, -1.0]), 1);
    // 1 has now been generated: 4, 2.5.
    assert_eq!(sampler.sample(&mut [8.0, 5.0, 3.0, -1.0]), 0);
    // Negative logits sink: 0 from -1 to -2.
    assert_eq!(sampler.sample(&mut [-1.0, -1.0, -1.5, -9.0]), 2);
}

#[test]
fn presence_and_frequency_count_generated_tokens_only() {
    let params = SamplingParams {
        presence_penalty: 1.0,
        frequency_penalty: 0.5,
        ..SamplingParams::greedy()
    };
    let mut sampler = sampler(params, 3);
    sampler.see(&[0, 0, 0]);
    let mut logits = [3.0, 1.2, 0.0];
    // 0 costs 1.5 after its first time, 2.0 after its second.
    let tokens: Vec<u32> = (0..4).map(|_| sampler.sample(&mut logits)).collect();
    assert_eq!(tokens, [0, 0, 1, 0]);
}

#[test]
fn sampling_leaves_the_logits_as_they_were() {
    let params = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.7,
        frequency_penalty: 0.2,
        logit_bias: vec![(2, 5.0), (3, -5.0)],
        ..Default::default()
    };
    let mut sampler = sampler(params, 50);
    sampler.see(&[1, 2, 3]);
    let before = scrambled(64, 5.0);
    let mut logits = before.clone();
    for _ in 0..20 {
        sampler.sample(&mut logits);
        assert_eq!(logits, before);
    }
}

#[test]
fn extreme_finite_logits_and_penalties_still_give_a_token() {
    let logits = [f32::MAX, f32::MIN, 0.0, f32::MAX, f32::MIN_POSITIVE];
    for temperature in [0.0, 1e-6, 1e-4, 1.0, 5.0] {
        let params = SamplingParams {
            temperature,
            repetition_penalty: f32::MIN_POSITIVE,
            logit_bias: vec![(4, 100.0)],
            ..Default::default()
        };
        let mut sampler = sampler(params, 5);
        sampler.see(&[0, 1, 2, 3, 4]);
        assert!(sampler.sample(&mut logits.clone()) < 5);
    }
}

#[test]
fn each_parameter_is_refused_by_name_outside_its_range() {
    let neutral = SamplingParams::default;
    let cases = [
        ("temperature", SamplingParams { temperature: -0.1, ..neutral() }),
        ("temperature", SamplingParams { temperature: 5.1, ..neutral() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..neutral() }),
        ("top_p", SamplingParams { top_p: 0.0, ..neutral() }),
        ("top_p", SamplingParams { top_p: 1.1, ..neutral() }),
        ("top_p", SamplingParams { top_p: f32::NAN, ..neutral() }),
        ("min_p", SamplingParams { min_p: -0.1, ..neutral() }),
        ("min_p", SamplingParams { min_p: 1.1, ..neutral() }),
        ("presence_penalty", SamplingParams { presence_penalty: 2.1, ..neutral() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: -2.1, ..neutral() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..neutral() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: f32::INFINITY, ..neutral() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(1, 101.0)], ..neutral() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(1, f32::NAN)], ..neutral() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(10, 1.0)], ..neutral() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(1, 1.0), (1, 2.0)], ..neutral() }),
    ];
    for (field, params) in cases {
        let error = params.validate(10).expect_err(field);
        assert!(error.to_string().starts_with(field), "{field}: {error}");
    }
    neutral().validate(10).expect("the neutral parameters are valid");
}

#[test]
fn a_checkpoint_that_does_not_sample_is_greedy() {
    use lily_checkpoint::config::GenerationConfig;
    let config = |do_sample, temperature| {
        let config = GenerationConfig { do_sample, temperature, ..Default::default() };
        SamplingParams::from_generation_config(&config).temperature
    };
    assert_eq!(config(Some(false), Some(0.6)), 0.0);
    assert_eq!(config(None, None), 0.0);
    assert_eq!(config(Some(true), None), 1.0);
    assert_eq!(config(Some(true), Some(0.6)), 0.6);
    assert_eq!(config(None, Some(0.6)), 0.6);
}

#[test]
fn the_exponential_is_right_over_its_whole_range() {
    for i in 0..=870_000 {
        let x = -(i as f32) * 1e-4;
        let (found, expected) = (f64::from(exp(x)), f64::from(x).exp());
        assert!((found - expected).abs() <= 3e-7 * expected, "exp({x}): {found}, {expected}");
    }
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-88.0), 0.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
}

/// Logits with many ties.
fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec(-20.0f32..20.0, 1..400),
        prop::collection::vec((-8i8..8).prop_map(f32::from), 1..400),
        // More than are looked at first, with much and with little weight behind these.
        prop::collection::vec(-1.0f32..1.0, 1000..2000),
        prop::collection::vec(-4.0f32..4.0, 1000..2000),
    ]
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    (0.05f32..3.0, 0usize..50, 0.01f32..=1.0, 0.0f32..0.9, any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, seed)| SamplingParams {
            temperature,
            top_k,
            top_p: if top_p > 0.9 { 1.0 } else { top_p },
            min_p: if min_p < 0.3 { 0.0 } else { min_p },
            seed: Some(seed),
            ..Default::default()
        },
    )
}

proptest! {
    #[test]
    fn the_nucleus_is_the_one_a_full_sort_finds(logits in any_logits(), top_p in 0.01f32..0.99) {
        let weights = ExpSum::new(largest(&logits).logit, 1.0);
        let mut found = Vec::new();
        select_nucleus(&logits, weights, top_p, &mut found);
        let mut found: Vec<usize> = found.iter().map(|c| c.id as usize).collect();
        found.sort_unstable();
        let share = |n: usize| reference(&logits, &SamplingParams::default())[..n]
            .iter()
            .map(|&(_, p)| p)
            .sum::<f64>();
        // Where rounding decides, one more or less is right as well.
        let n = found.len();
        prop_assert!(share(n) >= f64::from(top_p) - 1e-5 && share(n - 1) <= f64::from(top_p) + 1e-5);
        let mut expected = ranked(&logits)[..n].to_vec();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn the_largest_are_those_a_full_sort_finds(logits in any_logits(), k in 1usize..500) {
        let mut found = Vec::new();
        select_top(&logits, k, &mut found);
        let found: Vec<usize> = found.iter().map(|c| c.id as usize).collect();
        let mut expected = ranked(&logits);
        expected.truncate(k);
        prop_assert_eq!(largest(&logits).id as usize, expected[0]);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn only_tokens_that_the_reference_keeps_are_drawn(
        logits in any_logits(),
        params in any_params(),
    ) {
        // At the very border single and double precision may disagree: what a slightly wider
        // nucleus keeps is allowed.
        let wider = SamplingParams {
            top_p: (params.top_p + 1e-4).min(1.0),
            min_p: (params.min_p - 1e-4).max(0.0),
            ..params.clone()
        };
        let allowed = reference(&logits, &wider);
        for (id, count) in draws(&logits, &params, 50).into_iter().enumerate() {
            let kept = allowed.iter().any(|&(a, _)| a == id);
            prop_assert!(count == 0 || kept, "{} drawn", id);
        }
    }

    #[test]
    fn penalties_and_bias_equal_the_reference(
        logits in prop::collection::vec(-20.0f32..20.0, 40),
        prompt in prop::collection::vec(0u32..48, 0..20),
        generated in prop::collection::vec(0u32..40, 0..20),
        repetition in 0.5f32..2.0,
        presence in -2.0f32..2.0,
        frequency in -2.0f32..2.0,
        bias in prop::collection::btree_map(0u32..40, -100.0f32..100.0, 0..5),
    ) {
        let params = SamplingParams {
            repetition_penalty: repetition,
            presence_penalty: presence,
            frequency_penalty: frequency,
            logit_bias: bias.clone().into_iter().collect(),
            ..Default::default()
        };
        let mut adjustments = super::adjust::Adjustments::new(&params, 40);
        adjustments.see(&prompt);
        generated.iter().for_each(|&id| adjustments.generated(id));
        let mut found = logits.clone();
        adjustments.apply(&mut found);
        for (id, &raw) in logits.iter().enumerate() {
            let is_it = |&&t: &&u32| t as usize == id;
            let mut expected = raw;
            let count = generated.iter().filter(is_it).count();
            if count > 0 || prompt.iter().any(|t| is_it(&t)) {
                expected = if expected < 0.0 { expected * repetition } else { expected / repetition };
            }
            if count > 0 {
                expected -= presence + frequency * count as f32;
            }
            expected += bias.get(&(id as u32)).copied().unwrap_or(0.0);
            prop_assert_eq!(found[id], expected);
        }
        adjustments.revert(&mut found);
        prop_assert_eq!(found, logits);
    }
}
