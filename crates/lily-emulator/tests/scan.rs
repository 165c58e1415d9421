//! The scan of Gated DeltaNet by chunks, against the rule token by token in `f64`.

mod support;

use lily_emulator::{
    AlignedBytes, Dispatch, KernelCache, Schedule, Toolchain, host_source_of, run,
};
use lily_kernels::launch::{Kernel, Module};
use lily_kernels::sources;

/// Largest error of a number, in units of the root mean square of all. Two pieces of bf16 leave 2^-16
/// of a product; one leaves 2^-9.
const LIMIT: f64 = 1e-4;

/// What outputs hold where nothing is written.
const UNTOUCHED: f32 = 7.25;

struct Random(u64);

impl Random {
    /// -1 .. 1
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as f32 / (1u64 << 31) as f32 - 1.0
    }
}

/// What the tokens are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tokens {
    Random,
    /// Keys that hardly differ and strengths near 1: every token undoes what those before it wrote.
    Alike,
    /// Decays between e^-0.01 and e^-90, some of them in a row.
    Decaying,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    /// Of the buffers, and active ones.
    rows: (usize, usize),
}

const SMALL: Shape =
    Shape { key_heads: 1, value_heads: 2, key_dim: 32, value_dim: 32, rows: (80, 80) };
const LARGE: Shape =
    Shape { key_heads: 2, value_heads: 2, key_dim: 128, value_dim: 64, rows: (40, 40) };

struct Inputs {
    shape: Shape,
    qkv: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    state: Vec<f32>,
}

impl Inputs {
    fn new(shape: Shape, tokens: Tokens) -> Inputs {
        let Shape { key_heads, value_heads, key_dim, value_dim, rows: (rows, _) } = shape;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let keys = key_heads * key_dim..2 * key_heads * key_dim;
        let width = keys.end + value_heads * value_dim;
        let mut qkv: Vec<f32> = (0..rows * width).map(|_| 3.0 * random.next()).collect();
        let first: Vec<f32> = qkv[keys.clone()].to_vec();
        if tokens == Tokens::Alike {
            for row in qkv.chunks_mut(width) {
                for (k, first) in row[keys.clone()].iter_mut().zip(&first) {
                    *k = first + 0.05 * *k;
                }
            }
        }
        let count = rows * value_heads;
        let gate = |i: usize, x: f32| match (tokens, i / value_heads % 7) {
            (Tokens::Decaying, 1..=3) => 30.0 + 15.0 * x,
            (Tokens::Decaying, _) => -5.0,
            _ => x - 2.0,
        };
        let a = (0..count).map(|i| gate(i, random.next())).collect();
        let strength = if tokens == Tokens::Alike { 6.0 } else { 0.5 };
        let b = (0..count).map(|_| strength + 2.0 * random.next()).collect();
        let mut numbers = |n: usize| (0..n).map(|_| random.next()).collect::<Vec<f32>>();
        let (a_log, dt_bias) = (numbers(value_heads), numbers(value_heads));
        let state = numbers(value_heads * value_dim * key_dim);
        Inputs { shape, qkv, a, b, a_log, dt_bias, state }
    }

    /// Results and state by the rule.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let Shape { key_heads, value_heads, key_dim, value_dim, rows: (_, active) } = self.shape;
        let width = 2 * key_heads * key_dim + value_heads * value_dim;
        let mut state: Vec<f64> = self.state.iter().map(|&x| f64::from(x)).collect();
        let mut out = vec![0.0; active * value_heads * value_dim];
        for t in 0..active {
            let row = &self.qkv[t * width..(t + 1) * width];
            for h in 0..value_heads {
                let of = |at: usize, n: usize| row[at..at + n].iter().map(|&x| f64::from(x));
                let normed = |at: usize| -> Vec<f64> {
                    let squares: f64 = of(at, key_dim).map(|x| x * x).sum();
                    of(at, key_dim).map(|x| x / (squares + 1e-6).sqrt()).collect()
                };
                let key_at = h / (value_heads / key_heads) * key_dim;
                let q = normed(key_at);
                let k = normed(key_heads * key_dim + key_at);
                let gate = |v: &[f32]| f64::from(v[t * value_heads + h]);
                let softplus = (gate(&self.a) + f64::from(self.dt_bias[h])).exp().ln_1p();
                let decay = (-f64::from(self.a_log[h]).exp() * softplus).exp();
                let strength = 1.0 / (1.0 + (-gate(&self.b)).exp());
                let values = of(2 * key_heads * key_dim + h * value_dim, value_dim);
                for (r, v) in values.enumerate() {
                    let at = (h * value_dim + r) * key_dim;
                    let s = &mut state[at..at + key_dim];
                    s.iter_mut().for_each(|s| *s *= decay);
                    let found: f64 = s.iter().zip(&k).map(|(s, k)| s * k).sum();
                    let d = strength * (v - found);
                    s.iter_mut().zip(&k).for_each(|(s, k)| *s += d * k);
                    let y: f64 = s.iter().zip(&q).map(|(s, q)| s * q).sum();
                    out[(t * value_heads + h) * value_dim + r] = y / (key_dim as f64).sqrt();
                }
            }
        }
        (out, state)
    }

    /// Results of all rows and the state, by a kernel.
    fn found(
        &self,
        seed: u64,
        change: impl Fn(String) -> String,
    ) -> Result<(Vec<f32>, Vec<f32>), String> {
        let Shape { key_heads, value_heads, key_dim, value_dim, rows: (rows, active) } = self.shape;
        let args = [key_heads, value_heads, key_dim, value_dim].map(|n| n.to_string()).to_vec();
        let kernel = Kernel { module: Module::GatedDelta, template: "gated_delta_chunks", args };
        let source = change(sources::library(kernel.module, &[&kernel]).unwrap());
        let host = host_source_of(&source).unwrap_or_else(|error| panic!("{error}"));
        let cache = KernelCache::new(Toolchain::find().unwrap(), KernelCache::default_folder());
        let entry = cache.entry(&host, &kernel.host_name()).unwrap_or_else(|e| panic!("{e}"));
        let mut control = AlignedBytes::of_u32(&[0, active as u32]);
        let [mut qkv, mut a, mut b, mut a_log, mut dt_bias, mut state] =
            [&self.qkv, &self.a, &self.b, &self.a_log, &self.dt_bias, &self.state]
                .map(|numbers| AlignedBytes::of_f32(numbers));
        let mut out = AlignedBytes::of_f32(&vec![UNTOUCHED; rows * value_heads * value_dim]);
        let mut buffers = [
            &mut control,
            &mut qkv,
            &mut a,
            &mut b,
            &mut a_log,
            &mut dt_bias,
            &mut state,
            &mut out,
        ];
        let grid = [(value_heads * value_dim / 32) as u32, 1, 1];
        let dispatch = Dispatch { grid, threads: 256 };
        let schedule = Schedule { seed, workers: 1 };
        run(&entry, &dispatch, &mut buffers, &schedule).map_err(|fault| fault.to_string())?;
        Ok((out.to_f32(), state.to_f32()))
    }

    /// The largest error of results and state, where the kernel ran to its end.
    fn error(&self, change: impl Fn(String) -> String) -> Result<f64, String> {
        let (out, state) = self.found(1, change)?;
        let (expected_out, expected_state) = self.expected();
        let (written, beyond) = out.split_at(expected_out.len());
        if beyond.iter().any(|&x| x != UNTOUCHED) {
            return Err("a row that is not active was written".to_owned());
        }
        Ok(largest(written, &expected_out).max(largest(&state, &expected_state)))
    }
}

fn largest(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let squares: f64 = expected.iter().map(|x| x * x).sum();
    let scale = (squares / expected.len() as f64).sqrt();
    let apart = |(&f, &e): (&f32, &f64)| (f64::from(f) - e).abs() / scale;
    // A NaN is larger than any error.
    let larger = |m: f64, x: f64| if x.is_nan() || x > m { x } else { m };
    let error = found.iter().zip(expected).map(apart).fold(0.0, larger);
    if error.is_nan() { f64::INFINITY } else { error }
}

#[test]
fn chunks_give_what_the_rule_gives_token_by_token() {
    if !support::has_compiler() {
        return;
    }
    let mut cases = vec![];
    for tokens in [Tokens::Random, Tokens::Alike, Tokens::Decaying] {
        cases.push((SMALL, tokens));
        cases.push((Shape { rows: (80, 67), ..SMALL }, tokens));
        cases.push((LARGE, tokens));
    }
    for active in [1, 15, 16, 17, 33] {
        cases.push((Shape { rows: (40, active), ..SMALL }, Tokens::Random));
    }
    cases.push((Shape { key_heads: 2, key_dim: 64, value_heads: 4, ..SMALL }, Tokens::Random));
    for (shape, tokens) in cases {
        let error = Inputs::new(shape, tokens).error(|source| source).unwrap();
        eprintln!("{error:.1e}: {tokens:?}, {shape:?}");
        // Where tokens undo each other, little is left of large numbers.
        let limit = if tokens == Tokens::Alike { 4.0 * LIMIT } else { LIMIT };
        assert!(error <= limit, "{tokens:?}, {shape:?}: {error}");
    }
}

#[test]
fn the_order_of_threads_makes_no_difference() {
    if !support::has_compiler() {
        return;
    }
    let inputs = Inputs::new(Shape { rows: (56, 56), ..LARGE }, Tokens::Random);
    let bits = |seed| {
        let (out, state) = inputs.found(seed, |source| source).unwrap();
        out.into_iter().chain(state).map(f32::to_bits).collect::<Vec<_>>()
    };
    let first = bits(1);
    for seed in 2..8 {
        assert!(bits(seed) == first, "seed {seed}");
    }
}

#[test]
fn faults_in_the_chunks_show() {
    if !support::has_compiler() {
        return;
    }
    const BARRIER: &str = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n";
    let faults = [
        // Pieces left out.
        ("tile_mma(s[d], left.low, right.high);", "", 0),
        ("tile_mma(s[d], left.high, right.low);", "", 0),
        ("tile_mma(c.right_low, a.high, b.low);", "", 0),
        ("tile_mma(c.left_low, a.low, b.high);", "", 0),
        (
            "split_mma(of_updates, left, right);",
            "tile_mma(of_updates.high, left.high, right.high);",
            0,
        ),
        // Neighbours of the right tokens.
        ("whole *= j <= token", "whole *= j < token", 0),
        ("part *= j <= token", "part *= j < token", 0),
        ("real ? strength", "true ? strength", 0),
        ("t + 1 < rows) to[", "t < rows) to[", 0),
        ("gate[(TOKENS - 1) * PITCH].x", "gate[(TOKENS - 2) * PITCH].x", 0),
        (
            "lay_normed<KEY_DIM>(queries + own * LD, s, float(KEY_DIM), lane)",
            "lay_normed<KEY_DIM>(queries + own * LD, s, 1.0f, lane)",
            0,
        ),
        // Barriers left out.
        (BARRIER, "", 0),
        (BARRIER, "", 1),
        (BARRIER, "", 2),
    ];
    let inputs = Inputs::new(Shape { rows: (80, 67), ..SMALL }, Tokens::Random);
    for (right, wrong, which) in faults {
        let plant = |source: String| {
            // The barriers meant are those of the chunks; the other faults' words stand only once.
            let from = source.find("struct split_c").unwrap();
            let from = match right {
                BARRIER => source.find("void gated_delta_chunks(").unwrap(),
                _ => from,
            };
            let at = source[from..].match_indices(right).nth(which);
            let (at, _) = at.unwrap_or_else(|| panic!("the source does not say {right:?}"));
            let (before, after) = source.split_at(from + at);
            format!("{before}{}", after.replacen(right, wrong, 1))
        };
        match inputs.error(plant) {
            Ok(error) => assert!(error > LIMIT, "{right:?} {which}: {error}"),
            Err(fault) => eprintln!("{right:?} {which}: {fault}"),
        }
    }
}
