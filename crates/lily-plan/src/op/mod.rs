//! The closed set of operations a plan is made of.
//!
//! Every operand is a [`Region`](crate::buffer::Region); matrices are row-major and start at the
//! region's first byte. `rows` is the number of token rows a plan was built for; a run may use fewer
//! (control block), and a device then touches only the leading rows. Devices match [`Op`] without a
//! wildcard.
//!
//! Notation: `T` rows, `H` hidden size, all activations `f32` unless said otherwise. Operands that
//! feed a matrix product of several rows may be `bf16` instead (`Act` below): the outputs of
//! [`RmsNorm`], [`GatedRmsNorm`], [`SwiGlu`], [`GatedLinear`], [`ExpertGatedLinear`], [`Attention`]
//! and [`OutputGate`], and the inputs `x` of [`Linear`], [`GatedLinear`], [`ExpertLinear`] and
//! [`ExpertGatedLinear`]. A region's type is its buffer's.

mod attention;
mod elementwise;
mod gated_delta;
mod linear;
mod moe;
mod sample;

pub use attention::{Attention, AttentionMerge, AttentionSplit, OutputGate, RopeAppend};
pub use elementwise::{Add, RmsNorm, SwiGlu};
pub use gated_delta::{Conv, DeltaMix, GatedDelta, GatedRmsNorm};
pub use linear::{Embed, FoldedNorm, GatedLinear, Linear, StackedLinear, StackedPart};
pub use moe::{
    ExpertGatedLinear, ExpertLinear, GroupByExpert, MoeCombine, Route, RoutedDown,
    RoutedGatedLinear,
};
pub use sample::{Advance, ArgmaxParts, LastRow, NO_TOKEN};

/// One operation with its operands.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is documented at its struct")]
pub enum Op {
    Embed(Embed),
    RmsNorm(RmsNorm),
    Linear(Linear),
    StackedLinear(StackedLinear),
    GatedLinear(GatedLinear),
    SwiGlu(SwiGlu),
    Add(Add),
    Conv(Conv),
    GatedDelta(GatedDelta),
    GatedRmsNorm(GatedRmsNorm),
    DeltaMix(DeltaMix),
    RopeAppend(RopeAppend),
    Attention(Attention),
    OutputGate(OutputGate),
    AttentionSplit(AttentionSplit),
    AttentionMerge(AttentionMerge),
    Route(Route),
    GroupByExpert(GroupByExpert),
    ExpertLinear(ExpertLinear),
    ExpertGatedLinear(ExpertGatedLinear),
    RoutedGatedLinear(RoutedGatedLinear),
    RoutedDown(RoutedDown),
    MoeCombine(MoeCombine),
    LastRow(LastRow),
    ArgmaxParts(ArgmaxParts),
    Advance(Advance),
}
