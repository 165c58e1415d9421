//! Products of many rows: a block of inputs of a few tiles is expanded into a panel that stays in the
//! first-level cache, and the panel is multiplied with every row.
//!
//! The rows are copied first, in the order in which they are read. Where they lie, and where the
//! results go, rows are a multiple of 4 KiB apart, so that the same element of all of them falls into
//! one set of a cache, and they would displace each other and the panel.

use lily_checkpoint::manifest::{Dtype, MatrixFormat, MatrixShape};

use super::TILE;
use super::buffer::{Line, lines};
use super::dequant::{Bf16, F16, F32, expand_affine, expand_float};
use super::gemv::Target;
use super::layout::{AffineLayout, tile_bytes};
use super::rows::XRows;
use crate::simd::{Isa, Kernel, Simd};

/// Inputs of one panel: 16 KiB a tile, and a multiple of every group size.
const DEPTH: usize = 256;

/// Rows that meet all panels of a matrix before the next rows do: their copy and their sums stay in
/// the second-level cache. Expanding the panels again for the next rows costs less.
const ROWS: usize = 96;

/// Working memory of one product.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// `[tile][DEPTH][16]`.
    panel: Vec<Line>,
    /// `[block of inputs][row][input]`.
    x: Vec<f32>,
    /// `[row][tile][16]`.
    sums: Vec<Line>,
}

/// Product of all rows of `x` with consecutive tiles.
pub(super) fn multiply(
    isa: Isa,
    shape: &MatrixShape,
    tiles: &[u8],
    x: &XRows<'_>,
    target: Target<'_>,
    buffers: &mut Buffers,
) {
    let width = isa.gemm_tiles();
    let size = tile_bytes(shape);
    let cols = shape.cols;
    let Buffers { panel, x: copy, sums } = buffers;
    grow(panel, width * DEPTH, Line([0.0; 16]));
    grow(sums, width * ROWS.min(x.len()), Line([0.0; 16]));
    grow(copy, cols * ROWS.min(x.len()), 0.0);
    for row in (0..x.len()).step_by(ROWS) {
        let n_rows = ROWS.min(x.len() - row);
        copy_rows(x, row, n_rows, cols, copy);
        for (i, tiles) in tiles.chunks(width * size).enumerate() {
            let n_tiles = tiles.len() / size;
            for first in (0..cols).step_by(DEPTH) {
                let depth = DEPTH.min(cols - first);
                let last = first + depth == cols;
                let next = if last { width * size } else { tile_offset(shape, first + depth) };
                for (tile, panel) in tiles.chunks_exact(size).zip(panel.chunks_exact_mut(DEPTH)) {
                    let next = tile.as_ptr().wrapping_add(next);
                    expand(isa, shape, (tile, next), first, &mut panel[..depth]);
                }
                let x = &copy[first * n_rows..][..depth * n_rows];
                isa.run(Product { panel, n_tiles, x, n_rows, sums, begins: first == 0 });
            }
            let target = Target { tile: target.tile + i * width, ..target };
            isa.run(Emit { sums, n_tiles, n_rows, row, target });
        }
    }
}

/// What was there before may stay: all that is read is written first.
fn grow<T: Copy>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        buffer.resize(len, value);
    }
}

/// Copies `n_rows` rows from `row` on, `[block of inputs][row][input]`.
fn copy_rows(x: &XRows<'_>, row: usize, n_rows: usize, cols: usize, copy: &mut [f32]) {
    for i in 0..n_rows {
        let x = x.row(row + i, cols);
        for (block, x) in x.chunks(DEPTH).enumerate() {
            let at = block * DEPTH * n_rows + i * x.len();
            copy[at..at + x.len()].copy_from_slice(x);
        }
    }
}

/// Where input `first` of a tile begins, in bytes.
fn tile_offset(shape: &MatrixShape, first: usize) -> usize {
    match shape.format {
        MatrixFormat::Affine { bits, group_size, scale } => {
            let layout = AffineLayout::new(shape.cols, bits, group_size, scale);
            first / group_size * layout.block() * size_of::<[u32; TILE]>()
        }
        MatrixFormat::Float(dtype) => first * TILE * dtype.bytes(),
    }
}

/// Expands inputs `first ..` of a tile, and asks for as many bytes of what comes `next`.
fn expand(
    isa: Isa,
    shape: &MatrixShape,
    (tile, next): (&[u8], *const u8),
    first: usize,
    panel: &mut [Line],
) {
    let tile = &tile[tile_offset(shape, first)..];
    match shape.format {
        MatrixFormat::Affine { bits, group_size, scale } => {
            let layout = AffineLayout::new(shape.cols, bits, group_size, scale);
            let blocks = lines::<u32>(tile);
            macro_rules! run {
                ($bits:literal) => {
                    isa.run(ExpandAffine::<$bits> { layout: &layout, blocks, next, panel })
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
            isa.run(ExpandFloat { dtype, tile, panel });
        }
    }
}

struct ExpandAffine<'a, const BITS: usize> {
    layout: &'a AffineLayout,
    blocks: &'a [[u32; 16]],
    next: *const u8,
    panel: &'a mut [Line],
}

impl<const BITS: usize> Kernel for ExpandAffine<'_, BITS> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        expand_affine::<S, BITS>(s, self.layout, self.blocks, self.next, self.panel);
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

/// One panel times some rows, added to their sums.
struct Product<'a> {
    /// `[tile][DEPTH][16]`.
    panel: &'a [Line],
    n_tiles: usize,
    /// `[row][input]`, as many inputs as the panel has.
    x: &'a [f32],
    n_rows: usize,
    /// `[row][tile][16]`.
    sums: &'a mut [Line],
    /// Whether the sums begin here.
    begins: bool,
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
    fn all_rows<S: Simd, const T: usize>(mut self, s: S) {
        let mut row = 0;
        let blocks = self.n_rows.div_ceil(S::GEMM_ROWS);
        for block in 0..blocks {
            let rows = (self.n_rows - row).div_ceil(blocks - block);
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
    fn block<S: Simd, const T: usize, const R: usize>(&mut self, s: S, row: usize) {
        let depth = self.x.len() / self.n_rows;
        let x: [&[f32]; R] = std::array::from_fn(|r| &self.x[(row + r) * depth..][..depth]);
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
        let (lines, _) = self.sums[row * T..].as_chunks_mut::<T>();
        for (r, lines) in lines[..R].iter_mut().enumerate() {
            for t in 0..T {
                let before = if self.begins { s.zero() } else { s.load(&lines[t].0) };
                s.store(s.add(before, sums[t][r]), &mut lines[t].0);
            }
        }
    }
}

/// Hands the sums of some rows and tiles over.
struct Emit<'a> {
    /// `[row][tile][16]`.
    sums: &'a [Line],
    n_tiles: usize,
    n_rows: usize,
    /// The first of the rows.
    row: usize,
    target: Target<'a>,
}

impl Kernel for Emit<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let of_rows = self.sums.chunks_exact(self.n_tiles).take(self.n_rows);
        for (r, sums) in of_rows.enumerate() {
            for (tile, sum) in sums.iter().enumerate() {
                self.target.emit(s, self.row + r, tile, s.load(&sum.0));
            }
        }
    }
}
