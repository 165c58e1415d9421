//! Routing, fused experts of one token, and their sum.

use lily_plan::op::{GroupByExpert, MoeCombine, Route, RoutedDown, RoutedGatedLinear};

use super::{Context, LowerError};
use crate::launch::Launch;

pub(super) fn route(cx: &Context<'_>, _op: &Route) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn group_by_expert(cx: &Context<'_>, _op: &GroupByExpert) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn routed_gated_linear(
    cx: &Context<'_>,
    _op: &RoutedGatedLinear,
) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn routed_down(cx: &Context<'_>, _op: &RoutedDown) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn moe_combine(cx: &Context<'_>, _op: &MoeCombine) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}
