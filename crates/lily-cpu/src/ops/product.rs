//! Small dense products of `f32` matrices that live in a task's workspace.

use super::math::Arithmetic;

/// A matrix by element strides: element `(i, p)` is `data[i * row + p * col]`.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a> {
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) col: usize,
}

/// `m × n` outputs from sums of `k` products.
#[derive(Clone, Copy)]
pub(super) struct Dims {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// `c = a b`, or `c += a b` when `ADD`, with `b` and `c` row-major at strides `ldb` and `ldc`.
///
/// The sum over `k` runs in order for each output, so an output does not depend on `m` or `n`.
#[inline(always)]
pub(super) fn product<A: Arithmetic, const ADD: bool>(
    Dims { m, n, k }: Dims,
    a: Strided<'_>,
    (b, ldb): (&[f32], usize),
    (c, ldc): (&mut [f32], usize),
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!((m - 1) * ldc + n <= c.len() && n <= ldc.max(n * usize::from(m == 1)));
    if k > 0 {
        assert!((m - 1) * a.row + (k - 1) * a.col < a.data.len());
        assert!((k - 1) * ldb + n <= b.len());
    }
    // Columns outside, so that a panel of `b` stays in the first-level cache over all rows.
    let mut j = 0;
    while j + 16 <= n {
        let mut i = 0;
        while i + 4 <= m {
            // SAFETY: i + 4 <= m and j + 16 <= n; the assertions above bound every index.
            unsafe { tile::<A, ADD, 4, 16>(i, j, k, a, (b, ldb), (c, ldc)) };
            i += 4;
        }
        while i < m {
            // SAFETY: as above with one row.
            unsafe { tile::<A, ADD, 1, 16>(i, j, k, a, (b, ldb), (c, ldc)) };
            i += 1;
        }
        j += 16;
    }
    while j + 8 <= n {
        let mut i = 0;
        while i + 8 <= m {
            // SAFETY: i + 8 <= m and j + 8 <= n; the assertions above bound every index.
            unsafe { tile::<A, ADD, 8, 8>(i, j, k, a, (b, ldb), (c, ldc)) };
            i += 8;
        }
        while i < m {
            // SAFETY: as above with one row.
            unsafe { tile::<A, ADD, 1, 8>(i, j, k, a, (b, ldb), (c, ldc)) };
            i += 1;
        }
        j += 8;
    }
    while j < n {
        for i in 0..m {
            // SAFETY: i < m and j < n; the assertions above bound every index.
            unsafe { tile::<A, ADD, 1, 1>(i, j, k, a, (b, ldb), (c, ldc)) };
        }
        j += 1;
    }
}

/// Outputs `i .. i + M` by `j .. j + N`, their sums in registers.
///
/// # Safety
/// All elements of `a`, `b` and `c` with those rows and columns and `p < k` lie inside their slices.
#[inline(always)]
unsafe fn tile<A: Arithmetic, const ADD: bool, const M: usize, const N: usize>(
    i: usize,
    j: usize,
    k: usize,
    a: Strided<'_>,
    (b, ldb): (&[f32], usize),
    (c, ldc): (&mut [f32], usize),
) {
    let mut sums = [[0.0f32; N]; M];
    for p in 0..k {
        // SAFETY: row `p` and columns `j .. j + N` of `b`, by the caller's promise.
        let b_row = unsafe { &*b.as_ptr().add(p * ldb + j).cast::<[f32; N]>() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: element `(i + row, p)` of `a`, by the caller's promise.
            let a = unsafe { *a.data.as_ptr().add((i + row) * a.row + p * a.col) };
            for (sum, b) in sums.iter_mut().zip(b_row) {
                *sum = A::mul_add(a, *b, *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: row `i + row` and columns `j .. j + N` of `c`, by the caller's promise.
        let out = unsafe { &mut *c.as_mut_ptr().add((i + row) * ldc + j).cast::<[f32; N]>() };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if ADD { *out + sum } else { *sum };
        }
    }
}

/// `to[c * ld + r] = from[r * cols + c]` for `rows` rows of `cols` elements.
#[inline(always)]
pub(super) fn transpose(from: &[f32], rows: usize, cols: usize, to: &mut [f32], ld: usize) {
    // Blocks of 8 × 8 keep both sides in few cache lines.
    for r0 in (0..rows).step_by(8) {
        for c0 in (0..cols).step_by(8) {
            for c in c0..(c0 + 8).min(cols) {
                for r in r0..(r0 + 8).min(rows) {
                    to[c * ld + r] = from[r * cols + c];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::math::{Separate, per_isa};
    use super::*;
    use crate::simd::Isa;

    #[inline(always)]
    fn both<A: Arithmetic>(dims: Dims, a: Strided<'_>, b: &[f32], c: &mut [f32], ldc: usize) {
        product::<A, false>(dims, a, (b, dims.n), (c, ldc));
        product::<A, true>(dims, a, (b, dims.n), (c, ldc));
    }
    per_isa!(fn twice(dims: Dims, a: Strided<'_>, b: &[f32], c: &mut [f32], ldc: usize) = both);

    #[test]
    fn a_product_agrees_with_the_definition_for_all_tails_and_strides() {
        for isa in Isa::available() {
            for (m, n, k) in [(1, 1, 1), (4, 16, 3), (9, 45, 7), (17, 8, 64), (8, 24, 0), (3, 7, 5)]
            {
                for transposed in [false, true] {
                    let data: Vec<f32> = (0..m * k).map(|i| (i as f32).sin()).collect();
                    let (row, col) = if transposed { (1, m) } else { (k, 1) };
                    let b: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.37).cos()).collect();
                    let ldc = n + 3;
                    let mut c = vec![9.0; m * ldc];
                    twice(
                        isa,
                        Dims { m, n, k },
                        Strided { data: &data, row, col },
                        &b,
                        &mut c,
                        ldc,
                    );
                    for i in 0..m {
                        for j in 0..n {
                            let want: f64 = (0..k)
                                .map(|p| {
                                    f64::from(data[i * row + p * col]) * f64::from(b[p * n + j])
                                })
                                .sum();
                            assert!((f64::from(c[i * ldc + j]) - 2.0 * want).abs() < 1e-4);
                        }
                        assert!(c[i * ldc + n..(i + 1) * ldc].iter().all(|&x| x == 9.0));
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_product_outside_of_its_operands_is_refused() {
        let a = Strided { data: &[1.0; 4], row: 2, col: 1 };
        product::<Separate, false>(
            Dims { m: 2, n: 2, k: 3 },
            a,
            (&[0.0; 6], 2),
            (&mut [0.0; 4], 2),
        );
    }

    #[test]
    fn a_transposed_matrix_has_its_rows_as_columns() {
        let from: Vec<f32> = (0..11 * 13).map(|i| i as f32).collect();
        let mut to = vec![0.0; 13 * 16];
        transpose(&from, 11, 13, &mut to, 16);
        for r in 0..11 {
            for c in 0..13 {
                assert_eq!(to[c * 16 + r], from[r * 13 + c]);
            }
        }
    }
}
