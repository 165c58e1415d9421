//! Matrix products: embedding, projections, experts.

use lily_plan::op::{Embed, ExpertGatedLinear, ExpertLinear, GatedLinear, Linear, StackedLinear};

use super::{Context, LowerError};
use crate::launch::Launch;

pub(super) fn embed(cx: &Context<'_>, _op: &Embed) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

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
