//! The recurrence, one token after the other.
//!
//! `S ← α S; d = β (v − S k); S ← S + d kᵀ; out = S q` needs each state row once per token:
//! with `u = S k` and `w = S q` of the old state, `d = β (v − α u)`, `out = α w + d (k · q)`.

use super::super::math::{Arithmetic, dot, per_isa};
use super::super::{Run, Workspace};
use super::{GatedDelta, Slice, l2_norm};

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
            step(run.isa, token, v, state, unsafe { self.out(run, row, slice) });
        }
    }
}

#[inline(always)]
fn step_rows<A: Arithmetic>(token: Token<'_>, v: &[f32], state: &mut [f32], out: &mut [f32]) {
    let dim = token.k.len();
    let key_query = dot::<A>(token.k, token.q);
    let rows = state.chunks_exact_mut(dim).zip(v.iter().zip(out));
    for (s, (v, out)) in rows {
        let (u, w) = (dot::<A>(s, token.k), dot::<A>(s, token.q));
        let d = token.beta * (v - token.decay * u);
        for (s, k) in s.iter_mut().zip(token.k) {
            *s = A::mul_add(d, *k, token.decay * *s);
        }
        *out = A::mul_add(d, key_query, token.decay * w);
    }
}
per_isa! {
    /// Updates state rows by one token and reads them out.
    fn step(token: Token<'_>, v: &[f32], state: &mut [f32], out: &mut [f32]) = step_rows
}
