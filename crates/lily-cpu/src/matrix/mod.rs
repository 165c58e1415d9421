//! Weight matrices in memory and products with them.
//!
//! The one idea: 16 output rows lie side by side. One vector lane is one output row, the input is
//! broadcast, so there are no horizontal sums, any group size fits, and the layout that streams
//! through a matrix-vector product is also the one a matrix-matrix product expands into its panels.
//!
//! Every sum runs in `f32` over exactly dequantised weights, in an order that depends neither on
//! the number of threads nor on how tiles are split into tasks; or, where the machine multiplies bytes,
//! in whole numbers over inputs that are rounded no more than such sums are.

mod buffer;
mod dequant;
mod digits;
mod gemm;
mod gemv;
mod layout;
mod load;
mod rows;
#[cfg(test)]
mod tests;

pub(crate) use dequant::{Bf16, F32, Stored};
pub use rows::{OutRows, RowIndex, XRows};

use std::ops::Range;

use lily_checkpoint::manifest::{MatrixFormat, MatrixShape, WeightInfo, WeightShape};
use lily_checkpoint::{Checkpoint, MatrixPart};
use lily_device::DeviceError;

use self::buffer::{Buffer, lines};
use self::digits::Digits;
use self::gemv::{Prepared, Target};
use self::layout::{AffineLayout, tile_bytes};
use crate::pool::Pool;
use crate::simd::Isa;

/// Output rows that lie side by side.
pub const TILE: usize = 16;

/// What happens to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `out = x Wᵀ`.
    Overwrite,
    /// `out += x Wᵀ`.
    Accumulate,
}

/// Delivers rows of one part of one expert, as [`Checkpoint::read_rows`] does.
pub type ReadRows<'a> =
    dyn Fn(MatrixPart, usize, Range<usize>, &mut [u8]) -> Result<(), DeviceError> + Sync + 'a;

/// Working memory of one thread; grows to what its largest product needs.
///
/// It remembers which inputs it has prepared last, so that the tasks of a step, and steps that read
/// the same inputs, prepare them once: whoever changes inputs in place calls [`Scratch::forget`].
#[derive(Debug, Default)]
pub struct Scratch {
    ready: Option<Inputs>,
    prepared: Prepared,
    digits: Digits,
    gemm: gemm::Buffers,
    up: Vec<f32>,
}

impl Scratch {
    /// Inputs may have changed since the last product.
    pub fn forget(&mut self) {
        self.ready = None;
    }
}

/// Rows that products stream the weights for.
const STREAMED: usize = 4;

/// What prepared inputs depend on, besides the values of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inputs {
    /// Addresses of the rows.
    rows: [Option<usize>; STREAMED],
    bits: usize,
    groups: usize,
    chunks: usize,
    isa: Isa,
}

/// A matrix, or one per expert, repacked into tiles.
#[derive(Debug)]
pub struct Matrix {
    shape: MatrixShape,
    isa: Isa,
    tiles: Buffer,
}

/// Bytes that one task reads at most, more or less: the last tasks of a product end together.
const TASK_BYTES: usize = 1 << 20;

/// Output columns that [`Matrix::multiply_gated`] computes before it combines them.
const GATED_TILES: usize = 8;

impl Matrix {
    /// Reads a matrix of the checkpoint with all threads of the pool; `progress` hears of the bytes
    /// read, from any thread.
    ///
    /// # Errors
    /// [`DeviceError::Read`] when a file fails, [`DeviceError::Memory`] when memory runs out.
    ///
    /// # Panics
    /// When `info` is not a matrix.
    pub fn load(
        checkpoint: &Checkpoint,
        info: &WeightInfo,
        isa: Isa,
        pool: &Pool,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Matrix, DeviceError> {
        let WeightShape::Matrix(shape) = info.shape else {
            panic!("{} is not a matrix", info.name)
        };
        let read = |part, expert, rows: Range<usize>, out: &mut [u8]| {
            checkpoint.read_rows(&info.name, part, expert, rows, out).map_err(|source| {
                DeviceError::Read { name: info.name.clone(), source: Box::new(source) }
            })
        };
        Self::pack(&info.name, shape, isa, pool, progress, &read)
    }

    /// Packs the rows that `read` delivers; it is called from many threads.
    ///
    /// # Errors
    /// The first error of `read`, or [`DeviceError::Memory`].
    ///
    /// # Panics
    /// When the machine lacks the instruction set.
    pub fn pack(
        name: &str,
        shape: MatrixShape,
        isa: Isa,
        pool: &Pool,
        progress: &(dyn Fn(u64) + Sync),
        read: &ReadRows<'_>,
    ) -> Result<Matrix, DeviceError> {
        assert!(isa.is_available(), "this machine has no {isa}");
        let tiles = load::pack(name, &shape, pool, progress, read)?;
        Ok(Matrix { shape, isa, tiles })
    }

    /// Shape and format, as stored.
    pub fn shape(&self) -> &MatrixShape {
        &self.shape
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.tiles.bytes().len() as u64
    }

    /// Tiles of one expert.
    pub fn n_tiles(&self) -> usize {
        self.shape.rows.div_ceil(TILE)
    }

    /// How many tiles one task should take when `products` products of this shape run at once on
    /// `threads` threads: a few tasks per thread for balance, not so few tiles that setting up a
    /// task costs more than it gains.
    pub fn tiles_per_task(&self, products: usize, threads: usize) -> usize {
        let tiles = self.n_tiles() * products;
        let most = (TASK_BYTES / tile_bytes(&self.shape)).max(8);
        let per_task = tiles.div_ceil(threads.max(1) * 4).clamp(8, most);
        per_task.min(self.n_tiles()).max(1)
    }

    /// Widens one stored row, such as an embedding.
    ///
    /// # Panics
    /// When the row does not exist or `out` is not one row long.
    pub fn row_to_f32(&self, expert: usize, row: usize, out: &mut [f32]) {
        let MatrixShape { rows, cols, format, .. } = self.shape;
        assert!(row < rows, "row outside the matrix");
        assert_eq!(out.len(), cols, "one element per input");
        let tile = self.tiles(expert, row / TILE..row / TILE + 1);
        match format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                let layout = AffineLayout::new(cols, bits, group_size, scale);
                dequant::affine_row(&layout, lines(tile), row % TILE, out);
            }
            MatrixFormat::Float(dtype) => dequant::float_row(dtype, tile, row % TILE, out),
        }
    }

    /// Multiplies rows of `x` with one expert's output rows `16 * tiles.start ..`, and writes (or
    /// adds to) those columns of `out`: `out[r][j] = Σ_k x[r][k] · W[j][k]`.
    ///
    /// # Panics
    /// When the expert, the tiles or the rows do not exist, or the row counts differ.
    pub fn multiply(
        &self,
        expert: usize,
        tiles: Range<usize>,
        x: &XRows<'_>,
        out: &OutRows<'_>,
        mode: Mode,
        scratch: &mut Scratch,
    ) {
        assert_eq!(x.len(), out.len(), "one output row per input row");
        let target = Target { out, tile: tiles.start, n: self.shape.rows, mode };
        let tiles = self.tiles(expert, tiles);
        if x.is_empty() || tiles.is_empty() {
            return;
        }
        if !self.streams(x.len()) {
            gemm::multiply(self.isa, &self.shape, tiles, x, target, &mut scratch.gemm);
            return;
        }
        let cols = self.shape.cols;
        match self.shape.format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                let layout = AffineLayout::new(cols, bits, group_size, scale);
                self.prepare(&layout, x, scratch);
                let (tiles, n_rows) = (lines(tiles), x.len());
                if digits::takes(self.isa, layout.bits) {
                    digits::affine(self.isa, &layout, tiles, &scratch.digits, n_rows, target);
                } else {
                    gemv::affine(self.isa, &layout, tiles, &scratch.prepared, n_rows, target);
                }
            }
            MatrixFormat::Float(dtype) => gemv::float(self.isa, dtype, cols, tiles, x, target),
        }
    }

    /// `out = silu(x Wgᵀ) * (x Wuᵀ)` for two matrices of one shape; otherwise as
    /// [`Matrix::multiply`].
    ///
    /// # Panics
    /// As [`Matrix::multiply`], and when the shapes differ.
    pub fn multiply_gated(
        gate: &Matrix,
        up: &Matrix,
        expert: usize,
        tiles: Range<usize>,
        x: &XRows<'_>,
        out: &OutRows<'_>,
        scratch: &mut Scratch,
    ) {
        assert_eq!((gate.shape.rows, gate.shape.cols), (up.shape.rows, up.shape.cols));
        let mut product = std::mem::take(&mut scratch.up);
        product.resize(x.len() * GATED_TILES * TILE, 0.0);
        for first in tiles.clone().step_by(GATED_TILES) {
            let some = first..(first + GATED_TILES).min(tiles.end);
            let n = (some.end * TILE).min(gate.shape.rows) - first * TILE;
            gate.multiply(expert, some.clone(), x, out, Mode::Overwrite, scratch);
            let index = RowIndex::Contiguous { first: 0, count: x.len() };
            let upward = OutRows::exclusive(&mut product, GATED_TILES * TILE, index)
                .starting_at(first * TILE);
            up.multiply(expert, some, x, &upward, Mode::Overwrite, scratch);
            for (i, up) in product.chunks_exact(GATED_TILES * TILE).enumerate() {
                for (g, u) in out.part(i, first * TILE, n).iter_mut().zip(up) {
                    *g = *g / (1.0 + (-*g).exp()) * u;
                }
            }
        }
        scratch.up = product;
    }

    /// Whether few enough rows come to stream the weights instead of expanding them.
    fn streams(&self, n_rows: usize) -> bool {
        match self.shape.format {
            MatrixFormat::Affine { bits: 4 | 8, .. } => n_rows <= STREAMED,
            _ => n_rows <= 1,
        }
    }

    /// Makes the inputs of a streamed product ready, unless they are.
    fn prepare(&self, layout: &AffineLayout, x: &XRows<'_>, scratch: &mut Scratch) {
        let AffineLayout { bits, groups, chunks, .. } = *layout;
        let cols = self.shape.cols;
        let rows = std::array::from_fn(|i| (i < x.len()).then(|| x.row(i, cols).as_ptr().addr()));
        let inputs = Some(Inputs { rows, bits, groups, chunks, isa: self.isa });
        if scratch.ready == inputs {
            return;
        }
        if digits::takes(self.isa, bits) {
            scratch.digits.fill(self.isa, layout, x);
        } else {
            scratch.prepared.fill(self.isa, layout, x);
        }
        scratch.ready = inputs;
    }

    /// Consecutive tiles of one expert.
    fn tiles(&self, expert: usize, tiles: Range<usize>) -> &[u8] {
        assert!(expert < self.shape.n_experts, "no such expert");
        assert!(tiles.start <= tiles.end && tiles.end <= self.n_tiles(), "no such tiles");
        let size = tile_bytes(&self.shape);
        let first = (expert * self.n_tiles() + tiles.start) * size;
        &self.tiles.bytes()[first..first + tiles.len() * size]
    }
}
