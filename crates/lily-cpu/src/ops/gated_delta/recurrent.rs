//! The recurrence, one token after the other.
//!
//! `S ← α S; d = β (v − S k); S ← S + d kᵀ; out = S q` needs each state row once per token:
//! with `u = S k` and `w = S q` of the old state, `d = β (v − α u)`, `out = α w + d (k · q)`.

use super::super::math::{Arithmetic, dot, per_isa, whole};
use super::super::{Run, Workspace};
use super::{GatedDelta, Slice, VALUE_UNIT, l2_norm};
use crate::simd::{Kernel, Simd};

/// One token of one head: key, query, their product, decay and write strength.
#[derive(Clone, Copy)]
struct Token<'a> {
    k: &'a [f32],
    q: &'a [f32],
    decay: f32,
    beta: f32,
}

impl GatedDelta {
    pub(super) fn recurrent(&self, run: &Run<'_>, slice: Slice, workspace: &mut Workspace) {
        let op = &self.op;
        let dim = op.key_dim;
        let (q, k) = workspace.floats(2 * dim).split_at_mut(dim);
        // SAFETY: tasks have disjoint slices of the state.
        let state = unsafe { self.state(run, slice) };
        for row in 0..run.rows(op.rows) {
            let [raw_q, raw_k, v] = self.qkv(run, row, slice);
            l2_norm(run.isa, raw_q, (dim as f32).sqrt().recip(), q);
            l2_norm(run.isa, raw_k, 1.0, k);
            let (log_decay, beta) = self.gates_at(run, row, slice.head);
            let token = Token { k, q, decay: log_decay.exp(), beta };
            // SAFETY: tasks have disjoint slices of the outputs.
            let out = unsafe { self.out(run, row, slice) };
            // All slices of a head go the same way, so that their number changes no result.
            if dim.is_multiple_of(LANES) && op.value_dim.is_multiple_of(LANES) {
                let key_query = k.iter().zip(&*q).map(|(k, q)| k * q).sum();
                run.isa.run(Step { token, key_query, v, state, out });
            } else {
                step(run.isa, token, v, state, out);
            }
        }
    }
}

const LANES: usize = 16;
/// Rows whose products are under way at a time.
const SIDE: usize = 4;
const _: () = assert!(VALUE_UNIT == LANES);

/// Updates state rows by one token and reads them out, sixteen at a time: `v` and `out` have an element
/// for each row.
struct Step<'a> {
    token: Token<'a>,
    key_query: f32,
    v: &'a [f32],
    state: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Step<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Token { k, q, decay, beta } = self.token;
        let (k, q) = (k.as_chunks::<LANES>().0, q.as_chunks::<LANES>().0);
        let (v, out) = (self.v.as_chunks::<LANES>().0, self.out.as_chunks_mut::<LANES>().0);
        let mut sets = self.state.as_chunks_mut::<LANES>().0.chunks_exact_mut(LANES * k.len());
        let decay = s.splat(decay);
        for (v, out) in v.iter().zip(out) {
            let Some(rows) = sets.next() else { return };
            let (mut by_key, mut by_query) = ([s.zero(); LANES], [s.zero(); LANES]);
            for first in (0..LANES).step_by(SIDE) {
                let rows: [&[[f32; LANES]]; SIDE] =
                    std::array::from_fn(|i| &rows[(first + i) * k.len()..][..k.len()]);
                let (mut u, mut w) = ([s.zero(); SIDE], [s.zero(); SIDE]);
                for at in 0..k.len() {
                    let (k, q) = (s.load(&k[at]), s.load(&q[at]));
                    for i in 0..SIDE {
                        let state = s.load(&rows[i][at]);
                        u[i] = s.mul_add(state, k, u[i]);
                        w[i] = s.mul_add(state, q, w[i]);
                    }
                }
                by_key[first..first + SIDE].copy_from_slice(&u);
                by_query[first..first + SIDE].copy_from_slice(&w);
            }
            let (u, w) = (s.mul(decay, s.totals(by_key)), s.mul(decay, s.totals(by_query)));
            let d = s.mul(s.splat(beta), s.mul_add(s.splat(-1.0), u, s.load(v)));
            s.store(s.mul_add(d, s.splat(self.key_query), w), out);
            let mut written = [0.0; LANES];
            s.store(d, &mut written);
            for (d, row) in written.iter().zip(rows.chunks_exact_mut(k.len())) {
                let d = s.splat(*d);
                for (state, k) in row.iter_mut().zip(k) {
                    s.store(s.mul_add(d, s.load(k), s.mul(decay, s.load(state))), state);
                }
            }
        }
    }
}

/// State rows that share the loads of key and query.
const ROWS: usize = 4;

#[inline(always)]
fn step_rows<A: Arithmetic>(token: Token<'_>, v: &[f32], state: &mut [f32], out: &mut [f32]) {
    let dim = token.k.len();
    let key_query = dot::<A>(token.k, token.q);
    let groups = v.chunks(ROWS).zip(out.chunks_mut(ROWS)).zip(state.chunks_mut(ROWS * dim));
    for ((v, out), rows) in groups {
        // `v` holds as many rows as are left; the products do not depend on how many that is.
        let (u, w) = match v.len() {
            ROWS => products::<A, ROWS>(rows, token),
            3 => padded(products::<A, 3>(rows, token)),
            2 => padded(products::<A, 2>(rows, token)),
            _ => padded(products::<A, 1>(rows, token)),
        };
        for (r, (s, (v, out))) in rows.chunks_exact_mut(dim).zip(v.iter().zip(out)).enumerate() {
            let d = token.beta * (v - token.decay * u[r]);
            for (s, k) in s.iter_mut().zip(token.k) {
                *s = A::mul_add(d, *k, token.decay * *s);
            }
            *out = A::mul_add(d, key_query, token.decay * w[r]);
        }
    }
}

/// `S k` and `S q` of `R` state rows.
#[inline(always)]
fn products<A: Arithmetic, const R: usize>(rows: &[f32], token: Token<'_>) -> ([f32; R], [f32; R]) {
    let dim = token.k.len();
    let rows: [&[f32]; R] = std::array::from_fn(|r| &rows[r * dim..(r + 1) * dim]);
    let mut sums = [[[0.0f32; LANES]; R]; 2];
    let vectors = dim / LANES * LANES;
    for at in (0..vectors).step_by(LANES) {
        let (k, q) = (&token.k[at..at + LANES], &token.q[at..at + LANES]);
        for (r, row) in rows.iter().enumerate() {
            let s = &row[at..at + LANES];
            for lane in 0..LANES {
                sums[0][r][lane] = A::mul_add(s[lane], k[lane], sums[0][r][lane]);
                sums[1][r][lane] = A::mul_add(s[lane], q[lane], sums[1][r][lane]);
            }
        }
    }
    let [u, w] = whole(sums);
    let total = |sums: [[f32; LANES]; R], x: &[f32]| -> [f32; R] {
        std::array::from_fn(|r| {
            let tail = rows[r][vectors..].iter().zip(&x[vectors..]);
            let lanes: f32 = sums[r].iter().sum();
            tail.fold(lanes, |sum, (s, x)| A::mul_add(*s, *x, sum))
        })
    };
    (total(u, token.k), total(w, token.q))
}

/// Products of fewer rows in the shape of those of [`ROWS`].
#[inline(always)]
fn padded<const R: usize>((u, w): ([f32; R], [f32; R])) -> ([f32; ROWS], [f32; ROWS]) {
    let pad = |x: [f32; R]| std::array::from_fn(|r| x.get(r).copied().unwrap_or(0.0));
    (pad(u), pad(w))
}

per_isa! {
    /// Updates state rows by one token and reads them out.
    fn step(token: Token<'_>, v: &[f32], state: &mut [f32], out: &mut [f32]) = step_rows
}
