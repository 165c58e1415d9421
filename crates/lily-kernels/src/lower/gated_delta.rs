//! Gated DeltaNet.

use lily_plan::op::{Conv, DeltaMix, GatedDelta};

use super::{Context, LowerError};
use crate::launch::Launch;

pub(super) fn conv(cx: &Context<'_>, _op: &Conv) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn gated_delta(cx: &Context<'_>, _op: &GatedDelta) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn delta_mix(cx: &Context<'_>, _op: &DeltaMix) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}
