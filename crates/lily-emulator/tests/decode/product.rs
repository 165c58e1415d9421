//! One product of rows by a kernel of its own, and what it should give.

use half::bf16;
use lily_emulator::{
    AlignedBytes, Dispatch, KernelCache, Schedule, Toolchain, host_source_of, run,
};
use lily_kernels::launch::{Kernel, Module};
use lily_kernels::lower::Tuning;
use lily_kernels::sources;

const EPS: f32 = 1e-6;
/// What outputs hold before.
const BEFORE: f32 = 0.25;

/// A product of `n` rows of `k` values, in groups of `group`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) group: usize,
    /// Rows per simdgroup, and simdgroups.
    pub(crate) block: (usize, usize),
    /// Of `stacked_matvec`; otherwise it is a `matvec` that accumulates.
    pub(crate) norm: bool,
    /// Shares of the rows that a threadgroup takes.
    pub(crate) turns: usize,
}

/// One to four shares of K; rows that fill no block; threads without values to stage.
pub(crate) const SHAPES: [Shape; 5] = [
    Shape { k: 1024, n: 72, group: 64, block: (2, 8), norm: true, turns: 5 },
    Shape { k: 512, n: 40, group: 128, block: (8, 4), norm: true, turns: 1 },
    Shape { k: 1280, n: 41, group: 64, block: (8, 4), norm: false, turns: 1 },
    Shape { k: 2048, n: 24, group: 64, block: (1, 16), norm: false, turns: 1 },
    Shape { k: 1024, n: 35, group: 128, block: (4, 8), norm: false, turns: 1 },
];

#[derive(Clone, Debug)]
pub(crate) enum Activations {
    Random,
    Zero,
    /// In every group of 64 one value 2^20 times as large as the others.
    OneHugePerGroup,
    /// The first 64 values are 1e12 times as large as the others.
    OneHugeGroup,
    /// Random times this.
    Scaled(f32),
    /// Random but for one.
    With(usize, f32),
}

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// -1 .. 1
    fn next(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 31) as f32 - 1.0
    }
}

/// Operands of a product.
pub(crate) struct Product {
    shape: Shape,
    x: Vec<f32>,
    norm: Vec<f32>,
    /// `[n][k / 8]`.
    words: Vec<u32>,
    /// `[n][k / group]`.
    sides: Vec<(bf16, bf16)>,
}

impl Product {
    pub(crate) fn new(shape: Shape, activations: &Activations) -> Product {
        let Shape { k, n, group, .. } = shape;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut x: Vec<f32> = (0..k).map(|_| random.next()).collect();
        for (i, x) in x.iter_mut().enumerate() {
            match *activations {
                Activations::Random => {}
                Activations::Zero => *x = 0.0,
                Activations::OneHugePerGroup if i % 64 == i / 64 * 7 % 64 => *x *= 1_048_576.0,
                Activations::OneHugeGroup if i < 64 => *x *= 1e12,
                Activations::OneHugePerGroup | Activations::OneHugeGroup => {}
                Activations::Scaled(by) => *x *= by,
                Activations::With(at, special) if at == i => *x = special,
                Activations::With(..) => {}
            }
        }
        let norm = (0..k).map(|_| 1.0 + 0.5 * random.next()).collect();
        let words = (0..n * k / 8).map(|_| random.bits()).collect();
        let side = |i: usize| {
            let (row, group) = (i / (k / group), i % (k / group));
            let scale = bf16::from_f32(0.1 + 0.05 * random.next());
            let bias = bf16::from_f32(-8.0 * scale.to_f32() + 0.1 * random.next());
            match (row % 4, group) {
                // Rows to which the first values are nothing, and rows without a bias.
                (1, 0) => (bf16::ZERO, bf16::ZERO),
                (2, _) => (scale, bf16::ZERO),
                _ => (scale, bias),
            }
        };
        let sides = (0..n * k / group).map(side).collect();
        Product { shape, x, norm, words, sides }
    }

    /// The weights of a row.
    fn row(&self, row: usize) -> impl Iterator<Item = f64> {
        let Shape { k, group, .. } = self.shape;
        (0..k).map(move |i| {
            let q = self.words[row * k / 8 + i / 8] >> (4 * (i % 8)) & 15;
            let (scale, bias) = self.sides[row * k / group + i / group];
            f64::from(scale.to_f32()) * f64::from(q) + f64::from(bias.to_f32())
        })
    }

    fn expected(&self) -> Vec<f64> {
        let Shape { k, n, norm, .. } = self.shape;
        let x: Vec<f64> = self.x.iter().map(|&x| f64::from(x)).collect();
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let root = 1.0 / (squares / k as f64 + f64::from(EPS)).sqrt();
        let of = |(x, &w): (&f64, &f32)| if norm { x * root * f64::from(w) } else { *x };
        let x: Vec<f64> = x.iter().zip(&self.norm).map(of).collect();
        let before = if norm { 0.0 } else { f64::from(BEFORE) };
        let dot = |row| self.row(row).zip(&x).map(|(w, x)| w * x).sum::<f64>();
        (0..n).map(|row| before + dot(row)).collect()
    }

    /// Without a norm: what every row should give and what it may be off by: by half a unit per value, where 2^22 units
    /// are up to twice the largest value of 64 and no unit is less than 2^-126; by the rounding of the sums.
    pub(crate) fn bounds(&self) -> Vec<(f64, f64)> {
        let Shape { k, group, .. } = self.shape;
        let largest: Vec<f64> =
            self.x.chunks(64).map(|x| largest(x).max(2f64.powi(-104))).collect();
        let bound = |row: usize, expected: f64| {
            let of = |i: usize| {
                let (scale, bias) = self.sides[row * k / group + i / group];
                let weight = 15.0 * f64::from(scale.to_f32()) + f64::from(bias.to_f32()).abs();
                weight * largest[i / 64]
            };
            let reach: f64 = (0..k).map(of).sum();
            reach * 2f64.powi(-22) + expected.abs() * 2f64.powi(-23)
        };
        let expected = self.expected().into_iter().enumerate();
        expected.map(|(row, expected)| (expected, bound(row, expected))).collect()
    }

    /// The packed matrix.
    fn matrix(&self) -> AlignedBytes {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(256), 0);
        for (scale, bias) in &self.sides {
            bytes.extend(scale.to_le_bytes());
            bytes.extend(bias.to_le_bytes());
        }
        AlignedBytes::of(&bytes)
    }

    fn kernel(&self) -> Kernel {
        let Shape { k, n, group, block: (rows, simdgroups), norm, turns } = self.shape;
        let format = format!("affine<4, {group}, bfloat>");
        let [k, n, rows, simdgroups, turns] =
            [k, n, rows, simdgroups, turns].map(|n| n.to_string());
        let (template, args) = if norm {
            let mut args = vec![k, simdgroups, "true".to_owned(), "true".to_owned(), turns];
            for n in [&*n, "0", "0", "0"] {
                args.extend([format.clone(), n.to_owned(), rows.clone()]);
            }
            ("stacked_matvec", args)
        } else {
            let flags = ["true", "true"].map(str::to_owned);
            let args = [format, "float".to_owned(), n, k, rows, simdgroups];
            ("matvec", args.into_iter().chain(flags).collect())
        };
        Kernel { module: Module::Linear, template, args }
    }

    /// What the kernel gives.
    pub(crate) fn found(
        &self,
        seed: u64,
        change: impl Fn(String) -> String,
    ) -> Result<Vec<f32>, String> {
        let Shape { n, block: (rows, simdgroups), norm, turns, .. } = self.shape;
        let kernel = self.kernel();
        let source = change(sources::library(kernel.module, &[&kernel]).unwrap());
        let host = host_source_of(&source).unwrap_or_else(|error| panic!("{error}"));
        let toolchain = Toolchain::find().unwrap().with_defines(Tuning::nvidia().defines());
        let cache = KernelCache::new(toolchain, KernelCache::default_folder());
        let entry = cache.entry(&host, &kernel.host_name()).unwrap_or_else(|e| panic!("{e}"));
        let mut out = AlignedBytes::of_f32(&vec![BEFORE; n]);
        let mut x = AlignedBytes::of_f32(&self.x);
        let mut weights = AlignedBytes::of_f32(&self.norm);
        let mut matrix = self.matrix();
        let mut control = AlignedBytes::of_u32(&[0, 1]);
        let mut params = AlignedBytes::of_f32(&[EPS]);
        let mut unused = [(); 6].map(|()| AlignedBytes::of_f32(&[0.0]));
        let shares = n.div_ceil(rows * simdgroups);
        let grid = [shares.div_ceil(turns) as u32, 1, 1];
        let dispatch = Dispatch { grid, threads: 32 * simdgroups as u32 };
        let schedule = Schedule { seed, workers: 1 };
        let [a, b, c, d, e, f] = &mut unused;
        let mut buffers = if norm {
            let inputs = [&mut x, &mut weights, &mut matrix, a, b, c];
            inputs.into_iter().chain([&mut out, d, e, f, &mut params, &mut control]).collect()
        } else {
            vec![&mut matrix, &mut x, &mut out, &mut control]
        };
        run(&entry, &dispatch, &mut buffers, &schedule).map_err(|fault| fault.to_string())?;
        Ok(out.to_f32())
    }

    /// The root mean square of the errors, in units of that of what is expected.
    pub(crate) fn error(
        &self,
        seed: u64,
        change: impl Fn(String) -> String,
    ) -> Result<f64, String> {
        let found = self.found(seed, change)?;
        let expected = self.expected();
        let errors = found.iter().zip(&expected).map(|(&f, e)| (f64::from(f) - e).powi(2));
        let error = (errors.sum::<f64>() / expected.iter().map(|e| e * e).sum::<f64>()).sqrt();
        Ok(if error.is_nan() { f64::INFINITY } else { error })
    }
}

fn largest(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max)
}
