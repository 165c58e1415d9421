//! The choice of a token.

use lily_plan::op::{Advance, ArgmaxParts};

use super::{Context, LowerError};
use crate::launch::Launch;

pub(super) fn argmax_parts(cx: &Context<'_>, _op: &ArgmaxParts) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn advance(cx: &Context<'_>, _op: &Advance) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}
