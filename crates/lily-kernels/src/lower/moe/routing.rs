//! Routing, grouping of slots by expert, and the sum of the experts' outputs.

use lily_plan::op::{GroupByExpert, MoeCombine, Route};

use crate::launch::Launch;
use crate::lower::{Context, LowerError};

pub(in crate::lower) fn route(cx: &Context<'_>, _op: &Route) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(in crate::lower) fn group_by_expert(
    cx: &Context<'_>,
    _op: &GroupByExpert,
) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(in crate::lower) fn moe_combine(
    cx: &Context<'_>,
    _op: &MoeCombine,
) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}
