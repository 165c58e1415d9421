//! Memory estimates.

mod common;

use common::{manifest, tiny_moe};
use lily_model::{BuildOptions, MemoryEstimate, estimate_memory};
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;

fn estimate(context: usize) -> MemoryEstimate {
    let config = tiny_moe();
    let options = BuildOptions { kv: Elem::Bf16, ..BuildOptions::new(Phase::Prefill, 16, context) };
    estimate_memory(&config, &manifest(&config), &options).expect("an estimate")
}

#[test]
fn the_parts_are_those_of_the_configuration() {
    let estimate = estimate(100);
    assert_eq!(estimate.kv_per_token, 2 * 2 * 16 * 2, "K and V, 2 heads of 16, bf16, one layer");
    assert_eq!(estimate.kv(), 100 * 128);
    assert_eq!(estimate.state, 4 * (4 * 128 + 4 * 16 * 16));
    assert_eq!(estimate.weights, manifest(&tiny_moe()).bytes());
    assert!(estimate.scratch > 0);
    assert_eq!(
        estimate.total(),
        estimate.weights + estimate.kv() + estimate.state + estimate.scratch
    );
}

#[test]
fn only_the_kv_cache_grows_with_the_context() {
    let (short, long) = (estimate(10), estimate(1000));
    assert_eq!(short.fixed(), long.fixed());
    assert_eq!(long.total() - short.total(), 990 * 128);
}

#[test]
fn the_longest_context_is_the_one_that_just_fits() {
    let estimate = estimate(1);
    let exactly = estimate.fixed() + 77 * estimate.kv_per_token;
    assert_eq!(estimate.max_context_for(exactly), Some(77));
    assert_eq!(estimate.max_context_for(exactly - 1), Some(76));
    assert_eq!(estimate.max_context_for(estimate.fixed()), None);
    assert_eq!(estimate.max_context_for(0), None);
    assert_eq!(estimate.max_context_for(u64::MAX), Some(1024), "the configuration's limit");
}
