//! Products of many rows: matrix-matrix kernels.

use lily_plan::op::{ExpertGatedLinear, ExpertLinear, GatedLinear, Linear, StackedLinear};

use crate::launch::Launch;
use crate::lower::{Context, LowerError};

pub(super) fn linear(cx: &Context<'_>, _op: &Linear) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn stacked_linear(cx: &Context<'_>, _op: &StackedLinear) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn gated_linear(cx: &Context<'_>, _op: &GatedLinear) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn expert_linear(cx: &Context<'_>, _op: &ExpertLinear) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn expert_gated_linear(
    cx: &Context<'_>,
    _op: &ExpertGatedLinear,
) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}
