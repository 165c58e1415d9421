//! Matrix products: embedding, projections, experts. Few rows are matrix-vector products, many are
//! matrix-matrix products ([`Tuning::gemm_rows`](super::Tuning::gemm_rows)).

mod embed;
mod matmul;
pub(super) mod matvec;
pub(super) mod shape;

use lily_plan::op::{ExpertGatedLinear, ExpertLinear, GatedLinear, Linear, StackedLinear};

use super::{Context, LowerError};
use crate::launch::Launch;

pub(super) use embed::embed;

pub(super) fn linear(cx: &Context<'_>, op: &Linear) -> Result<Launch, LowerError> {
    if is_few(cx, op.rows) { matvec::linear(cx, op) } else { matmul::linear(cx, op) }
}

pub(super) fn stacked_linear(cx: &Context<'_>, op: &StackedLinear) -> Result<Launch, LowerError> {
    if is_few(cx, op.rows) {
        matvec::stacked_linear(cx, op)
    } else {
        matmul::stacked_linear(cx, op)
    }
}

pub(super) fn gated_linear(cx: &Context<'_>, op: &GatedLinear) -> Result<Launch, LowerError> {
    if is_few(cx, op.rows) { matvec::gated_linear(cx, op) } else { matmul::gated_linear(cx, op) }
}

pub(super) fn expert_linear(cx: &Context<'_>, op: &ExpertLinear) -> Result<Launch, LowerError> {
    if is_few(cx, op.rows) { matvec::expert_linear(cx, op) } else { matmul::expert_linear(cx, op) }
}

pub(super) fn expert_gated_linear(
    cx: &Context<'_>,
    op: &ExpertGatedLinear,
) -> Result<Launch, LowerError> {
    if is_few(cx, op.rows) {
        matvec::expert_gated_linear(cx, op)
    } else {
        matmul::expert_gated_linear(cx, op)
    }
}

fn is_few(cx: &Context<'_>, rows: usize) -> bool {
    rows < cx.tuning.gemm_rows
}
