//! Where each number of a packed matrix lies.
//!
//! A matrix is experts of tiles; a tile is 16 output rows. An affine tile is a sequence of blocks,
//! one per group of inputs: a header with scale and bias of the 16 rows, then the group's words,
//! `[word][16 rows]`. A float tile is `[input][16 rows]`. Rows past the last are zero.

use lily_checkpoint::manifest::{Dtype, MatrixFormat, MatrixShape};

use super::TILE;

/// Inputs whose bit stream fills whole words at every width: `32 * bits` bits are `bits` words.
pub(super) const CHUNK: usize = 32;

/// Sizes of an affine tile, in lines of 16 words.
#[derive(Clone, Copy, Debug)]
pub(super) struct AffineLayout {
    pub(super) bits: usize,
    pub(super) scale: Dtype,
    /// Groups of a row.
    pub(super) groups: usize,
    /// Chunks of a group.
    pub(super) chunks: usize,
    /// Lines before the words of a group: one with scale and bias as halves of a word, or one of
    /// scales and one of biases.
    pub(super) header: usize,
}

impl AffineLayout {
    pub(super) fn new(cols: usize, bits: u32, group_size: usize, scale: Dtype) -> Self {
        assert!(group_size.is_multiple_of(CHUNK) && cols.is_multiple_of(group_size));
        AffineLayout {
            bits: bits as usize,
            scale,
            groups: cols / group_size,
            chunks: group_size / CHUNK,
            header: if scale == Dtype::F32 { 2 } else { 1 },
        }
    }

    /// Lines of one group.
    pub(super) fn block(&self) -> usize {
        self.header + self.chunks * self.bits
    }

    /// Lines of one tile.
    pub(super) fn tile(&self) -> usize {
        self.groups * self.block()
    }
}

/// Bytes of one tile.
pub(super) fn tile_bytes(shape: &MatrixShape) -> usize {
    match shape.format {
        MatrixFormat::Affine { bits, group_size, scale } => {
            AffineLayout::new(shape.cols, bits, group_size, scale).tile() * TILE * 4
        }
        MatrixFormat::Float(dtype) => shape.cols * TILE * dtype.bytes(),
    }
}

/// How value `j` of a chunk is taken out of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Masked where it lies in the low half of the word: yields `q << shift`.
    Low { word: usize, shift: u32 },
    /// The same in the high half, after one shift by 16 that its neighbours share.
    High { word: usize, shift: u32 },
    /// Shifted down and masked: yields `q`.
    Across { word: usize, shift: u32 },
    /// Begins in one word and ends in the next: yields `q`.
    Split { word: usize, shift: u32 },
}

impl Place {
    pub(super) const fn of(bits: usize, j: usize) -> Place {
        let (word, shift) = (j * bits / 32, (j * bits % 32) as u32);
        let end = shift + bits as u32;
        if end <= 16 {
            Place::Low { word, shift }
        } else if shift >= 16 && end <= 32 {
            Place::High { word, shift: shift - 16 }
        } else if end <= 32 {
            Place::Across { word, shift }
        } else {
            Place::Split { word, shift }
        }
    }

    /// What the extracted number must be multiplied with: a power of two, so nothing is rounded.
    pub(super) const fn factor(self) -> f32 {
        match self {
            Place::Low { shift, .. } | Place::High { shift, .. } => 1.0 / (1u32 << shift) as f32,
            Place::Across { .. } | Place::Split { .. } => 1.0,
        }
    }
}

/// Factors of a chunk.
pub(super) const fn factors(bits: usize) -> [f32; CHUNK] {
    let mut all = [1.0; CHUNK];
    let mut j = 0;
    while j < CHUNK {
        all[j] = Place::of(bits, j).factor();
        j += 1;
    }
    all
}
