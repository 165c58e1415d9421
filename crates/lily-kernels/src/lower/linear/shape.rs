//! How a matrix-vector product is cut into threadgroups.

use lily_checkpoint::manifest::MatrixFormat;

use crate::launch::Extent;
use crate::lower::Tuning;

/// Threadgroups that keep a large machine busy; smaller ones are kept busy by fewer.
const ENOUGH_GROUPS: usize = 128;

/// 32-bit words of weights that a lane may have in flight: as in `row_plan` of the kernels.
const WORDS_IN_FLIGHT: usize = 32;

/// Rows of the matrix per simdgroup, and simdgroups per threadgroup.
///
/// It depends on the matrix alone, not on how many rows are multiplied: the sum of squares of a folded
/// norm is added up simdgroup by simdgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lower) struct Shape {
    pub(in crate::lower) rows: usize,
    pub(in crate::lower) simdgroups: usize,
}

impl Shape {
    /// For the matrices `[n, k]` of one step that are dealt to one grid; `most_rows` a power of two.
    ///
    /// Many rows per simdgroup share the reads of the activations, but only while whole rows fit in
    /// flight and enough threadgroups are left.
    pub(in crate::lower) fn choose(
        tuning: &Tuning,
        formats: &[MatrixFormat],
        ns: &[usize],
        k: usize,
        most_rows: usize,
    ) -> Shape {
        let words = formats.iter().map(|f| row_bits(f, k).div_ceil(32 * 32)).max().unwrap_or(1);
        let smallest = ns.iter().copied().min().unwrap_or(1);
        let groups = |rows: usize, simdgroups: usize| -> usize {
            ns.iter().map(|n| n.div_ceil(rows * simdgroups)).sum()
        };
        let mut rows = most_rows.min(tuning.matvec_rows).max(1);
        let mut simdgroups = tuning.matvec_simdgroups;
        while rows > 1
            && (rows * words > WORDS_IN_FLIGHT
                || rows > smallest
                || groups(rows, simdgroups) < ENOUGH_GROUPS)
        {
            rows /= 2;
        }
        if rows == 1
            && words >= WORDS_IN_FLIGHT / 2
            && groups(rows, 2 * simdgroups) >= ENOUGH_GROUPS
        {
            // Long rows take long to stage: more simdgroups share that.
            simdgroups *= 2;
        }
        while simdgroups > 2 && groups(rows, simdgroups) < ENOUGH_GROUPS {
            simdgroups /= 2;
        }
        Shape { rows, simdgroups }
    }

    /// Threadgroups for a matrix of `n` rows.
    pub(in crate::lower) fn groups(self, n: usize) -> usize {
        n.div_ceil(self.rows * self.simdgroups)
    }

    pub(in crate::lower) fn threads(self) -> u32 {
        self.simdgroups as u32 * 32
    }
}

fn row_bits(format: &MatrixFormat, k: usize) -> usize {
    match format {
        MatrixFormat::Affine { bits, .. } => k * *bits as usize,
        MatrixFormat::Float(dtype) => k * 8 * dtype.bytes(),
    }
}

/// One threadgroup per unit of each active row.
pub(in crate::lower) fn row_extent(rows: usize, units_per_row: usize) -> Extent {
    match rows {
        1 => Extent::Fixed(units_per_row as u32),
        _ => Extent::Rows { units_per_row: units_per_row as u32, per_group: 1, extra: 0 },
    }
}
