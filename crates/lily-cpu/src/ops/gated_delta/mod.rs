//! The gated delta rule: one token at a time for short chunks, in blocks of tokens for prefill.

mod chunked;
mod recurrent;

use std::sync::Arc;

use lily_plan::op;

use super::math::{Arithmetic, dot, per_isa, softplus};
use super::{Kernel, Part, Run, Workspace};
use crate::weights::Weights;

/// Rows up to which the recurrence runs token by token: below, the chunked form's set-up
/// (transposing the state twice) costs more than its products gain.
const RECURRENT_ROWS: usize = 16;

/// State rows of a task come in multiples of this.
const VALUE_UNIT: usize = 16;

const L2_EPS: f32 = 1e-6;

pub(super) struct GatedDelta {
    op: op::GatedDelta,
    /// `-exp(A_log)` per value head.
    rate: Vec<f32>,
    dt_bias: Arc<[f32]>,
}

impl GatedDelta {
    pub(super) fn new(op: op::GatedDelta, weights: &Weights<'_>) -> Self {
        let a_log = weights.floats(op.a_log, op.value_heads);
        let dt_bias = weights.floats(op.dt_bias, op.value_heads);
        GatedDelta { op, rate: a_log.iter().map(|a| -a.exp()).collect(), dt_bias }
    }

    /// Tasks per value head: slices of the value dimension, where heads alone are too few.
    fn slices(&self, run: &Run<'_>) -> usize {
        let wanted = (2 * run.threads).div_ceil(self.op.value_heads);
        wanted.clamp(1, self.op.value_dim.div_ceil(VALUE_UNIT))
    }

    /// Log decay and write strength of one token.
    fn gates(&self, head: usize, a: f32, b: f32) -> (f32, f32) {
        let log_decay = self.rate[head] * softplus(a + self.dt_bias[head]);
        (log_decay, 1.0 / (1.0 + (-b).exp()))
    }
}

/// What one task works on: a value head, a slice of its value dimension, and the widths of a row.
#[derive(Clone, Copy)]
struct Slice {
    head: usize,
    /// First value element, and how many.
    start: usize,
    len: usize,
}

impl Kernel for GatedDelta {
    fn tasks(&self, run: &Run<'_>) -> usize {
        if run.rows(self.op.rows) > RECURRENT_ROWS {
            self.op.value_heads
        } else {
            self.op.value_heads * self.slices(run)
        }
    }

    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace) {
        if run.rows(self.op.rows) > RECURRENT_ROWS {
            let slice = Slice { head: part.index, start: 0, len: self.op.value_dim };
            return self.chunked(run, slice, workspace);
        }
        let slices = part.count / self.op.value_heads;
        let values = Part { index: part.index % slices, count: slices }
            .of_units(self.op.value_dim, VALUE_UNIT);
        let slice = Slice { head: part.index / slices, start: values.start, len: values.len() };
        self.recurrent(run, slice, workspace);
    }
}

impl GatedDelta {
    fn conv_dim(&self) -> usize {
        2 * self.op.key_heads * self.op.key_dim + self.op.value_heads * self.op.value_dim
    }

    /// Query, key and value of one token and value head, as the convolution left them.
    fn qkv<'a>(&self, run: &Run<'a>, row: usize, slice: Slice) -> [&'a [f32]; 3] {
        let op = &self.op;
        let (first, keys) = (row * self.conv_dim(), op.key_heads * op.key_dim);
        let key_head = slice.head / (op.value_heads / op.key_heads);
        let q = first + key_head * op.key_dim;
        let v = first + 2 * keys + slice.head * op.value_dim + slice.start;
        // SAFETY: the plan's hazards exclude writers of `qkv` in this stage.
        unsafe {
            [
                run.memory.read(&op.qkv, q..q + op.key_dim),
                run.memory.read(&op.qkv, q + keys..q + keys + op.key_dim),
                run.memory.read(&op.qkv, v..v + slice.len),
            ]
        }
    }

    /// [`GatedDelta::gates`] of one token.
    fn gates_at(&self, run: &Run<'_>, row: usize, head: usize) -> (f32, f32) {
        let at = row * self.op.value_heads + head;
        // SAFETY: the plan's hazards exclude writers of `a` and `b` in this stage.
        let (a, b) = unsafe {
            (run.memory.read(&self.op.a, at..at + 1)[0], run.memory.read(&self.op.b, at..at + 1)[0])
        };
        self.gates(head, a, b)
    }

    /// The state rows of a slice.
    ///
    /// # Safety
    /// The slice is the calling task's own, and it holds one such borrow at a time.
    unsafe fn state<'a>(&self, run: &Run<'a>, slice: Slice) -> &'a mut [f32] {
        let first = (slice.head * self.op.value_dim + slice.start) * self.op.key_dim;
        // SAFETY: the caller's promise.
        unsafe { run.memory.write(&self.op.state, first..first + slice.len * self.op.key_dim) }
    }

    /// The outputs of a slice for one token.
    ///
    /// # Safety
    /// As for [`GatedDelta::state`].
    unsafe fn out<'a>(&self, run: &Run<'a>, row: usize, slice: Slice) -> &'a mut [f32] {
        let op = &self.op;
        let first = (row * op.value_heads + slice.head) * op.value_dim + slice.start;
        // SAFETY: the caller's promise.
        unsafe { run.memory.write(&op.out, first..first + slice.len) }
    }
}

#[inline(always)]
fn l2_normalise<A: Arithmetic>(x: &[f32], factor: f32, out: &mut [f32]) {
    let scale = factor / (dot::<A>(x, x) + L2_EPS).sqrt();
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * scale;
    }
}
per_isa! {
    /// `out = factor · x / sqrt(Σ x² + 1e-6)`.
    fn l2_norm(x: &[f32], factor: f32, out: &mut [f32]) = l2_normalise
}

#[cfg(test)]
mod tests;
