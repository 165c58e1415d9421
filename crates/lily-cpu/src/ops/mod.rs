//! The operations of a plan as work that threads can share.
//!
//! The one idea: a step is a number of tasks that need nothing from each other. Whatever order or
//! thread they run on, each output element is computed by the same instructions, so results do not
//! depend on the number of threads.

mod attention;
mod conv;
mod elementwise;
mod fused;
mod gated_delta;
mod linear;
mod math;
mod moe;
mod norm;
mod product;
mod rope;
mod sample;
#[cfg(test)]
mod testing;

use std::ops::Range;

use lily_device::DeviceError;
use lily_plan::op::Op;

use crate::matrix::Scratch;
use crate::memory::{Memory, Span};
use crate::simd::Isa;
use crate::weights::Weights;

/// Which token rows a run has: the control block, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Active {
    /// Position of the first row.
    pub(crate) position: usize,
    /// Rows, at most the plan's.
    pub(crate) rows: usize,
}

/// What all tasks of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) memory: Memory<'a>,
    pub(crate) active: Active,
    pub(crate) threads: usize,
    pub(crate) isa: Isa,
}

impl Run<'_> {
    /// Rows of an operation that was built for `rows`; behind the last-row selection that is one.
    fn rows(&self, rows: usize) -> usize {
        rows.min(self.active.rows)
    }
}

/// One of `count` tasks of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) index: usize,
    pub(crate) count: usize,
}

impl Part {
    /// This task's share of `0..n`: shares are contiguous, disjoint, cover everything, and differ by
    /// at most one.
    pub(crate) fn of(self, n: usize) -> Range<usize> {
        n * self.index / self.count..n * (self.index + 1) / self.count
    }

    /// As [`Part::of`] in units of `unit`; only the last share may end inside one.
    pub(crate) fn of_units(self, n: usize, unit: usize) -> Range<usize> {
        let units = self.of(n.div_ceil(unit));
        (units.start * unit).min(n)..(units.end * unit).min(n)
    }
}

/// Working memory of one thread; grows to what its largest task needs and then stays.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) matrix: Scratch,
    floats: Vec<f32>,
    /// Buffers of a fused step.
    spans: Vec<Span>,
}

impl Workspace {
    /// `len` floats with unspecified values.
    pub(crate) fn floats(&mut self, len: usize) -> &mut [f32] {
        if self.floats.len() < len {
            self.floats.resize(len, 0.0);
        }
        &mut self.floats[..len]
    }
}

/// A step with its weights resolved.
pub(crate) trait Kernel: Send + Sync {
    /// How many tasks to cut the step into. What earlier stages wrote may be looked at.
    fn tasks(&self, run: &Run<'_>) -> usize;

    /// Does one task. All reads and writes lie inside the regions of the step's op, and writes of
    /// different tasks never meet each other's reads or writes.
    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace);
}

/// Element operations below which another task costs more than it saves (a few microseconds).
const GRAIN: usize = 16 * 1024;

/// Tasks for `units` indivisible pieces of `work` element operations each.
fn tasks_by_work(run: &Run<'_>, units: usize, work: usize) -> usize {
    (units * work / GRAIN).clamp(1, 4 * run.threads).min(units).max(1)
}

/// The kernel of an operation.
///
/// # Errors
/// [`DeviceError::Memory`] when its working memory cannot be had.
///
/// # Panics
/// When the weights lack one that the plan names; the model builder made both from one manifest.
pub(crate) fn compile(op: &Op, weights: &Weights<'_>) -> Result<Box<dyn Kernel>, DeviceError> {
    let rows = op.signature().rows;
    match fused::with_narrow_operands(op.clone(), rows, weights) {
        Some(compiled) => compiled,
        None => compile_plain(op, weights),
    }
}

/// As [`compile`], for operands of `f32`.
fn compile_plain(op: &Op, weights: &Weights<'_>) -> Result<Box<dyn Kernel>, DeviceError> {
    Ok(match op.clone() {
        Op::Embed(op) => Box::new(linear::Embed::new(op, weights)),
        Op::RmsNorm(op) => Box::new(norm::RmsNorm::new(op, weights)),
        Op::Linear(op) => Box::new(linear::Linear::new(op, weights)),
        Op::StackedLinear(op) => fused::stacked_linear(op, weights)?,
        Op::GatedLinear(op) if op.norm.is_some() => fused::normed_gated_linear(op, weights)?,
        Op::GatedLinear(op) => Box::new(linear::GatedLinear::new(op, weights)),
        Op::SwiGlu(op) => Box::new(elementwise::SwiGlu(op)),
        Op::Add(op) => Box::new(elementwise::Add(op)),
        Op::Conv(op) => Box::new(conv::Conv::new(op, weights)),
        Op::GatedDelta(op) => Box::new(gated_delta::GatedDelta::new(op, weights)),
        Op::GatedRmsNorm(op) => Box::new(norm::GatedRmsNorm::new(op, weights)),
        Op::DeltaMix(op) => fused::delta_mix(op, weights)?,
        Op::RopeAppend(op) => Box::new(rope::RopeAppend::new(op, weights)),
        Op::Attention(op) => Box::new(attention::Attention::new(op)?),
        Op::OutputGate(op) => Box::new(elementwise::OutputGate(op)),
        Op::AttentionSplit(op) => fused::attention_split(op, weights)?,
        Op::AttentionMerge(op) => Box::new(attention::Merge(op)),
        Op::Route(op) => Box::new(moe::Route(op)),
        Op::GroupByExpert(op) => Box::new(moe::GroupByExpert(op)),
        Op::ExpertLinear(op) => Box::new(linear::ExpertLinear::new(op, weights)),
        Op::ExpertGatedLinear(op) => Box::new(linear::ExpertGatedLinear::new(op, weights)),
        Op::RoutedGatedLinear(op) => fused::routed_gated_linear(op, weights)?,
        Op::RoutedDown(op) => fused::routed_down(op, weights)?,
        Op::MoeCombine(op) => Box::new(moe::MoeCombine(op)),
        Op::LastRow(op) => Box::new(elementwise::LastRow(op)),
        Op::ArgmaxParts(op) => Box::new(sample::ArgmaxParts(op)),
        Op::Advance(op) => Box::new(sample::Advance(op)),
    })
}

/// Name of an operation's kind, for profiles.
pub(crate) fn kind(op: &Op) -> &'static str {
    match op {
        Op::Embed(_) => "embed",
        Op::RmsNorm(_) => "rms_norm",
        Op::Linear(_) => "linear",
        Op::GatedLinear(_) => "gated_linear",
        Op::SwiGlu(_) => "swiglu",
        Op::Add(_) => "add",
        Op::Conv(_) => "conv",
        Op::GatedDelta(_) => "gated_delta",
        Op::GatedRmsNorm(_) => "gated_rms_norm",
        Op::RopeAppend(_) => "rope_append",
        Op::Attention(_) => "attention",
        Op::OutputGate(_) => "output_gate",
        Op::Route(_) => "route",
        Op::GroupByExpert(_) => "group_by_expert",
        Op::ExpertLinear(_) => "expert_linear",
        Op::ExpertGatedLinear(_) => "expert_gated_linear",
        Op::MoeCombine(_) => "moe_combine",
        Op::LastRow(_) => "last_row",
        Op::StackedLinear(_) => "stacked_linear",
        Op::DeltaMix(_) => "delta_mix",
        Op::AttentionSplit(_) => "attention_split",
        Op::AttentionMerge(_) => "attention_merge",
        Op::RoutedGatedLinear(_) => "routed_gated_linear",
        Op::RoutedDown(_) => "routed_down",
        Op::ArgmaxParts(_) => "argmax_parts",
        Op::Advance(_) => "advance",
    }
}
