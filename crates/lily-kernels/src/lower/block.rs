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
        block.fitting_pair(x, k)
    }

    /// For two matrices of `k` columns and activations of that type. `f32` has tiles of twice the size, so
    /// a large block would leave a thread no registers.
    pub(super) fn fitting_pair(self, x: Elem, k: usize) -> Block {
        let large = self.rows * self.columns > 64 * 128;
        let block = match x {
            Elem::F32 if large => Block { rows: 64, columns: 64, simdgroups: (2, 2), ..self },
            _ => self,
        };
        block.fitting_depth(x, k)
    }

    /// Whole steps, and half as many numbers where they are twice as long.
    fn fitting_depth(self, x: Elem, k: usize) -> Block {
        let whole = k.is_multiple_of(self.depth) && x == Elem::Bf16;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As `block_memory` in kernels/common/matmul.h.
    fn threadgroup_bytes(block: Block, x: Elem) -> usize {
        let elem = x.bytes() as usize;
        let staged = (block.rows + block.columns) * (block.depth + 16 / elem) * elem;
        let (wm, wn) = block.simdgroups;
        let sums = wm * wn * 16 * (block.columns / wn + 4) * 4;
        staged.max(sums)
    }

    fn every_block() -> Vec<(Block, Elem, usize)> {
        let mut blocks = Vec::new();
        for tuning in [Tuning::default(), Tuning::nvidia()] {
            for x in [Elem::F32, Elem::Bf16] {
                for k in [32, 96, 2048] {
                    for n in [1, 32, 33, 64, 65, 8192] {
                        blocks.push((tuning.matmul_block.fitting(x, n, k), x, k));
                        for slots in [0, 5, 16, 128] {
                            blocks.push((
                                Block::for_experts(&tuning, slots).fitting(x, n, k),
                                x,
                                k,
                            ));
                        }
                    }
                    blocks.push((tuning.matmul_block.fitting_pair(x, k), x, k));
                }
            }
        }
        blocks
    }

    #[test]
    fn every_block_fits_the_memory_of_a_threadgroup_on_metal() {
        for (block, x, _) in every_block() {
            assert!(threadgroup_bytes(block, x) <= 32 << 10, "{block} of {x:?}");
        }
    }

    #[test]
    fn steps_are_whole_and_simdgroups_have_whole_tiles() {
        for (block, _, k) in every_block() {
            assert_eq!(k % block.depth, 0, "{block}, k {k}");
            assert_eq!(block.rows / block.simdgroups.0 % 16, 0, "{block}");
            assert_eq!(block.columns / block.simdgroups.1 % 16, 0, "{block}");
            assert!(block.threads() <= 1024, "{block}");
        }
    }

    #[test]
    fn both_matrices_of_a_pair_have_whole_tiles_in_each_simdgroup() {
        for tuning in [Tuning::default(), Tuning::nvidia()] {
            for block in [tuning.matmul_block, Block::for_experts(&tuning, 64)] {
                let block = block.fitting_pair(Elem::Bf16, 2048);
                assert_eq!(block.columns / block.simdgroups.1 % 32, 0, "{block}");
            }
        }
    }

    #[test]
    fn few_slots_per_expert_get_a_small_block() {
        let rows = |slots| Block::for_experts(&Tuning::nvidia(), slots).rows;
        assert_eq!([0, 8, 9, 16, 17, 128].map(rows), [16, 16, 32, 32, 64, 64]);
    }
}
