//! How a matrix-vector product is cut into threadgroups.

use lily_checkpoint::manifest::MatrixFormat;

use crate::launch::Extent;
use crate::lower::Tuning;

/// Threadgroups that keep a large machine busy; smaller ones are kept busy by fewer.
const ENOUGH_GROUPS: usize = 128;

/// Fewer threadgroups than this leave most of any machine idle, however small they are.
const FEW_GROUPS: usize = 8;

/// 32-bit words of weights that a lane has in flight, as in `row_plan` of the kernels; half of them are
/// enough to keep memory busy.
const WORDS_IN_FLIGHT: usize = 32;

/// Activations that a thread stages at most, of at most so many at a time: as in the kernels.
const MOST_STAGED: usize = 32;
const LARGE_TILE: usize = 4096;

/// Longest row of activations that is staged as one tile: as in the kernels.
pub(super) const WHOLE_TILE: usize = 5120;

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
    /// Rows of one simdgroup share the reads of the activations; so there are as many as fit in flight
    /// whole, unless one alone is enough or too few threadgroups would be left.
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
        let least_simdgroups =
            k.min(LARGE_TILE).div_ceil(32 * MOST_STAGED).next_power_of_two().max(2);
        let enough = |rows, simdgroups| groups(rows, simdgroups) >= ENOUGH_GROUPS;

        let mut rows = most_rows.min(tuning.matvec_rows).max(1);
        let mut simdgroups = tuning.matvec_simdgroups.max(least_simdgroups);
        if 2 * words >= WORDS_IN_FLIGHT {
            rows = 1;
        }
        while rows > 1
            && (rows * words > WORDS_IN_FLIGHT || rows > smallest || !enough(rows, simdgroups))
        {
            rows /= 2;
        }
        // Long rows take long to stage: more simdgroups share that.
        if 2 * words >= WORDS_IN_FLIGHT && enough(rows, 2 * simdgroups) {
            simdgroups *= 2;
        }
        while simdgroups > least_simdgroups && !enough(rows, simdgroups) {
            simdgroups /= 2;
        }
        // A handful of rows, such as the shared expert's gate alone: more threads stage for them.
        if groups(rows, simdgroups) < FEW_GROUPS {
            simdgroups = simdgroups.max(4);
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

#[cfg(test)]
mod tests {
    use lily_checkpoint::manifest::Dtype;

    use super::*;

    fn shape(bits: u32, ns: &[usize], k: usize) -> Shape {
        let format = MatrixFormat::Affine { bits, group_size: 64, scale: Dtype::Bf16 };
        Shape::choose(&Tuning::default(), &[format], ns, k, 4)
    }

    #[test]
    fn the_projections_of_the_35b_shape_are_cut_as_measured() {
        assert_eq!(shape(4, &[8192, 4096, 32, 32], 2048), Shape { rows: 4, simdgroups: 8 });
        assert_eq!(shape(4, &[2048], 4096), Shape { rows: 1, simdgroups: 16 });
        assert_eq!(shape(8, &[256, 1], 2048), Shape { rows: 1, simdgroups: 2 });
        assert_eq!(shape(4, &[248_320], 2048), Shape { rows: 4, simdgroups: 8 });
        assert_eq!(shape(8, &[1], 2048), Shape { rows: 1, simdgroups: 4 });
    }

    #[test]
    fn a_simdgroup_never_takes_more_rows_than_the_smallest_matrix_has() {
        for smallest in 1..5 {
            assert!(shape(4, &[100_000, smallest], 128).rows <= smallest);
        }
    }

    #[test]
    fn threadgroups_cover_every_row_and_stay_within_1024_threads() {
        for bits in [2, 3, 4, 5, 6, 8] {
            for k in [32, 128, 2048, 4096, 5120, 17408] {
                for n in [1, 2, 33, 2048, 248_320] {
                    let shape = shape(bits, &[n], k);
                    assert!(shape.threads() <= 1024 && shape.rows <= n, "{bits} bits, {n} x {k}");
                    assert!(shape.groups(n) * shape.rows * shape.simdgroups >= n);
                }
            }
        }
    }
}
