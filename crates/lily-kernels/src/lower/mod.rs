//! From a validated plan to launches: which kernel runs each step, with which constants.
//!
//! One step is one launch. The choice depends on shapes, formats and rows alone, so it is made once
//! per plan, and the same plan gives the same launches on every machine of one [`Tuning`].

mod attention;
mod block;
mod error;
mod gated_delta;
mod linear;
mod moe;
mod norm;
mod sample;
mod tensor;
mod tuning;

use lily_checkpoint::manifest::{Manifest, MatrixFormat, MatrixShape, WeightShape};
use lily_plan::buffer::{Elem, Region, WeightId};
use lily_plan::op::Op;
use lily_plan::plan::Plan;
use lily_plan::valid::ValidPlan;

pub use block::Block;
pub use error::LowerError;
pub use tuning::{AttentionTile, Tuning};

use crate::launch::{Binding, Launch, Program};

/// Chooses a kernel for every step.
///
/// # Errors
/// [`LowerError::Weight`] where the manifest lacks a weight of the plan or has another kind of it,
/// [`LowerError::Unsupported`] where no kernel takes a step's shape.
pub fn lower(
    plan: &ValidPlan,
    manifest: &Manifest,
    tuning: &Tuning,
) -> Result<Program, LowerError> {
    let launches = (0..plan.plan().steps.len()).map(|index| step(plan, manifest, tuning, index));
    Ok(Program { launches: launches.collect::<Result<_, _>>()? })
}

/// Chooses a kernel for one step.
///
/// # Errors
/// As [`lower`].
pub fn step(
    plan: &ValidPlan,
    manifest: &Manifest,
    tuning: &Tuning,
    index: usize,
) -> Result<Launch, LowerError> {
    let plan = plan.plan();
    let step = &plan.steps[index];
    let context = Context { plan, manifest, tuning, step: &step.name };
    let launch = launch(&context, &step.op)?;
    Ok(if tuning.tensor_units { tensor::on_tensor_units(launch) } else { launch })
}

fn launch(cx: &Context<'_>, op: &Op) -> Result<Launch, LowerError> {
    match op {
        Op::Embed(op) => linear::embed(cx, op),
        Op::RmsNorm(op) => norm::rms_norm(cx, op),
        Op::Linear(op) => linear::linear(cx, op),
        Op::StackedLinear(op) => linear::stacked_linear(cx, op),
        Op::GatedLinear(op) => linear::gated_linear(cx, op),
        Op::SwiGlu(op) => norm::swiglu(cx, op),
        Op::Add(op) => norm::add(cx, op),
        Op::Conv(op) => gated_delta::conv(cx, op),
        Op::GatedDelta(op) => gated_delta::gated_delta(cx, op),
        Op::GatedRmsNorm(op) => norm::gated_rms_norm(cx, op),
        Op::DeltaMix(op) => gated_delta::delta_mix(cx, op),
        Op::RopeAppend(op) => attention::rope_append(cx, op),
        Op::Attention(op) => attention::attention(cx, op),
        Op::OutputGate(op) => attention::output_gate(cx, op),
        Op::AttentionSplit(op) => attention::attention_split(cx, op),
        Op::AttentionMerge(op) => attention::attention_merge(cx, op),
        Op::Route(op) => moe::route(cx, op),
        Op::GroupByExpert(op) => moe::group_by_expert(cx, op),
        Op::ExpertLinear(op) => linear::expert_linear(cx, op),
        Op::ExpertGatedLinear(op) => linear::expert_gated_linear(cx, op),
        Op::RoutedGatedLinear(op) => moe::routed_gated_linear(cx, op),
        Op::RoutedDown(op) => moe::routed_down(cx, op),
        Op::MoeCombine(op) => moe::moe_combine(cx, op),
        Op::LastRow(op) => norm::last_row(cx, op),
        Op::ArgmaxParts(op) => sample::argmax_parts(cx, op),
        Op::Advance(op) => sample::advance(cx, op),
    }
}

/// What lowering one step may look at.
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) manifest: &'a Manifest,
    pub(crate) tuning: &'a Tuning,
    /// Name of the step, for errors.
    pub(crate) step: &'a str,
}

impl Context<'_> {
    /// Element type of a region.
    pub(crate) fn elem(&self, region: &Region) -> Elem {
        self.plan.buffer(region.buffer).elem
    }

    /// Element type of a region as the kernels' sources call it.
    pub(crate) fn elem_name(&self, region: &Region) -> String {
        match self.elem(region) {
            Elem::F32 => "float",
            Elem::Bf16 => "bfloat",
            Elem::U32 => "uint",
        }
        .to_owned()
    }

    /// Shape and format of a matrix.
    pub(crate) fn matrix(&self, id: WeightId) -> Result<MatrixShape, LowerError> {
        let name = &self.plan.weight(id).name;
        let error = |found: &'static str| LowerError::Weight {
            step: self.step.to_owned(),
            name: name.clone(),
            found,
        };
        match self.manifest.get(name).map(|info| info.shape) {
            Some(WeightShape::Matrix(shape)) => Ok(shape),
            Some(_) => Err(error("no matrix")),
            None => Err(error("nothing")),
        }
    }

    /// The format of a matrix as the kernels' sources call it, such as `affine<4, 64, bfloat>`.
    pub(crate) fn format(&self, id: WeightId) -> Result<String, LowerError> {
        let scalar = |dtype| match dtype {
            lily_checkpoint::manifest::Dtype::Bf16 => "bfloat",
            lily_checkpoint::manifest::Dtype::F16 => "half",
            _ => "float",
        };
        Ok(match self.matrix(id)?.format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                format!("affine<{bits}, {group_size}, {}>", scalar(scale))
            }
            MatrixFormat::Float(dtype) => format!("dense<{}>", scalar(dtype)),
        })
    }

    /// The control block, for kernels that ask for the active rows.
    pub(crate) fn control(&self) -> Binding {
        let buffer = self.plan.ports.control;
        Binding::Region(Region { buffer, bytes: 0..self.plan.buffer(buffer).bytes() })
    }

    /// A refusal.
    pub(crate) fn unsupported(&self, what: impl Into<String>) -> LowerError {
        LowerError::Unsupported { step: self.step.to_owned(), what: what.into() }
    }
}
