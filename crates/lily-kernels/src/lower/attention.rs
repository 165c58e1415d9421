//! Softmax attention.

use lily_plan::op::{Attention, AttentionMerge, AttentionSplit, OutputGate, RopeAppend};

use super::{Context, LowerError};
use crate::launch::Launch;

pub(super) fn rope_append(cx: &Context<'_>, _op: &RopeAppend) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn attention(cx: &Context<'_>, _op: &Attention) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn output_gate(cx: &Context<'_>, _op: &OutputGate) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn attention_split(
    cx: &Context<'_>,
    _op: &AttentionSplit,
) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}

pub(super) fn attention_merge(
    cx: &Context<'_>,
    _op: &AttentionMerge,
) -> Result<Launch, LowerError> {
    Err(cx.unsupported("not written"))
}
