//! Norms and element-wise steps.

use lily_plan::op::{Add, GatedRmsNorm, LastRow, RmsNorm, SwiGlu};

use super::{Context, LowerError};
use crate::launch::Launch;

pub(super) fn rms_norm(cx: &Context<'_>, _op: &RmsNorm) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn swiglu(cx: &Context<'_>, _op: &SwiGlu) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn add(cx: &Context<'_>, _op: &Add) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn gated_rms_norm(cx: &Context<'_>, _op: &GatedRmsNorm) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn last_row(cx: &Context<'_>, _op: &LastRow) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}
