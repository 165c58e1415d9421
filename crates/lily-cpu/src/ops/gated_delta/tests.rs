use lily_plan::buffer::WeightId;
use lily_plan::op;
use proptest::prelude::*;

use super::super::Active;
use super::super::testing::Bench;
use super::*;
use crate::simd::Isa;

#[derive(Clone, Copy, Debug)]
struct Shape {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
}

impl Shape {
    fn conv_dim(self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
    fn out_dim(self) -> usize {
        self.value_heads * self.value_dim
    }
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

struct Inputs {
    shape: Shape,
    rows: usize,
    qkv: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    state: Vec<f32>,
}

fn inputs(shape: Shape, rows: usize, decay: f32) -> Inputs {
    let heads = shape.value_heads;
    Inputs {
        shape,
        rows,
        qkv: noise(rows * shape.conv_dim(), 1),
        a: noise(rows * heads, 2).iter().map(|a| a * decay).collect(),
        b: noise(rows * heads, 3).iter().map(|b| b * 3.0).collect(),
        a_log: noise(heads, 4),
        dt_bias: noise(heads, 5),
        state: noise(heads * shape.value_dim * shape.key_dim, 6),
    }
}

/// The definition, in double precision: outputs and final state.
fn reference(inputs: &Inputs) -> (Vec<f64>, Vec<f64>) {
    let Shape { key_heads, value_heads, key_dim, value_dim } = inputs.shape;
    let mut state: Vec<f64> = inputs.state.iter().map(|&s| f64::from(s)).collect();
    let mut out = vec![0.0; inputs.rows * value_heads * value_dim];
    for t in 0..inputs.rows {
        let row = &inputs.qkv[t * inputs.shape.conv_dim()..];
        for h in 0..value_heads {
            let key_head = h / (value_heads / key_heads);
            let unit = |first: usize| -> Vec<f64> {
                let x: Vec<f64> =
                    row[first..first + key_dim].iter().map(|&x| f64::from(x)).collect();
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / norm).collect()
            };
            let q = unit(key_head * key_dim);
            let k = unit((key_heads + key_head) * key_dim);
            let a = f64::from(inputs.a[t * value_heads + h]) + f64::from(inputs.dt_bias[h]);
            let decay = (-f64::from(inputs.a_log[h]).exp() * a.exp().ln_1p()).exp();
            let beta = 1.0 / (1.0 + (-f64::from(inputs.b[t * value_heads + h])).exp());
            for v in 0..value_dim {
                let s = &mut state[(h * value_dim + v) * key_dim..][..key_dim];
                s.iter_mut().for_each(|s| *s *= decay);
                let u: f64 = s.iter().zip(&k).map(|(s, k)| s * k).sum();
                let value = f64::from(row[2 * key_heads * key_dim + h * value_dim + v]);
                let d = beta * (value - u);
                s.iter_mut().zip(&k).for_each(|(s, k)| *s += d * k);
                let read: f64 = s.iter().zip(&q).map(|(s, q)| s * q).sum();
                out[(t * value_heads + h) * value_dim + v] = read / (key_dim as f64).sqrt();
            }
        }
    }
    (out, state)
}

/// Outputs and final state when the rows come in chunks.
fn in_chunks(inputs: &Inputs, chunk: usize, isa: Isa, threads: usize) -> (Vec<f32>, Vec<f32>) {
    let (shape, rows) = (inputs.shape, inputs.rows);
    let heads = shape.value_heads;
    let mut bench = Bench::default();
    let op = op::GatedDelta {
        qkv: bench.f32s(&vec![0.0; chunk * shape.conv_dim()]),
        a: bench.f32s(&vec![0.0; chunk * heads]),
        b: bench.f32s(&vec![0.0; chunk * heads]),
        a_log: WeightId(0),
        dt_bias: WeightId(1),
        state: bench.f32s(&inputs.state),
        out: bench.f32s(&vec![0.0; chunk * shape.out_dim()]),
        rows: chunk,
        key_heads: shape.key_heads,
        value_heads: heads,
        key_dim: shape.key_dim,
        value_dim: shape.value_dim,
    };
    let kernel = GatedDelta {
        op: op.clone(),
        rate: inputs.a_log.iter().map(|a| -a.exp()).collect(),
        dt_bias: inputs.dt_bias.clone().into(),
    };
    let mut out = Vec::new();
    for first in (0..rows).step_by(chunk) {
        let n = chunk.min(rows - first);
        bench.set_f32s(&op.qkv, &inputs.qkv[first * shape.conv_dim()..][..n * shape.conv_dim()]);
        bench.set_f32s(&op.a, &inputs.a[first * heads..][..n * heads]);
        bench.set_f32s(&op.b, &inputs.b[first * heads..][..n * heads]);
        bench.run_cut_for(&kernel, isa, Active { position: first, rows: n }, threads);
        out.extend_from_slice(&bench.get_f32s(&op.out)[..n * shape.out_dim()]);
    }
    (out, bench.get_f32s(&op.state))
}

fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() < tolerance, "{i}: {got} instead of {want}");
    }
}

#[test]
fn chunks_of_any_size_agree_with_the_recurrence_in_double_precision() {
    let shape = Shape { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128 };
    let inputs = inputs(shape, 150, 2.0);
    let (want, want_state) = reference(&inputs);
    for isa in Isa::available() {
        for chunk in [1, 7, 64, 2048] {
            let (got, state) = in_chunks(&inputs, chunk, isa, 3);
            assert_close(&got, &want, 2e-5);
            assert_close(&state, &want_state, 2e-5);
        }
    }
}

#[test]
fn strong_decay_neither_overflows_nor_loses_the_state() {
    let shape = Shape { key_heads: 1, value_heads: 1, key_dim: 128, value_dim: 128 };
    // Log decays of about -100 per token at the extreme.
    let inputs = inputs(shape, 130, 60.0);
    let (want, want_state) = reference(&inputs);
    for chunk in [1, 130] {
        let (got, state) = in_chunks(&inputs, chunk, Isa::detect(), 1);
        assert_close(&got, &want, 2e-5);
        assert_close(&state, &want_state, 2e-5);
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let shape = Shape { key_heads: 1, value_heads: 2, key_dim: 128, value_dim: 128 };
    let inputs = inputs(shape, 40, 1.0);
    for chunk in [1, 5, 40] {
        let alone = in_chunks(&inputs, chunk, Isa::detect(), 1);
        for threads in [2, 5, 64] {
            assert_eq!(in_chunks(&inputs, chunk, Isa::detect(), threads), alone);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_shape_and_any_chunk_agree_with_the_definition(
        key_heads in 1usize..3,
        ratio in 1usize..5,
        key_dim in 1usize..40,
        value_dim in 1usize..40,
        rows in 1usize..90,
        chunk in 1usize..90,
    ) {
        let shape = Shape { key_heads, value_heads: key_heads * ratio, key_dim, value_dim };
        let inputs = inputs(shape, rows, 1.0);
        let (want, want_state) = reference(&inputs);
        let (got, state) = in_chunks(&inputs, chunk, Isa::detect(), 2);
        assert_close(&got, &want, 1e-4);
        assert_close(&state, &want_state, 1e-4);
    }
}
