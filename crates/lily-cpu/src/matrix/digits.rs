//! Products of few rows in whole numbers, for machines that multiply bytes.
//!
//! The inputs of a group are multiples of a power of two, written as four signed digits of base 256.
//! Products of quantised weights with digits are sums of whole numbers, hence exact; what is lost is
//! what an input has below 2⁻²⁹ of the largest of its group. (Three digits are little faster and lose
//! half of the places beside an input a thousand times as large, which models do have.) Four weights of
//! a row cost one multiplication per digit, where `f32` takes a conversion and a multiplication each.

use super::gemv::{Target, TileProduct, ahead};
use super::layout::{AffineLayout, CHUNK};
use super::rows::XRows;
use crate::simd::{ByteKernel, Bytes, Isa};

const DIGITS: usize = 4;
/// Words of four digits in a chunk.
const WORDS: usize = CHUNK / 4;
/// Binary places of an input below the leading one of its group's largest.
const PLACES: u32 = 29;
/// Groups whose largest input is below 2⁻⁹⁵ count as zero: the power of two must have an inverse.
const SMALLEST: f32 = f32::from_bits((127 - 95) << 23);

/// The digits of one chunk: `[digit][word]`, four inputs in a word, in the order of the weights' bytes.
type Chunk = [[u32; WORDS]; DIGITS];

/// Inputs of one product.
#[derive(Debug, Default)]
pub(super) struct Digits {
    /// `[row][chunk]`.
    digits: Vec<Chunk>,
    /// `[row][group]`: what the last digit counts, and the sum of the inputs.
    groups: Vec<[f32; 2]>,
}

/// Whether matrices of that many bits are multiplied so.
pub(super) fn takes(isa: Isa, bits: usize) -> bool {
    isa.multiplies_bytes() && matches!(bits, 4 | 8)
}

impl Digits {
    pub(super) fn fill(&mut self, isa: Isa, layout: &AffineLayout, x: &XRows<'_>) {
        let chunks = layout.groups * layout.chunks;
        self.digits.resize(x.len() * chunks, [[0; WORDS]; DIGITS]);
        self.groups.resize(x.len() * layout.groups, [0.0; 2]);
        isa.run_bytes(Fill { layout, x, to: self });
    }
}

struct Fill<'a> {
    layout: &'a AffineLayout,
    x: &'a XRows<'a>,
    to: &'a mut Digits,
}

impl ByteKernel for Fill<'_> {
    /// Plain loops, which the compiler vectorises for the instruction set.
    #[inline(always)]
    fn run<S: Bytes>(self, _: S) {
        let AffineLayout { bits, groups, chunks, .. } = *self.layout;
        for row in 0..self.x.len() {
            let x = self.x.row(row, groups * chunks * CHUNK);
            let (x, _) = x.as_chunks::<CHUNK>();
            let digits = &mut self.to.digits[row * groups * chunks..][..groups * chunks];
            let facts = &mut self.to.groups[row * groups..][..groups];
            let of_groups = x.chunks_exact(chunks).zip(digits.chunks_exact_mut(chunks));
            for ((x, digits), facts) in of_groups.zip(facts) {
                let (largest, sum) = largest_and_sum(x);
                let (unit, inverse) = unit(largest);
                // What counts as zero does so with the biases too.
                *facts = [unit, if unit == 0.0 { 0.0 } else { sum }];
                for (x, digits) in x.iter().zip(digits) {
                    *digits = if bits == 4 {
                        to_digits(x, inverse, |word, byte| word / 2 * 8 + 2 * byte + word % 2)
                    } else {
                        to_digits(x, inverse, |word, byte| 4 * word + byte)
                    };
                }
            }
        }
    }
}

#[inline(always)]
fn largest_and_sum(x: &[[f32; CHUNK]]) -> (f32, f32) {
    let (mut largest, mut sum) = ([0u32; CHUNK], [0.0f32; CHUNK]);
    for x in x {
        for i in 0..CHUNK {
            // Magnitudes compare as their bits do, and NaN is larger than all.
            largest[i] = largest[i].max(x[i].to_bits() & 0x7fff_ffff);
            sum[i] += x[i];
        }
    }
    const { assert!(CHUNK == 32) };
    for width in [16, 8, 4, 2, 1] {
        for i in 0..width {
            largest[i] = largest[i].max(largest[i + width]);
            sum[i] += sum[i + width];
        }
    }
    (f32::from_bits(largest[0]), sum[0])
}

/// The power of two that inputs are multiples of, and its inverse.
#[inline(always)]
fn unit(largest: f32) -> (f32, f32) {
    if !largest.is_finite() {
        // The sum is no number either, so neither is the product.
        return (f32::NAN, 0.0);
    }
    if largest < SMALLEST {
        return (0.0, 0.0);
    }
    let exponent = largest.to_bits() >> 23;
    let unit = f32::from_bits((exponent - PLACES) << 23);
    (unit, f32::from_bits((2 * 127 + PLACES - exponent) << 23))
}

/// `at(word, byte)` is the input of a byte.
#[inline(always)]
fn to_digits(x: &[f32; CHUNK], inverse: f32, at: impl Fn(usize, usize) -> usize) -> Chunk {
    let mut chunk = [[0; WORDS]; DIGITS];
    for byte in 0..4 {
        // Below 2³⁰.
        let mut rest: [i32; WORDS] =
            std::array::from_fn(|word| (x[at(word, byte)] * inverse) as i32);
        for digits in &mut chunk {
            for word in 0..WORDS {
                let digit = rest[word] as i8;
                rest[word] = (rest[word] - i32::from(digit)) >> 8;
                digits[word] |= u32::from(digit.cast_unsigned()) << (8 * byte);
            }
        }
    }
    chunk
}

/// Affine product of up to four rows of digits with consecutive tiles.
pub(super) fn affine(
    isa: Isa,
    layout: &AffineLayout,
    tiles: &[[u32; 16]],
    digits: &Digits,
    n_rows: usize,
    target: Target<'_>,
) {
    macro_rules! run {
        ($bits:literal, $m:literal, $row:expr) => {
            isa.run_bytes(Affine::<$bits, $m> { layout, tiles, digits, row: $row, target })
        };
    }
    // With two rows the sums take sixteen registers of AVX-512.
    let most = if isa == Isa::AvxVnni { 1 } else { 2 };
    let mut row = 0;
    while row < n_rows {
        let rows = most.min(n_rows - row);
        match (layout.bits, rows) {
            (4, 2) => run!(4, 2, row),
            (4, _) => run!(4, 1, row),
            (_, 2) => run!(8, 2, row),
            (_, _) => run!(8, 1, row),
        }
        row += rows;
    }
}

struct Affine<'a, const BITS: usize, const M: usize> {
    layout: &'a AffineLayout,
    tiles: &'a [[u32; 16]],
    digits: &'a Digits,
    row: usize,
    target: Target<'a>,
}

impl<const BITS: usize, const M: usize> ByteKernel for Affine<'_, BITS, M> {
    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let tiles = (self.tiles, self.layout.tile());
        let target = (self.target, self.row);
        // One after the other: memory comes fastest in one stream (two are 4 % slower on Zen 5, four 12 %).
        self.side_by_side::<1>(s, tiles, 0, target);
    }
}

impl<S: Bytes, const BITS: usize, const M: usize> TileProduct<S, M> for Affine<'_, BITS, M> {
    #[inline(always)]
    fn totals<const T: usize>(&self, s: S, tiles: [&[[u32; 16]]; T]) -> [[S::F; M]; T] {
        let AffineLayout { groups, chunks, scale, .. } = *self.layout;
        let block = self.layout.block();
        let n_chunks = groups * chunks;
        let digits: [&[Chunk]; M] =
            std::array::from_fn(|m| &self.digits.digits[(self.row + m) * n_chunks..][..n_chunks]);
        let facts: [&[[f32; 2]]; M] =
            std::array::from_fn(|m| &self.digits.groups[(self.row + m) * groups..][..groups]);

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
            let mut sums = [[[s.splat_u32(0); DIGITS]; M]; T];
            for chunk in 0..chunks {
                let words: [&[[u32; 16]; BITS]; T] = std::array::from_fn(|t| &words[t][chunk]);
                let x: [&Chunk; M] = std::array::from_fn(|m| &digits[m][group * chunks + chunk]);
                for word in 0..WORDS {
                    for t in 0..T {
                        let q = weights::<S, BITS>(s, words[t], word, ahead);
                        for m in 0..M {
                            for digit in 0..DIGITS {
                                let x = s.splat_u32(x[m][digit][word]);
                                sums[t][m][digit] = s.dot4(sums[t][m][digit], q, x);
                            }
                        }
                    }
                }
            }
            for t in 0..T {
                let (scale, bias) = super::dequant::header(s, scale, blocks[t]);
                for m in 0..M {
                    let mut product = s.zero();
                    for (digit, &sum) in sums[t][m].iter().enumerate() {
                        let place = s.splat((1u32 << (8 * digit)) as f32);
                        product = s.mul_add(s.to_f32(sum), place, product);
                    }
                    let [unit, sum] = facts[m][group];
                    let scale = s.mul(scale, s.splat(unit));
                    let total = s.mul_add(scale, product, totals[t][m]);
                    totals[t][m] = s.mul_add(bias, s.splat(sum), total);
                }
            }
        }
        totals
    }
}

/// Four weights of each of 16 rows, as bytes.
#[inline(always)]
fn weights<S: Bytes, const BITS: usize>(
    s: S,
    words: &[[u32; 16]; BITS],
    word: usize,
    ahead: usize,
) -> S::U {
    let line = &words[word * BITS / 8];
    if BITS == 8 || word.is_multiple_of(2) {
        s.prefetch(line.as_ptr().cast::<u8>().wrapping_add(ahead));
    }
    if BITS == 8 {
        return s.load_u32(line);
    }
    let line = s.load_u32(line);
    let nibbles = if word.is_multiple_of(2) { line } else { s.shr(line, 4) };
    s.and(nibbles, s.splat_u32(0x0f0f_0f0f))
}
