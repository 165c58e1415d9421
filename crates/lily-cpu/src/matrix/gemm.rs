//! Products of many rows: a block of inputs of a tile is expanded into a panel that fits the
//! first-level cache, and the panel is multiplied with every row.

use std::ops::Range;

use lily_checkpoint::manifest::{Dtype, MatrixFormat, MatrixShape};

use super::buffer::{Line, lines};
use super::dequant::{Bf16, F16, F32, expand_affine, expand_float};
use super::gemv::Target;
use super::layout::{AffineLayout, tile_bytes};
use super::rows::XRows;
use super::{Mode, TILE};
use crate::simd::{Isa, Kernel, Simd};

/// Inputs of one panel: 16 KiB, and a multiple of every group size.
const DEPTH: usize = 256;

/// Rows that meet all panels of a block of inputs before the next rows do: their part of `x` stays
/// in the second-level cache. Expanding the panels again for the next rows costs less.
const ROWS: usize = 96;

/// Product of all rows of `x` with consecutive tiles.
pub(super) fn multiply(
    isa: Isa,
    shape: &MatrixShape,
    tiles: &[u8],
    x: &XRows<'_>,
    target: Target<'_>,
    panel: &mut Vec<Line>,
) {
    let width = isa.gemm_tiles();
    panel.resize(width * DEPTH, Line([0.0; 16]));
    let size = tile_bytes(shape);
    let cols = shape.cols;
    for row in (0..x.len()).step_by(ROWS) {
        let rows = row..(row + ROWS).min(x.len());
        for first in (0..cols).step_by(DEPTH) {
            let depth = DEPTH.min(cols - first);
            let mode = if first == 0 { target.mode } else { Mode::Accumulate };
            for (i, tiles) in tiles.chunks(width * size).enumerate() {
                for (tile, panel) in tiles.chunks_exact(size).zip(panel.chunks_exact_mut(DEPTH)) {
                    expand(isa, shape, tile, first, &mut panel[..depth]);
                }
                let target = Target { tile: target.tile + i * width, mode, ..target };
                let (n_tiles, rows) = (tiles.len() / size, rows.clone());
                isa.run(Product { panel, n_tiles, first, depth, cols, x, rows, target });
            }
        }
    }
}

/// Expands inputs `first ..` of a tile.
fn expand(isa: Isa, shape: &MatrixShape, tile: &[u8], first: usize, panel: &mut [Line]) {
    match shape.format {
        MatrixFormat::Affine { bits, group_size, scale } => {
            let layout = AffineLayout::new(shape.cols, bits, group_size, scale);
            let blocks = &lines::<u32>(tile)[first / group_size * layout.block()..];
            macro_rules! run {
                ($bits:literal) => {
                    isa.run(ExpandAffine::<$bits> { layout: &layout, blocks, panel })
                };
            }
            match bits {
                2 => run!(2),
                3 => run!(3),
                4 => run!(4),
                5 => run!(5),
                6 => run!(6),
                8 => run!(8),
                bits => unreachable!("{bits} bits passed the checkpoint's checks"),
            }
        }
        MatrixFormat::Float(dtype) => {
            let tile = &tile[first * TILE * dtype.bytes()..];
            isa.run(ExpandFloat { dtype, tile, panel });
        }
    }
}

struct ExpandAffine<'a, const BITS: usize> {
    layout: &'a AffineLayout,
    blocks: &'a [[u32; 16]],
    panel: &'a mut [Line],
}

impl<const BITS: usize> Kernel for ExpandAffine<'_, BITS> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        expand_affine::<S, BITS>(s, self.layout, self.blocks, self.panel);
    }
}

struct ExpandFloat<'a> {
    dtype: Dtype,
    tile: &'a [u8],
    panel: &'a mut [Line],
}

impl Kernel for ExpandFloat<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.dtype {
            Dtype::Bf16 => expand_float::<S, Bf16>(s, lines(self.tile), self.panel),
            Dtype::F16 => expand_float::<S, F16>(s, lines(self.tile), self.panel),
            Dtype::F32 | Dtype::U32 => expand_float::<S, F32>(s, lines(self.tile), self.panel),
        }
    }
}

/// One panel times some rows.
struct Product<'a> {
    /// `[tile][DEPTH][16]`.
    panel: &'a [Line],
    n_tiles: usize,
    /// First input and number of inputs in the panel.
    first: usize,
    depth: usize,
    cols: usize,
    x: &'a XRows<'a>,
    rows: Range<usize>,
    target: Target<'a>,
}

impl Kernel for Product<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::GEMM_TILES == 2 && self.n_tiles == 2 {
            self.all_rows::<S, 2>(s);
        } else {
            self.all_rows::<S, 1>(s);
        }
    }
}

impl Product<'_> {
    /// Rows in blocks of nearly equal size.
    #[inline(always)]
    fn all_rows<S: Simd, const T: usize>(&self, s: S) {
        let Range { start: mut row, end } = self.rows;
        let blocks = (end - row).div_ceil(S::GEMM_ROWS);
        for block in 0..blocks {
            let rows = (end - row).div_ceil(blocks - block);
            macro_rules! dispatch {
                ($($r:literal)*) => {
                    match rows {
                        $($r if $r <= S::GEMM_ROWS => self.block::<S, T, $r>(s, row),)*
                        _ => unreachable!("blocks have at most GEMM_ROWS rows"),
                    }
                };
            }
            dispatch!(1 2 3 4 5 6 7 8 9 10 11 12);
            row += rows;
        }
    }

    /// `R` rows times `T` tiles, all sums in registers.
    #[inline(always)]
    fn block<S: Simd, const T: usize, const R: usize>(&self, s: S, row: usize) {
        let depth = self.depth;
        let x: [&[f32]; R] = std::array::from_fn(|r| {
            &self.x.row(row + r, self.cols)[self.first..self.first + depth]
        });
        let panels: [&[Line]; T] =
            std::array::from_fn(|t| &self.panel[t * DEPTH..t * DEPTH + depth]);
        let mut sums = [[s.zero(); R]; T];
        for k in 0..depth {
            let mut w = [s.zero(); T];
            for t in 0..T {
                // SAFETY: every panel has `depth` lines.
                w[t] = s.load(unsafe { &panels[t].get_unchecked(k).0 });
            }
            for r in 0..R {
                // SAFETY: every row slice has `depth` elements.
                let x = s.splat(unsafe { *x[r].get_unchecked(k) });
                for t in 0..T {
                    sums[t][r] = s.mul_add(x, w[t], sums[t][r]);
                }
            }
        }
        for (t, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                self.target.emit(s, row + r, t, sum);
            }
        }
    }
}
