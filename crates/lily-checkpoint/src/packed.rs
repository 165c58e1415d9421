//! Matrices as graphics processors read them.
//!
//! One block of bytes per matrix: first the stored words `[experts][rows][row bytes]`, exactly as in
//! the checkpoint; then, at the next multiple of [`PackedMatrix::ALIGN`], the side table
//! `[experts][rows][groups]` with scale and bias of a group side by side, so that one load fetches
//! both. Float matrices have no side table.

use std::ops::Range;

use crate::checkpoint::{Checkpoint, MatrixPart};
use crate::error::CheckpointError;
use crate::manifest::{MatrixFormat, MatrixShape, WeightShape};

/// Where the parts of a packed matrix lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedMatrix {
    /// What is packed.
    pub shape: MatrixShape,
    /// Bytes of one row of words.
    pub row_bytes: u64,
    /// Bytes of one row of the side table; 0 for float matrices.
    pub side_row_bytes: u64,
    /// Where the side table starts, in bytes.
    pub side_offset: u64,
    /// Size of the whole, in bytes; a multiple of [`PackedMatrix::ALIGN`].
    pub bytes: u64,
}

impl PackedMatrix {
    /// Alignment of the side table and of the size, in bytes.
    pub const ALIGN: u64 = 256;

    /// The layout of a matrix, or `None` where its size overflows.
    pub fn of(shape: &MatrixShape) -> Option<PackedMatrix> {
        let (row_bytes, side_row_bytes) = match shape.format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                let groups = shape.cols.checked_div(group_size)? as u64;
                let words = (shape.cols as u64).checked_mul(u64::from(bits))? / 8;
                (words, groups.checked_mul(2 * scale.bytes() as u64)?)
            }
            MatrixFormat::Float(dtype) => {
                ((shape.cols as u64).checked_mul(dtype.bytes() as u64)?, 0)
            }
        };
        let rows = (shape.n_experts as u64).checked_mul(shape.rows as u64)?;
        let align = |bytes: u64| bytes.checked_next_multiple_of(Self::ALIGN);
        let side_offset = align(rows.checked_mul(row_bytes)?)?;
        let bytes = side_offset.checked_add(align(rows.checked_mul(side_row_bytes)?)?)?;
        Some(PackedMatrix { shape: *shape, row_bytes, side_row_bytes, side_offset, bytes })
    }

    /// Bytes of the words of some rows of one expert.
    pub fn words(&self, expert: usize, rows: &Range<usize>) -> Range<u64> {
        self.rows(0, self.row_bytes, expert, rows)
    }

    /// Bytes of the side table of some rows of one expert.
    pub fn side(&self, expert: usize, rows: &Range<usize>) -> Range<u64> {
        self.rows(self.side_offset, self.side_row_bytes, expert, rows)
    }

    fn rows(&self, start: u64, row_bytes: u64, expert: usize, rows: &Range<usize>) -> Range<u64> {
        let first = (expert * self.shape.rows + rows.start) as u64;
        let at = start + first * row_bytes;
        at..at + rows.len() as u64 * row_bytes
    }
}

impl Checkpoint {
    /// Fills the words of some rows of one expert's matrix: exactly [`PackedMatrix::words`] bytes.
    ///
    /// # Errors
    /// As [`Checkpoint::read_rows`].
    ///
    /// # Panics
    /// As [`Checkpoint::read_rows`].
    pub fn pack_words(
        &self,
        name: &str,
        expert: usize,
        rows: Range<usize>,
        words: &mut [u8],
    ) -> Result<(), CheckpointError> {
        self.read_rows(name, MatrixPart::Weight, expert, rows, words)
    }

    /// Fills the side table of some rows of one expert's matrix: exactly [`PackedMatrix::side`]
    /// bytes, none for float matrices.
    ///
    /// # Errors
    /// As [`Checkpoint::read_rows`].
    ///
    /// # Panics
    /// As [`Checkpoint::read_rows`].
    pub fn pack_side(
        &self,
        name: &str,
        expert: usize,
        rows: Range<usize>,
        side: &mut [u8],
    ) -> Result<(), CheckpointError> {
        if side.is_empty() {
            return Ok(());
        }
        let shape = match self.manifest().get(name).map(|info| info.shape) {
            Some(WeightShape::Matrix(shape)) => shape,
            _ => panic!("{name} is not a matrix"),
        };
        let MatrixFormat::Affine { scale, .. } = shape.format else {
            panic!("{name} has no side table");
        };
        let packed = PackedMatrix::of(&shape).expect("a checkpoint's sizes are checked");
        if self.read_packed(name, packed.side(expert, &rows), side)? {
            return Ok(());
        }
        let width = scale.bytes();
        let mut half = vec![0; side.len() / 2];
        for (part, at) in [(MatrixPart::Scales, 0), (MatrixPart::Biases, width)] {
            self.read_rows(name, part, expert, rows.clone(), &mut half)?;
            for (pair, number) in side.chunks_exact_mut(2 * width).zip(half.chunks_exact(width)) {
                pair[at..at + width].copy_from_slice(number);
            }
        }
        Ok(())
    }

    /// Both parts of some rows, see [`Checkpoint::pack_words`] and [`Checkpoint::pack_side`].
    ///
    /// # Errors
    /// As [`Checkpoint::read_rows`].
    ///
    /// # Panics
    /// As [`Checkpoint::read_rows`].
    pub fn pack_rows(
        &self,
        name: &str,
        expert: usize,
        rows: Range<usize>,
        words: &mut [u8],
        side: &mut [u8],
    ) -> Result<(), CheckpointError> {
        self.pack_words(name, expert, rows.clone(), words)?;
        self.pack_side(name, expert, rows, side)
    }
}
