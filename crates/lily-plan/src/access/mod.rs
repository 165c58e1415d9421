//! What an operation reads, writes and expects of its operands.
//!
//! [`Op::signature`] is the single place where these facts stand; the validator, the hazards, the
//! statistics and the dump all read them here.

mod attention;
mod elementwise;
mod gated_delta;
mod linear;
mod moe;
mod sample;

use crate::buffer::{BufferClass, Elem, Region, WeightId};
use crate::op::{FoldedNorm, Op};

/// How an operation touches an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads all of it.
    Read,
    /// Overwrites all of it without looking.
    Write,
    /// Reads it, or keeps parts of it, and writes it.
    Update,
}

impl Access {
    /// Whether the bytes held before matter.
    pub fn reads(self) -> bool {
        matches!(self, Access::Read | Access::Update)
    }
    /// Whether the bytes may differ afterwards.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::Update)
    }
}

/// Which buffers may hold an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Any buffer that the access allows.
    Any,
    /// Only buffers of this class.
    Class(BufferClass),
    /// The plan's control block; an operation that says so may write it.
    Control,
    /// The plan's token input, which the operation may write.
    Tokens,
}

/// One operand with everything the operation demands of it.
#[derive(Clone, Debug)]
pub struct Operand<'a> {
    /// Field name in the operation.
    pub name: &'static str,
    /// Where it lies.
    pub region: &'a Region,
    /// How it is touched.
    pub access: Access,
    /// Allowed element types.
    pub elems: &'static [Elem],
    /// Elements; `None` when the product of the dimensions overflows.
    pub len: Option<u64>,
    /// Allowed buffers.
    pub home: Home,
    /// Whether this read operand may be the very region that the operation writes.
    pub in_place: bool,
}

/// One weight with the shape the operation demands of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightUse {
    /// Field name in the operation.
    pub name: &'static str,
    /// The weight.
    pub id: WeightId,
    /// Experts.
    pub n_experts: usize,
    /// Rows; `None` where any number will do (the vocabulary of an embedding).
    pub rows: Option<usize>,
    /// Columns.
    pub cols: usize,
}

/// A relation between dimensions that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What must hold, in words.
    pub expected: &'static str,
    /// The offending dimension.
    pub dimension: &'static str,
    /// Its value.
    pub found: usize,
    /// Whether it holds.
    pub holds: bool,
}

/// Everything that is known of an operation without running it.
#[derive(Clone, Debug)]
pub struct Signature<'a> {
    /// Name of the operation.
    pub kind: &'static str,
    /// Token rows: the plan's rows, or 1 behind a `LastRow`.
    pub rows: usize,
    /// Dimensions, in the order of the operation's fields; all at least 1.
    pub dims: Vec<(&'static str, usize)>,
    /// Operands, in the order of the operation's fields.
    pub operands: Vec<Operand<'a>>,
    /// Weights, in the order of the operation's fields.
    pub weights: Vec<WeightUse>,
    /// Relations between dimensions.
    pub rules: Vec<Rule>,
}

const F32: &[Elem] = &[Elem::F32];
const U32: &[Elem] = &[Elem::U32];
/// Operands that feed a matrix product of several rows: `Act` in [`crate::op`].
const ACT: &[Elem] = &[Elem::F32, Elem::Bf16];
const CACHE: &[Elem] = &[Elem::F32, Elem::Bf16];

/// The product of dimensions in elements, if it fits.
fn product(shape: &[usize]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))
}

impl<'a> Signature<'a> {
    fn new(kind: &'static str, rows: usize) -> Self {
        Signature {
            kind,
            rows,
            dims: vec![("rows", rows)],
            operands: Vec::new(),
            weights: Vec::new(),
            rules: Vec::new(),
        }
    }

    fn dims(mut self, dims: &[(&'static str, usize)]) -> Self {
        self.dims.extend_from_slice(dims);
        self
    }

    fn operand(
        mut self,
        name: &'static str,
        region: &'a Region,
        access: Access,
        elems: &'static [Elem],
        shape: &[usize],
    ) -> Self {
        let len = product(shape);
        let home = Home::Any;
        self.operands.push(Operand { name, region, access, elems, len, home, in_place: false });
        self
    }

    fn read(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Read, F32, shape)
    }
    fn write(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Write, F32, shape)
    }
    fn read_act(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Read, ACT, shape)
    }
    fn write_act(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Write, ACT, shape)
    }
    fn update(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Update, F32, shape)
    }
    fn read_index(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Read, U32, shape)
    }
    fn write_index(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Write, U32, shape)
    }
    fn control(self, region: &'a Region) -> Self {
        self.read_index("control", region, &[2]).home(Home::Control)
    }
    fn cache(
        self,
        name: &'static str,
        region: &'a Region,
        access: Access,
        shape: &[usize],
    ) -> Self {
        self.operand(name, region, access, CACHE, shape).home(Home::Class(BufferClass::KvCache))
    }
    fn state(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.update(name, region, shape).home(Home::Class(BufferClass::State))
    }

    /// Restricts the operand added last.
    fn home(mut self, home: Home) -> Self {
        if let Some(last) = self.operands.last_mut() {
            last.home = home;
        }
        self
    }
    /// Lets the operand added last be the region that is written.
    fn in_place(mut self) -> Self {
        if let Some(last) = self.operands.last_mut() {
            last.in_place = true;
        }
        self
    }

    fn weight(
        mut self,
        name: &'static str,
        id: WeightId,
        n_experts: usize,
        rows: Option<usize>,
        cols: usize,
    ) -> Self {
        self.weights.push(WeightUse { name, id, n_experts, rows, cols });
        self
    }
    fn matrix(self, name: &'static str, id: WeightId, n: usize, k: usize) -> Self {
        self.weight(name, id, 1, Some(n), k)
    }
    fn vector(self, name: &'static str, id: WeightId, len: usize) -> Self {
        self.weight(name, id, 1, Some(len), 1)
    }

    fn rule(
        mut self,
        dimension: &'static str,
        found: usize,
        holds: bool,
        expected: &'static str,
    ) -> Self {
        self.rules.push(Rule { expected, dimension, found, holds });
        self
    }
    /// For operations on one token only.
    fn one_row(self) -> Self {
        let rows = self.rows;
        self.rule("rows", rows, rows == 1, "1")
    }
    /// A norm that the operation does itself, on rows of `k`.
    fn norm(self, norm: Option<&FoldedNorm>, k: usize) -> Self {
        match norm {
            Some(norm) => self.vector("norm", norm.weight, k),
            None => self,
        }
    }
}

fn divides(divisor: usize, n: usize) -> bool {
    divisor != 0 && n.is_multiple_of(divisor)
}

impl Op {
    /// Reads, writes, weights, dimensions and their rules.
    pub fn signature(&self) -> Signature<'_> {
        match self {
            Op::Embed(o) => linear::embed(o),
            Op::RmsNorm(o) => elementwise::rms_norm(o),
            Op::Linear(o) => linear::linear(o),
            Op::StackedLinear(o) => linear::stacked_linear(o),
            Op::GatedLinear(o) => linear::gated_linear(o),
            Op::SwiGlu(o) => elementwise::swiglu(o),
            Op::Add(o) => elementwise::add(o),
            Op::Conv(o) => gated_delta::conv(o),
            Op::GatedDelta(o) => gated_delta::gated_delta(o),
            Op::GatedRmsNorm(o) => gated_delta::gated_rms_norm(o),
            Op::DeltaMix(o) => gated_delta::delta_mix(o),
            Op::RopeAppend(o) => attention::rope_append(o),
            Op::Attention(o) => attention::attention(o),
            Op::OutputGate(o) => attention::output_gate(o),
            Op::AttentionSplit(o) => attention::attention_split(o),
            Op::AttentionMerge(o) => attention::attention_merge(o),
            Op::Route(o) => moe::route(o),
            Op::GroupByExpert(o) => moe::group_by_expert(o),
            Op::ExpertLinear(o) => moe::expert_linear(o),
            Op::ExpertGatedLinear(o) => moe::expert_gated_linear(o),
            Op::RoutedGatedLinear(o) => moe::routed_gated_linear(o),
            Op::RoutedDown(o) => moe::routed_down(o),
            Op::MoeCombine(o) => moe::moe_combine(o),
            Op::LastRow(o) => sample::last_row(o),
            Op::ArgmaxParts(o) => sample::argmax_parts(o),
            Op::Advance(o) => sample::advance(o),
        }
    }
}
