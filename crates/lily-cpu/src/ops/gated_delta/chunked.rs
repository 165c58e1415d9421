//! The recurrence in blocks of tokens, so that almost all work is products of matrices.
//!
//! With `γ` the running sum of log decays inside a block, `D[i][j] = exp(γ_i − γ_j)` for `j ≤ i`, and
//! `S` the state before the block (here `[key_dim, value_dim]`):
//!
//! ```text
//! A = strict_lower(diag(β) K Kᵀ ∘ D)
//! X = (I + A)⁻¹ diag(β) (V − diag(e^γ) K S)          forward substitution
//! O = diag(e^γ) Q S + lower(Q Kᵀ ∘ D) X
//! S ← e^γ_last S + (diag(e^(γ_last − γ)) K)ᵀ X
//! ```
//!
//! This is the form with the inverse applied to one right-hand side instead of to `V` and `K`
//! separately, which saves a product. All exponents are at most 0.

use super::super::math::{Arithmetic, exp, per_isa};
use super::super::product::{Dims, Strided, product, transpose};
use super::super::{Run, Workspace};
use super::{GatedDelta, Slice, l2_norm};

/// Tokens per block.
pub(super) const BLOCK: usize = 64;

/// Rows solved together in the forward substitution.
const SOLVE: usize = 4;

/// Working memory of one block.
struct Block<'a> {
    /// `[BLOCK, key_dim]`, normalised; rows beyond the block's tokens are zero.
    q: &'a mut [f32],
    k: &'a mut [f32],
    /// `[key_dim, BLOCK]`.
    k_transposed: &'a mut [f32],
    /// `[BLOCK, value_dim]`: values, then `X`.
    x: &'a mut [f32],
    /// `[BLOCK, value_dim]`.
    out: &'a mut [f32],
    /// `[BLOCK, BLOCK]`: `−A`.
    a: &'a mut [f32],
    /// `[BLOCK, BLOCK]`: `Q Kᵀ ∘ D`.
    p: &'a mut [f32],
    /// Log decays, then their running sum `γ`.
    gamma: &'a mut [f32],
    beta: &'a mut [f32],
}

impl GatedDelta {
    pub(super) fn chunked(&self, run: &Run<'_>, slice: Slice, workspace: &mut Workspace) {
        let op = &self.op;
        let (key_dim, value_dim) = (op.key_dim, slice.len);
        let sizes = [
            value_dim * key_dim,
            BLOCK * key_dim,
            BLOCK * key_dim,
            BLOCK * key_dim,
            BLOCK * value_dim,
            BLOCK * value_dim,
            BLOCK * BLOCK,
            BLOCK * BLOCK,
            BLOCK,
            BLOCK,
        ];
        let mut rest = workspace.floats(sizes.iter().sum());
        let [state, q, k, k_transposed, x, out, a, p, gamma, beta] = sizes.map(|size| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            part
        });
        let mut block = Block { q, k, k_transposed, x, out, a, p, gamma, beta };
        // SAFETY: tasks have disjoint slices of the state.
        let stored = unsafe { self.state(run, slice) };
        transpose(stored, value_dim, key_dim, state, value_dim);
        let rows = run.rows(op.rows);
        for first in (0..rows).step_by(BLOCK) {
            let tokens = BLOCK.min(rows - first);
            self.gather(run, slice, first, tokens, &mut block);
            advance(run.isa, tokens, value_dim, &mut block, state);
            for i in 0..tokens {
                // SAFETY: tasks have disjoint slices of the outputs.
                let out = unsafe { self.out(run, first + i, slice) };
                out.copy_from_slice(&block.out[i * value_dim..(i + 1) * value_dim]);
            }
        }
        transpose(state, key_dim, value_dim, stored, key_dim);
    }

    /// Fills the inputs of a block.
    fn gather(
        &self,
        run: &Run<'_>,
        slice: Slice,
        first: usize,
        tokens: usize,
        block: &mut Block<'_>,
    ) {
        let dim = self.op.key_dim;
        let q_scale = (dim as f32).sqrt().recip();
        let mut sum = 0.0;
        for i in 0..tokens {
            let [q, k, v] = self.qkv(run, first + i, slice);
            l2_norm(run.isa, q, q_scale, &mut block.q[i * dim..(i + 1) * dim]);
            l2_norm(run.isa, k, 1.0, &mut block.k[i * dim..(i + 1) * dim]);
            block.x[i * slice.len..(i + 1) * slice.len].copy_from_slice(v);
            let (log_decay, beta) = self.gates_at(run, first + i, slice.head);
            sum += log_decay;
            block.gamma[i] = sum;
            block.beta[i] = beta;
        }
        block.q[tokens * dim..].fill(0.0);
        block.k[tokens * dim..].fill(0.0);
        block.gamma[tokens..].fill(sum);
        block.beta[tokens..].fill(0.0);
        transpose(block.k, BLOCK, dim, block.k_transposed, BLOCK);
    }
}

#[inline(always)]
fn advance_block<A: Arithmetic>(
    tokens: usize,
    value_dim: usize,
    block: &mut Block<'_>,
    state: &mut [f32],
) {
    let key_dim = state.len() / value_dim;
    let Block { q, k, k_transposed, x, out, a, p, gamma, beta } = block;
    let rows = |data, cols| Strided { data, row: cols, col: 1 };

    triangles::<A>(tokens, key_dim, q, k, k_transposed, a, p, gamma, beta);

    // X starts as diag(β) (V − diag(e^γ) K S).
    let dims = Dims { m: tokens, n: value_dim, k: key_dim };
    product::<A, false>(dims, rows(k, key_dim), (state, value_dim), (out, value_dim));
    for i in 0..tokens {
        let (decay, beta) = (exp::<A>(gamma[i]), beta[i]);
        let row = i * value_dim..(i + 1) * value_dim;
        for (x, ks) in x[row.clone()].iter_mut().zip(&out[row]) {
            *x = beta * (*x - decay * ks);
        }
    }
    solve::<A>(tokens, value_dim, a, x);

    // O = diag(e^γ) Q S + P X, the decay folded into Q.
    for (q, gamma) in q.chunks_exact_mut(key_dim).zip(gamma.iter()) {
        let decay = exp::<A>(*gamma);
        q.iter_mut().for_each(|q| *q *= decay);
    }
    product::<A, false>(dims, rows(q, key_dim), (state, value_dim), (out, value_dim));
    for i in (0..tokens).step_by(SOLVE) {
        let m = SOLVE.min(tokens - i);
        let dims = Dims { m, n: value_dim, k: i + m };
        let p = rows(&p[i * BLOCK..], BLOCK);
        product::<A, true>(dims, p, (x, value_dim), (&mut out[i * value_dim..], value_dim));
    }

    // S ← e^γ_last S + (diag(e^(γ_last − γ)) K)ᵀ X, the decay folded into K.
    let last = gamma[tokens - 1];
    for (k, gamma) in k.chunks_exact_mut(key_dim).zip(gamma.iter()) {
        let decay = exp::<A>(last - gamma);
        k.iter_mut().for_each(|k| *k *= decay);
    }
    let decay = exp::<A>(last);
    state.iter_mut().for_each(|s| *s *= decay);
    let k_columns = Strided { data: k, row: 1, col: key_dim };
    let dims = Dims { m: key_dim, n: value_dim, k: tokens };
    product::<A, true>(dims, k_columns, (x, value_dim), (state, value_dim));
}
per_isa! {
    /// Outputs of one block, and the state after it.
    fn advance(tokens: usize, value_dim: usize, block: &mut Block<'_>, state: &mut [f32]) = advance_block
}

/// `−A` and `P = lower(Q Kᵀ ∘ D)`.
#[allow(clippy::too_many_arguments, reason = "operands of a kernel")]
#[inline(always)]
fn triangles<A: Arithmetic>(
    tokens: usize,
    key_dim: usize,
    q: &[f32],
    k: &[f32],
    k_transposed: &[f32],
    a: &mut [f32],
    p: &mut [f32],
    gamma: &[f32],
    beta: &[f32],
) {
    for i in (0..tokens).step_by(SOLVE) {
        // Only columns up to the diagonal, in whole vectors; rows beyond the tokens are zero.
        let n = (i + SOLVE).next_multiple_of(16);
        let dims = Dims { m: SOLVE, n, k: key_dim };
        let rows = i * key_dim..(i + SOLVE) * key_dim;
        let k = Strided { data: &k[rows.clone()], row: key_dim, col: 1 };
        let q = Strided { data: &q[rows], row: key_dim, col: 1 };
        product::<A, false>(dims, k, (k_transposed, BLOCK), (&mut a[i * BLOCK..], BLOCK));
        product::<A, false>(dims, q, (k_transposed, BLOCK), (&mut p[i * BLOCK..], BLOCK));
        for i in i..i + SOLVE {
            let (a, p) = (&mut a[i * BLOCK..][..n], &mut p[i * BLOCK..][..n]);
            for (j, ((a, p), gamma_j)) in a.iter_mut().zip(p).zip(gamma).enumerate() {
                // Masked before the exponential, which could overflow above the diagonal.
                let distance = if j <= i { gamma[i] - gamma_j } else { 0.0 };
                let decay = exp::<A>(distance);
                *a = if j < i { -beta[i] * *a * decay } else { 0.0 };
                *p = if j <= i { *p * decay } else { 0.0 };
            }
        }
    }
}

/// `x ← (I + A)⁻¹ x` with `a = −A`, whose upper triangle is zero.
#[inline(always)]
fn solve<A: Arithmetic>(tokens: usize, value_dim: usize, a: &[f32], x: &mut [f32]) {
    for i in (0..tokens).step_by(SOLVE) {
        let m = SOLVE.min(tokens - i);
        let (above, rows) = x.split_at_mut(i * value_dim);
        let rows = &mut rows[..m * value_dim];
        let dims = Dims { m, n: value_dim, k: i };
        let left = Strided { data: &a[i * BLOCK..], row: BLOCK, col: 1 };
        product::<A, true>(dims, left, (above, value_dim), (rows, value_dim));
        for r in 1..m {
            let (solved, row) = rows.split_at_mut(r * value_dim);
            for (s, solved) in solved.chunks_exact(value_dim).enumerate() {
                let factor = a[(i + r) * BLOCK + i + s];
                for (x, s) in row[..value_dim].iter_mut().zip(solved) {
                    *x = A::mul_add(factor, *s, *x);
                }
            }
        }
    }
}
