//! From stored numbers to `f32`.

use lily_checkpoint::manifest::Dtype;

use super::buffer::{Line, Plain, lines};
use super::layout::{AffineLayout, CHUNK, Place};
use crate::simd::Simd;

/// Runs a block for `J` in `0..32`, each time as a constant.
macro_rules! for_each_value {
    ($j:ident => $body:expr) => {
        for_each_value!(@ $j $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
            16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    (@ $j:ident $body:expr; $($value:literal)*) => {
        $({
            const $j: usize = $value;
            $body
        })*
    };
}
pub(super) use for_each_value;

/// Value `J` of a chunk of 16 rows, times `1 / Place::factor`.
#[inline(always)]
pub(super) fn quant<S: Simd, const BITS: usize, const J: usize>(
    s: S,
    words: &[[u32; 16]; BITS],
) -> S::F {
    let mask = (1u32 << BITS) - 1;
    let number = match const { Place::of(BITS, J) } {
        Place::Low { word, shift } => s.and(s.load_u32(&words[word]), s.splat_u32(mask << shift)),
        Place::High { word, shift } => {
            s.and(s.shr(s.load_u32(&words[word]), 16), s.splat_u32(mask << shift))
        }
        Place::Across { word, shift } => {
            s.and(s.shr(s.load_u32(&words[word]), shift), s.splat_u32(mask))
        }
        Place::Split { word, shift } => {
            let low = s.shr(s.load_u32(&words[word]), shift);
            let high = s.shl(s.load_u32(&words[(word + 1) % BITS]), 32 - shift);
            s.and(s.or(low, high), s.splat_u32(mask))
        }
    };
    s.to_f32(number)
}

/// Scales and biases of one group of 16 rows.
#[inline(always)]
pub(super) fn header<S: Simd>(s: S, dtype: Dtype, block: &[[u32; 16]]) -> (S::F, S::F) {
    let pair = s.load_u32(&block[0]);
    match dtype {
        Dtype::Bf16 => (s.bf16_to_f32(pair), s.as_f32(s.and(pair, s.splat_u32(0xffff_0000)))),
        Dtype::F16 => {
            (s.f16_to_f32(s.and(pair, s.splat_u32(0xffff))), s.f16_to_f32(s.shr(pair, 16)))
        }
        Dtype::F32 | Dtype::U32 => (s.as_f32(pair), s.as_f32(s.load_u32(&block[1]))),
    }
}

/// Expands groups of an affine tile into `[input][16]`, and asks for as many lines of what comes `next`.
#[inline(always)]
pub(super) fn expand_affine<S: Simd, const BITS: usize>(
    s: S,
    layout: &AffineLayout,
    blocks: &[[u32; 16]],
    next: *const u8,
    panel: &mut [Line],
) {
    let group = layout.chunks * CHUNK;
    let blocks = blocks.chunks_exact(layout.block()).zip(panel.chunks_exact_mut(group));
    for (i, (block, panel)) in blocks.enumerate() {
        let next = next.wrapping_add(i * size_of_val(block));
        s.prefetch(next);
        let (scale, bias) = header(s, layout.scale, block);
        let (chunks, _) = block[layout.header..].as_chunks::<BITS>();
        let (panel, _) = panel.as_chunks_mut::<CHUNK>();
        for (i, (words, panel)) in chunks.iter().zip(panel).enumerate() {
            for line in layout.header + i * BITS..layout.header + (i + 1) * BITS {
                s.prefetch(next.wrapping_add(line * size_of::<[u32; 16]>()));
            }
            for_each_value!(J => {
                let factor = const { Place::of(BITS, J).factor() };
                let q = quant::<S, BITS, J>(s, words);
                let scale = s.mul(scale, s.splat(factor));
                s.store(s.mul_add(scale, q, bias), &mut panel[J].0);
            });
        }
    }
}

/// A stored float type.
pub(crate) trait Stored {
    /// Its bits.
    type Bits: Plain;
    fn widen<S: Simd>(s: S, line: &[Self::Bits; 16]) -> S::F;
}

pub(crate) struct Bf16;
pub(crate) struct F16;
pub(crate) struct F32;

impl Stored for Bf16 {
    type Bits = u16;
    #[inline(always)]
    fn widen<S: Simd>(s: S, line: &[u16; 16]) -> S::F {
        s.bf16_to_f32(s.load_u16(line))
    }
}

impl Stored for F16 {
    type Bits = u16;
    #[inline(always)]
    fn widen<S: Simd>(s: S, line: &[u16; 16]) -> S::F {
        s.f16_to_f32(s.load_u16(line))
    }
}

impl Stored for F32 {
    type Bits = f32;
    #[inline(always)]
    fn widen<S: Simd>(s: S, line: &[f32; 16]) -> S::F {
        s.load(line)
    }
}

/// Expands inputs of a float tile into `[input][16]`.
#[inline(always)]
pub(super) fn expand_float<S: Simd, D: Stored>(s: S, tile: &[[D::Bits; 16]], panel: &mut [Line]) {
    for (line, panel) in tile.iter().zip(panel) {
        s.store(D::widen(s, line), &mut panel.0);
    }
}

/// Expands one row of an affine tile.
pub(super) fn affine_row(layout: &AffineLayout, tile: &[[u32; 16]], lane: usize, out: &mut [f32]) {
    let group = layout.chunks * CHUNK;
    for (block, out) in tile.chunks_exact(layout.block()).zip(out.chunks_exact_mut(group)) {
        let word = block[0][lane];
        let half = |bits: u32| half::f16::from_bits(bits as u16).to_f32();
        let (scale, bias) = match layout.scale {
            Dtype::Bf16 => (f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)),
            Dtype::F16 => (half(word & 0xffff), half(word >> 16)),
            Dtype::F32 | Dtype::U32 => (f32::from_bits(word), f32::from_bits(block[1][lane])),
        };
        let words = &block[layout.header..];
        for (j, out) in out.iter_mut().enumerate() {
            let (word, shift) = (j * layout.bits / 32, j * layout.bits % 32);
            let next = words.get(word + 1).map_or(0, |w| w[lane]);
            let window = u64::from(words[word][lane]) | u64::from(next) << 32;
            let q = (window >> shift) as u32 & ((1 << layout.bits) - 1);
            *out = scale * q as f32 + bias;
        }
    }
}

/// Expands one row of a float tile.
pub(super) fn float_row(dtype: Dtype, tile: &[u8], lane: usize, out: &mut [f32]) {
    match dtype {
        Dtype::Bf16 | Dtype::F16 => {
            for (line, out) in lines::<u16>(tile).iter().zip(out) {
                *out = match dtype {
                    Dtype::Bf16 => f32::from_bits(u32::from(line[lane]) << 16),
                    _ => half::f16::from_bits(line[lane]).to_f32(),
                };
            }
        }
        Dtype::F32 | Dtype::U32 => {
            for (line, out) in lines::<f32>(tile).iter().zip(out) {
                *out = line[lane];
            }
        }
    }
}
