//! How a matrix-matrix product is cut into threadgroups.

use std::fmt;

use lily_plan::buffer::Elem;

use super::Tuning;

/// What one threadgroup of a matrix-matrix product computes: `rows` by `columns` outputs, `depth`
/// products of each at a time, by `simdgroups.0` by `simdgroups.1` simdgroups.
///
/// As `block<..>` in the kernels. Each simdgroup has a multiple of 16 rows, and of 16 columns (32
/// where two matrices are multiplied together); what is staged fits in 32 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Rows of the activations.
    pub rows: usize,
    /// Columns of the output, or half as many of two matrices.
    pub columns: usize,
    /// Products that are staged at a time.
    pub depth: usize,
    /// Simdgroups along rows and columns.
    pub simdgroups: (usize, usize),
}

impl Block {
    /// Of the grouped products of the experts, each of which has about `slots` rows: twice as many fit in
    /// a block, or as many as a block may have.
    pub(super) fn for_experts(tuning: &Tuning, slots: usize) -> Block {
        let mut rows = tuning.expert_tile_rows;
        while rows > 16 && rows / 2 >= 2 * slots {
            rows /= 2;
        }
        Block { rows, columns: 128, depth: 64, simdgroups: (1, 4) }
    }

    /// For a matrix `[n, k]` and activations of that type.
    pub(super) fn fitting(self, x: Elem, n: usize, k: usize) -> Block {
        let narrow = match n {
            0..=32 => Block { rows: 32, columns: 32, simdgroups: (2, 2), ..self },
            33..=64 => Block { rows: 64, columns: 64, simdgroups: (2, 2), ..self },
            _ => self,
        };
        let block =
            if narrow.columns < self.columns && narrow.rows <= self.rows { narrow } else { self };
        block.fitting_depth(x, k)
    }

    /// For two matrices of `k` columns and activations of that type.
    pub(super) fn fitting_pair(self, x: Elem, k: usize) -> Block {
        self.fitting_depth(x, k)
    }

    /// Whole steps, and half as many numbers where they are twice as long.
    fn fitting_depth(self, x: Elem, k: usize) -> Block {
        let whole = k % self.depth == 0 && x == Elem::Bf16;
        Block { depth: if whole { self.depth } else { 32 }, ..self }
    }

    pub(super) fn threads(self) -> u32 {
        (self.simdgroups.0 * self.simdgroups.1 * 32) as u32
    }
}

/// As the kernels' sources call it.
impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Block { rows, columns, depth, simdgroups: (wm, wn) } = self;
        write!(f, "block<{rows}, {columns}, {depth}, {wm}, {wn}>")
    }
}
