//! The recurrence, one token after the other.
//!
//! `S ← α S; d = β (v − S k); S ← S + d kᵀ; out = S q` needs each state row once per token:
//! with `u = S k` and `w = S q` of the old state, `d = β (v − α u)`, `out = α w + d (k · q)`.

use super::super::math::{Arithmetic, dot, per_isa};
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
                run.isa.run(Step { token, v, state, out });
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
        let sets = self.state.as_chunks_mut::<LANES>().0.chunks_exact_mut(LANES * k.len());
        let decay = s.splat(decay);
        let mut key_query = s.zero();
        for (k, q) in k.iter().zip(q) {
            key_query = s.mul_add(s.load(k), s.load(q), key_query);
        }
        let mut lanes = [0.0; LANES];
        s.store(key_query, &mut lanes);
        let key_query = s.splat(lanes.iter().sum());
        for ((v, out), rows) in v.iter().zip(out).zip(sets) {
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
            s.store(s.mul_add(d, key_query, w), out);
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

/// The same for rows of any length, one after the other.
#[inline(always)]
fn step_rows<A: Arithmetic>(token: Token<'_>, v: &[f32], state: &mut [f32], out: &mut [f32]) {
    let Token { k, q, decay, beta } = token;
    let key_query = dot::<A>(k, q);
    for ((v, out), row) in v.iter().zip(out).zip(state.chunks_exact_mut(k.len())) {
        let (u, w) = (dot::<A>(row, k), dot::<A>(row, q));
        let d = beta * (v - decay * u);
        for (s, k) in row.iter_mut().zip(k) {
            *s = A::mul_add(d, *k, decay * *s);
        }
        *out = A::mul_add(d, key_query, decay * w);
    }
}
per_isa! {
    fn step(token: Token<'_>, v: &[f32], state: &mut [f32], out: &mut [f32]) = step_rows
}
