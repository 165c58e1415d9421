//! Products of few rows: the weights stream through registers, nothing is written back.
//!
//! Affine: `Σ (scale·q + bias)·x` is taken per group as `scale · Σ q·x + bias · Σ x`. Numbers are
//! converted where they lie in their word, and the power of two that this leaves is divided out of
//! `x` once per product, so a weight costs one `and`, one conversion and one multiply-add.

use lily_checkpoint::manifest::Dtype;

use super::buffer::lines;
use super::dequant::{Bf16, F16, F32, Stored, for_each_value, header, quant};
use super::layout::{AffineLayout, CHUNK, factors};
use super::rows::{OutRows, XRows};
use super::{Mode, TILE};
use crate::simd::{Isa, Kernel, Simd};

/// Inputs whose products are summed apart before they join the total (float formats).
const FLOAT_GROUP: usize = 64;

/// Bytes that weights are asked for ahead of their use: the hardware's own prefetcher stays too
/// close (measured on Zen 5: half of it costs a tenth of the speed, twice as much a twentieth).
const PREFETCH: usize = 8192;

/// How far ahead of a group of a tile memory is asked for, in bytes: the tile's own next groups, and at
/// its end the beginning of the tile that comes after the `T` that are read side by side.
#[inline(always)]
pub(super) fn ahead<const T: usize>(layout: &AffineLayout, group: usize) -> usize {
    let line = size_of::<[u32; 16]>();
    let (at, size) = (group * layout.block() * line, layout.tile() * line);
    let each = PREFETCH / T;
    if at + each < size { each } else { each + (T - 1) * size }
}

/// Where results go.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) out: &'a OutRows<'a>,
    /// First tile of the product.
    pub(super) tile: usize,
    /// Rows of the matrix.
    pub(super) n: usize,
    pub(super) mode: Mode,
}

impl Target<'_> {
    /// Writes the 16 outputs of one tile and row; fewer in the last tile.
    #[inline(always)]
    pub(super) fn emit<S: Simd>(&self, s: S, row: usize, tile: usize, value: S::F) {
        let first = (self.tile + tile) * TILE;
        let out = self.out.part(row, first, TILE.min(self.n - first));
        if let Ok(out) = <&mut [f32; TILE]>::try_from(&mut *out) {
            let old = if self.mode == Mode::Accumulate { s.load(out) } else { s.zero() };
            s.store(s.add(old, value), out);
        } else {
            let mut values = [0.0; TILE];
            s.store(value, &mut values);
            for (out, value) in out.iter_mut().zip(values) {
                *out = if self.mode == Mode::Accumulate { *out + value } else { value };
            }
        }
    }
}

/// Inputs of one product, as the affine kernels want them.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// `[row][chunk][32]`, divided by the place of each number.
    x: Vec<[f32; CHUNK]>,
    /// `[row][group]`.
    sums: Vec<f32>,
}

impl Prepared {
    pub(super) fn fill(&mut self, isa: Isa, layout: &AffineLayout, x: &XRows<'_>) {
        let chunks = layout.groups * layout.chunks;
        self.x.resize(x.len() * chunks, [0.0; CHUNK]);
        self.sums.resize(x.len() * layout.groups, 0.0);
        isa.run(Prepare { layout, x, scaled: &mut self.x, sums: &mut self.sums });
    }
}

struct Prepare<'a> {
    layout: &'a AffineLayout,
    x: &'a XRows<'a>,
    scaled: &'a mut [[f32; CHUNK]],
    sums: &'a mut [f32],
}

impl Kernel for Prepare<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AffineLayout { bits, groups, chunks, .. } = *self.layout;
        let factors = factors(bits);
        let (factors, _) = factors.as_chunks::<16>();
        let factors = [s.load(&factors[0]), s.load(&factors[1])];
        for row in 0..self.x.len() {
            let x = self.x.row(row, groups * chunks * CHUNK);
            let (x, _) = x.as_chunks::<CHUNK>();
            let scaled = &mut self.scaled[row * groups * chunks..][..groups * chunks];
            let sums = &mut self.sums[row * groups..][..groups];
            let groups = x.chunks_exact(chunks).zip(scaled.chunks_exact_mut(chunks));
            for ((x, scaled), sum) in groups.zip(sums) {
                let mut total = s.zero();
                for (x, scaled) in x.iter().zip(scaled) {
                    let (x, _) = x.as_chunks::<16>();
                    let (scaled, _) = scaled.as_chunks_mut::<16>();
                    for half in 0..2 {
                        let x = s.load(&x[half]);
                        total = s.add(total, x);
                        s.store(s.mul(x, factors[half]), &mut scaled[half]);
                    }
                }
                let mut lanes = [0.0; 16];
                s.store(total, &mut lanes);
                for width in [8, 4, 2, 1] {
                    for lane in 0..width {
                        lanes[lane] += lanes[lane + width];
                    }
                }
                *sum = lanes[0];
            }
        }
    }
}

/// Affine product of up to four prepared rows with consecutive tiles.
pub(super) fn affine(
    isa: Isa,
    layout: &AffineLayout,
    tiles: &[[u32; 16]],
    prepared: &Prepared,
    n_rows: usize,
    target: Target<'_>,
) {
    macro_rules! run {
        ($bits:literal, $m:literal, $row:expr) => {
            isa.run(Affine::<$bits, $m> { layout, tiles, prepared, row: $row, target })
        };
    }
    let mut row = 0;
    while row < n_rows {
        match (layout.bits, n_rows - row) {
            (4, 4..) => run!(4, 4, row),
            (4, 2..) => run!(4, 2, row),
            (4, _) => run!(4, 1, row),
            (8, 4..) => run!(8, 4, row),
            (8, 2..) => run!(8, 2, row),
            (8, _) => run!(8, 1, row),
            (2, _) => run!(2, 1, row),
            (3, _) => run!(3, 1, row),
            (5, _) => run!(5, 1, row),
            (6, _) => run!(6, 1, row),
            (bits, _) => unreachable!("{bits} bits passed the checkpoint's checks"),
        }
        row += match (layout.bits, n_rows - row) {
            (4 | 8, 4..) => 4,
            (4 | 8, 2..) => 2,
            _ => 1,
        };
    }
}

struct Affine<'a, const BITS: usize, const M: usize> {
    layout: &'a AffineLayout,
    tiles: &'a [[u32; 16]],
    prepared: &'a Prepared,
    row: usize,
    target: Target<'a>,
}

impl<const BITS: usize, const M: usize> Kernel for Affine<'_, BITS, M> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let tiles = (self.tiles, self.layout.tile());
        let target = (self.target, self.row);
        let mut tile = 0;
        if M == 1 && S::GEMV_TILES == 4 {
            tile = self.side_by_side::<4>(s, tiles, tile, target);
        }
        if M == 1 && S::GEMV_TILES >= 2 {
            tile = self.side_by_side::<2>(s, tiles, tile, target);
        }
        self.side_by_side::<1>(s, tiles, tile, target);
    }
}

/// A product of `M` rows with tiles. (A trait and not a closure: a closure would be a function of its
/// own, compiled without the instruction set.)
pub(super) trait TileProduct<S: Simd, const M: usize> {
    /// Sums of `T` tiles. Implementations are `#[inline(always)]`.
    fn totals<const T: usize>(&self, s: S, tiles: [&[[u32; 16]]; T]) -> [[S::F; M]; T];

    /// The tiles from `tile` on, of `size` lines each, `T` side by side; returns the first that is left.
    #[inline(always)]
    fn side_by_side<const T: usize>(
        &self,
        s: S,
        (tiles, size): (&[[u32; 16]], usize),
        mut tile: usize,
        (target, row): (Target<'_>, usize),
    ) -> usize {
        let n_tiles = tiles.len() / size;
        while tile + T <= n_tiles {
            let lines = std::array::from_fn(|t| &tiles[(tile + t) * size..][..size]);
            for (t, totals) in self.totals::<T>(s, lines).into_iter().enumerate() {
                for (m, total) in totals.into_iter().enumerate() {
                    target.emit(s, row + m, tile + t, total);
                }
            }
            tile += T;
        }
        tile
    }
}

impl<S: Simd, const BITS: usize, const M: usize> TileProduct<S, M> for Affine<'_, BITS, M> {
    #[inline(always)]
    fn totals<const T: usize>(&self, s: S, tiles: [&[[u32; 16]]; T]) -> [[S::F; M]; T] {
        let AffineLayout { groups, chunks, scale, .. } = *self.layout;
        let block = self.layout.block();
        let n_chunks = groups * chunks;
        let x: [&[[f32; CHUNK]]; M] =
            std::array::from_fn(|m| &self.prepared.x[(self.row + m) * n_chunks..][..n_chunks]);
        let sums: [&[f32]; M] =
            std::array::from_fn(|m| &self.prepared.sums[(self.row + m) * groups..][..groups]);

        let mut totals = [[s.zero(); M]; T];
        for group in 0..groups {
            let ahead = ahead::<T>(self.layout, group);
            let blocks: [&[[u32; 16]]; T] =
                std::array::from_fn(|t| &tiles[t][group * block..][..block]);
            let words: [&[[[u32; 16]; BITS]]; T] =
                std::array::from_fn(|t| blocks[t][self.layout.header..].as_chunks::<BITS>().0);
            for block in blocks {
                s.prefetch(block.as_ptr().cast::<u8>().wrapping_add(ahead));
            }
            // Two sums of alternating inputs: enough independent chains to hide the latency.
            let mut sum = [[[s.zero(); 2]; M]; T];
            for chunk in 0..chunks {
                let words: [&[[u32; 16]; BITS]; T] = std::array::from_fn(|t| &words[t][chunk]);
                for words in words {
                    for line in words {
                        s.prefetch(line.as_ptr().cast::<u8>().wrapping_add(ahead));
                    }
                }
                let x: [&[f32; CHUNK]; M] = std::array::from_fn(|m| &x[m][group * chunks + chunk]);
                for_each_value!(J => {
                    let x: [S::F; M] = std::array::from_fn(|m| s.splat(x[m][J]));
                    for t in 0..T {
                        let q = quant::<S, BITS, J>(s, words[t]);
                        for m in 0..M {
                            sum[t][m][J % 2] = s.mul_add(q, x[m], sum[t][m][J % 2]);
                        }
                    }
                });
            }
            for t in 0..T {
                let (scale, bias) = header(s, scale, blocks[t]);
                for m in 0..M {
                    let product = s.add(sum[t][m][0], sum[t][m][1]);
                    let total = s.mul_add(scale, product, totals[t][m]);
                    totals[t][m] = s.mul_add(bias, s.splat(sums[m][group]), total);
                }
            }
        }
        totals
    }
}

/// Float product of one row with consecutive tiles.
pub(super) fn float(
    isa: Isa,
    dtype: Dtype,
    cols: usize,
    tiles: &[u8],
    x: &XRows<'_>,
    target: Target<'_>,
) {
    for row in 0..x.len() {
        let x = x.row(row, cols);
        match dtype {
            Dtype::Bf16 => isa.run(Float::<Bf16> { tiles: lines(tiles), x, row, target }),
            Dtype::F16 => isa.run(Float::<F16> { tiles: lines(tiles), x, row, target }),
            Dtype::F32 | Dtype::U32 => {
                isa.run(Float::<F32> { tiles: lines(tiles), x, row, target });
            }
        }
    }
}

struct Float<'a, D: Stored> {
    tiles: &'a [[D::Bits; 16]],
    x: &'a [f32],
    row: usize,
    target: Target<'a>,
}

impl<D: Stored> Kernel for Float<'_, D> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (tile, lines) in self.tiles.chunks_exact(self.x.len()).enumerate() {
            let mut total = s.zero();
            for (x, lines) in self.x.chunks(FLOAT_GROUP).zip(lines.chunks(FLOAT_GROUP)) {
                let mut sum = [s.zero(); 4];
                let (x4, x_rest) = x.as_chunks::<4>();
                let (lines4, lines_rest) = lines.as_chunks::<4>();
                for (x, lines) in x4.iter().zip(lines4) {
                    for i in 0..4 {
                        sum[i] = s.mul_add(D::widen(s, &lines[i]), s.splat(x[i]), sum[i]);
                    }
                }
                for (&x, line) in x_rest.iter().zip(lines_rest) {
                    sum[0] = s.mul_add(D::widen(s, line), s.splat(x), sum[0]);
                }
                let sum = s.add(s.add(sum[0], sum[1]), s.add(sum[2], sum[3]));
                total = s.add(total, sum);
            }
            self.target.emit(s, self.row, tile, total);
        }
    }
}
