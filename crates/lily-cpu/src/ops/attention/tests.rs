use half::bf16;
use lily_plan::op;
use proptest::prelude::*;

use super::super::Active;
use super::super::testing::Bench;
use super::*;
use crate::simd::Isa;

#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    capacity: usize,
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            ((x >> 40) as f32 / (1 << 23) as f32 - 1.0) * 2.0
        })
        .collect()
}

/// What lies in the cache behind the run's positions; it must never show.
const STALE: f32 = f32::NAN;

struct Inputs {
    shape: Shape,
    rows: usize,
    position: usize,
    q: Vec<f32>,
    q_gate: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn inputs(shape: Shape, rows: usize, position: usize) -> Inputs {
    let Shape { n_heads, n_kv_heads, head_dim, capacity } = shape;
    let cache = |seed| {
        // Values that bf16 holds exactly, so that both caches have the same reference.
        let mut values: Vec<f32> = noise(n_kv_heads * capacity * head_dim, seed)
            .iter()
            .map(|x| bf16::from_f32(*x).to_f32())
            .collect();
        for head in values.chunks_exact_mut(capacity * head_dim) {
            head[(position + rows) * head_dim..].fill(STALE);
        }
        values
    };
    Inputs {
        shape,
        rows,
        position,
        q: noise(rows * n_heads * head_dim, 1),
        q_gate: noise(rows * n_heads * 2 * head_dim, 2),
        k: cache(3),
        v: cache(4),
    }
}

/// The definition, in double precision.
fn reference(inputs: &Inputs, gated: bool) -> Vec<f64> {
    let Shape { n_heads, n_kv_heads, head_dim, capacity } = inputs.shape;
    let mut out = Vec::new();
    for row in 0..inputs.rows {
        for head in 0..n_heads {
            let at = row * n_heads + head;
            let q = &inputs.q[at * head_dim..][..head_dim];
            let kv = head / (n_heads / n_kv_heads) * capacity * head_dim;
            let weights: Vec<f64> = (0..=inputs.position + row)
                .map(|key| {
                    let k = &inputs.k[kv + key * head_dim..][..head_dim];
                    let dot: f64 =
                        q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    (dot / (head_dim as f64).sqrt()).exp()
                })
                .collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..head_dim {
                let value: f64 = weights
                    .iter()
                    .enumerate()
                    .map(|(key, w)| w * f64::from(inputs.v[kv + key * head_dim + d]))
                    .sum();
                let gate = f64::from(inputs.q_gate[(2 * at + 1) * head_dim + d]);
                let gate = if gated { 1.0 / (1.0 + (-gate).exp()) } else { 1.0 };
                out.push(value / sum * gate);
            }
        }
    }
    out
}

fn run(inputs: &Inputs, (isa, threads): (Isa, usize), gated: bool, narrow: bool) -> Vec<f32> {
    let Shape { n_heads, n_kv_heads, head_dim, capacity } = inputs.shape;
    let mut bench = Bench::default();
    // One more row than the run has: it must stay untouched.
    let planned = inputs.rows + 1;
    let mut q = inputs.q.clone();
    q.resize(planned * n_heads * head_dim, STALE);
    let cache = |bench: &mut Bench, values: &[f32]| {
        if narrow { bench.bf16s(values) } else { bench.f32s(values) }
    };
    let op = op::Attention {
        control: bench.u32s(&[0, 0]),
        q: bench.f32s(&q),
        k_cache: cache(&mut bench, &inputs.k),
        v_cache: cache(&mut bench, &inputs.v),
        q_gate: gated.then(|| bench.f32s(&inputs.q_gate)),
        out: bench.f32s(&vec![7.0; planned * n_heads * head_dim]),
        rows: planned,
        n_heads,
        n_kv_heads,
        head_dim,
        capacity,
        scale: (head_dim as f32).sqrt().recip(),
    };
    let kernel = Attention::new(op.clone()).unwrap();
    let active = Active { position: inputs.position, rows: inputs.rows };
    bench.run_cut_for(&kernel, isa, active, threads);
    let mut out = bench.get_f32s(&op.out);
    assert!(out.split_off(inputs.q.len()).iter().all(|&x| x == 7.0));
    out
}

fn assert_close(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() < 1e-5, "{i}: {got} instead of {want}");
    }
}

#[test]
fn attention_agrees_with_the_definition_for_every_instruction_set_and_cache() {
    for head_dim in [64, 256] {
        for (n_heads, n_kv_heads) in [(2, 2), (4, 1), (6, 2), (16, 2)] {
            let shape = Shape { n_heads, n_kv_heads, head_dim, capacity: 700 };
            for (rows, position) in [(1, 0), (1, 300), (3, 254), (4, 600), (20, 0), (33, 130)] {
                let inputs = inputs(shape, rows, position);
                let want = reference(&inputs, false);
                for isa in Isa::available() {
                    assert_close(&run(&inputs, (isa, 2), false, false), &want);
                    assert_close(&run(&inputs, (isa, 2), false, true), &want);
                }
                let want = reference(&inputs, true);
                assert_close(&run(&inputs, (Isa::detect(), 2), true, false), &want);
            }
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let shape = Shape { n_heads: 8, n_kv_heads: 2, head_dim: 64, capacity: 1200 };
    for (rows, position) in [(1, 1100), (4, 510), (40, 900)] {
        let inputs = inputs(shape, rows, position);
        let alone = run(&inputs, (Isa::detect(), 1), true, false);
        for threads in [2, 5, 64] {
            assert!(run(&inputs, (Isa::detect(), threads), true, false) == alone);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_shape_and_position_agree_with_the_definition(
        n_kv_heads in 1usize..4,
        group in 1usize..9,
        head_dim in 1usize..40,
        rows in 1usize..30,
        position in 0usize..400,
    ) {
        let n_heads = n_kv_heads * group;
        let shape = Shape { n_heads, n_kv_heads, head_dim, capacity: 440 };
        let inputs = inputs(shape, rows, position);
        let want = reference(&inputs, true);
        assert_close(&run(&inputs, (Isa::detect(), 3), true, false), &want);
    }
}
