//! Weight matrices in memory and products with them.
//!
//! The one idea: 16 output rows lie side by side. One vector lane is one output row, the input is
//! broadcast, so there are no horizontal sums, any group size fits, and the layout that streams
//! through a matrix-vector product is also the one a matrix-matrix product expands into its panels.
//!
//! Every sum runs in `f32` over exactly dequantised weights, in an order that depends neither on
//! the number of threads nor on how tiles are split into tasks.

mod rows;

pub use rows::{OutRows, RowIndex, XRows};

use std::ops::Range;

use lily_checkpoint::manifest::{Dtype, MatrixFormat, MatrixShape, WeightInfo, WeightShape};
use lily_checkpoint::{Checkpoint, MatrixPart};
use lily_device::DeviceError;

use crate::pool::{Pool, SharedSlice};
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

/// Working memory of one thread; grows to what its largest product needs.
#[derive(Debug, Default)]
pub struct Scratch {
    row: Vec<f32>,
}

/// A matrix, or one per expert, repacked into tiles.
#[derive(Debug)]
pub struct Matrix {
    shape: MatrixShape,
    isa: Isa,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

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

    /// Packs the rows that `read` delivers as [`Checkpoint::read_rows`] does; `read` is called from
    /// many threads.
    ///
    /// # Errors
    /// The first error of `read`, or [`DeviceError::Memory`].
    pub fn pack(
        _name: &str,
        shape: MatrixShape,
        isa: Isa,
        _pool: &Pool,
        progress: &(dyn Fn(u64) + Sync),
        read: &(
             dyn Fn(MatrixPart, usize, Range<usize>, &mut [u8]) -> Result<(), DeviceError> + Sync
         ),
    ) -> Result<Matrix, DeviceError> {
        let whole = |part, row_bytes: usize| {
            let mut all = vec![0; shape.n_experts * shape.rows * row_bytes];
            if row_bytes > 0 {
                for (expert, out) in all.chunks_exact_mut(shape.rows * row_bytes).enumerate() {
                    read(part, expert, 0..shape.rows, out)?;
                }
            }
            progress(all.len() as u64);
            Ok(all)
        };
        let (weight, side) = match shape.format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                (shape.cols * bits as usize / 8, shape.cols / group_size * scale.bytes())
            }
            MatrixFormat::Float(dtype) => (shape.cols * dtype.bytes(), 0),
        };
        Ok(Matrix {
            shape,
            isa,
            weight: whole(MatrixPart::Weight, weight)?,
            scales: whole(MatrixPart::Scales, side)?,
            biases: whole(MatrixPart::Biases, side)?,
        })
    }

    /// Shape and format, as stored.
    pub fn shape(&self) -> &MatrixShape {
        &self.shape
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        (self.weight.len() + self.scales.len() + self.biases.len()) as u64
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
        let per_task = tiles.div_ceil(threads.max(1) * 4).max(8);
        per_task.min(self.n_tiles()).max(1)
    }

    /// Widens one stored row, such as an embedding.
    ///
    /// # Panics
    /// When the row does not exist or `out` is not one row long.
    pub fn row_to_f32(&self, expert: usize, row: usize, out: &mut [f32]) {
        let MatrixShape { n_experts, rows, cols, format } = self.shape;
        assert!(expert < n_experts && row < rows && out.len() == cols);
        let at = expert * rows + row;
        match format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                let bits = bits as usize;
                let groups = cols / group_size;
                let bytes = &self.weight[at * cols * bits / 8..][..cols * bits / 8];
                for (j, out) in out.iter_mut().enumerate() {
                    let (byte, shift) = (j * bits / 8, j * bits % 8);
                    let next = bytes.get(byte + 1).copied().unwrap_or(0);
                    let q = (u16::from_le_bytes([bytes[byte], next]) >> shift) & ((1 << bits) - 1);
                    let group = at * groups + j / group_size;
                    let s = float(&self.scales, scale, group);
                    *out = s * f32::from(q) + float(&self.biases, scale, group);
                }
            }
            MatrixFormat::Float(dtype) => {
                for (j, out) in out.iter_mut().enumerate() {
                    *out = float(&self.weight, dtype, at * cols + j);
                }
            }
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
        assert!(tiles.end <= self.n_tiles(), "tiles outside the matrix");
        assert_eq!(x.len(), out.len(), "one output row per input row");
        let cols = self.shape.cols;
        scratch.row.resize(cols, 0.0);
        for row in tiles.start * TILE..(tiles.end * TILE).min(self.shape.rows) {
            self.row_to_f32(expert, row, &mut scratch.row);
            for i in 0..x.len() {
                let dot: f32 = x.row(i, cols).iter().zip(&scratch.row).map(|(x, w)| x * w).sum();
                let out = &mut out.part(i, row, 1)[0];
                *out = if mode == Mode::Accumulate { *out + dot } else { dot };
            }
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
        gate.multiply(expert, tiles.clone(), x, out, Mode::Overwrite, scratch);
        let first = tiles.start * TILE;
        let n = (tiles.end * TILE).min(gate.shape.rows) - first;
        let mut product = vec![0.0; x.len() * gate.shape.rows];
        let index = RowIndex::Contiguous { first: 0, count: x.len() };
        let upward = OutRows::exclusive(&mut product, gate.shape.rows, index);
        up.multiply(expert, tiles, x, &upward, Mode::Overwrite, scratch);
        for i in 0..x.len() {
            for (g, u) in out.part(i, first, n).iter_mut().zip(&*upward.part(i, first, n)) {
                *g = *g / (1.0 + (-*g).exp()) * u;
            }
        }
    }
}

fn float(bytes: &[u8], dtype: Dtype, i: usize) -> f32 {
    match dtype {
        Dtype::Bf16 => half::bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        Dtype::F16 => half::f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        Dtype::F32 | Dtype::U32 => {
            f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("four bytes"))
        }
    }
}
