//! The experts of one token, in two steps.

use lily_checkpoint::manifest::{Dtype, MatrixFormat};
use lily_plan::buffer::{Region, WeightId};
use lily_plan::op::{Op, RoutedDown, RoutedGatedLinear};

use crate::launch::{Binding, Extent, Kernel, Launch, Module};
use crate::lower::linear::matvec::{norm_params, norm_weight};
use crate::lower::{Context, LowerError};

/// Experts that one simdgroup can route to: 32 logits per lane.
const MOST_EXPERTS: usize = 1024;
/// Slots of a token: one per lane.
const MOST_SLOTS: usize = 32;
/// Rows of a tile of a machine's own product, and the longest rows of which a simdgroup holds that many.
const TILE_ROWS: usize = 16;
const MOST_TILE_DEPTH: usize = 1024;
/// What every back end has of threadgroup memory.
const MOST_BYTES: usize = 32 << 10;
/// Most simdgroups of such a threadgroup; beyond, one takes several slots.
const MOST_DOWN_SIMDGROUPS: usize = 16;

pub(in crate::lower) fn routed_gated_linear(
    cx: &Context<'_>,
    op: &RoutedGatedLinear,
) -> Result<Launch, LowerError> {
    if op.n_experts > MOST_EXPERTS || op.top_k > MOST_SLOTS || op.top_k > op.n_experts {
        return Err(cx.unsupported(format!("{} of {} experts", op.top_k, op.n_experts)));
    }
    let (most_rows, simdgroups) = cx.tuning.routed_gated;
    let rows = if op.n.min(op.shared_n) < most_rows { 1 } else { most_rows };
    let args = vec![
        cx.format(op.gate)?,
        cx.format(op.up)?,
        cx.format(op.shared_gate_proj)?,
        cx.format(op.shared_up_proj)?,
        op.n_experts.to_string(),
        op.top_k.to_string(),
        op.n.to_string(),
        op.shared_n.to_string(),
        op.k.to_string(),
        rows.to_string(),
        simdgroups.to_string(),
        op.norm.is_some().to_string(),
    ];
    let groups_of = |n: usize| n.div_ceil(rows * simdgroups);
    let groups = op.top_k * groups_of(op.n) + groups_of(op.shared_n);
    Ok(Launch {
        kernel: Kernel { module: Module::Moe, template: "routed_gated_matvec", args },
        grid: [Extent::Fixed(groups as u32), Extent::Fixed(1), Extent::Fixed(1)],
        threads: simdgroups as u32 * 32,
        bindings: vec![
            Binding::Region(op.x.clone()),
            norm_weight(op.norm.as_ref(), &op.x),
            Binding::Region(op.logits.clone()),
            Binding::Region(op.shared_gate.clone()),
            Binding::Weight(op.gate),
            Binding::Weight(op.up),
            Binding::Weight(op.shared_gate_proj),
            Binding::Weight(op.shared_up_proj),
            Binding::Region(op.experts.clone()),
            Binding::Region(op.weights.clone()),
            Binding::Region(op.out.clone()),
            Binding::Region(op.shared_out.clone()),
            norm_params(op.norm.as_ref()),
        ],
    })
}

pub(in crate::lower) fn routed_down(
    cx: &Context<'_>,
    op: &RoutedDown,
) -> Result<Launch, LowerError> {
    if !reads_published_experts(cx, op) {
        return Err(cx.unsupported("experts that another step than routed_gated_linear chose"));
    }
    let simdgroups = (op.top_k + 1).min(MOST_DOWN_SIMDGROUPS);
    let tiles = cx.tuning.row_tiles
        && tile_bytes(op.top_k, op.n.max(op.shared_n), simdgroups) <= MOST_BYTES
        && takes_tile(cx, op.down, op.n)?
        && takes_tile(cx, op.shared_down, op.shared_n)?;
    let most_rows = if tiles { TILE_ROWS } else { cx.tuning.routed_down_rows };
    let rows = if op.dim < most_rows { 1 } else { most_rows };
    let args = vec![
        cx.format(op.down)?,
        cx.format(op.shared_down)?,
        op.n_experts.to_string(),
        op.top_k.to_string(),
        op.n.to_string(),
        op.shared_n.to_string(),
        op.dim.to_string(),
        rows.to_string(),
        simdgroups.to_string(),
    ];
    Ok(Launch {
        kernel: Kernel { module: Module::Moe, template: "routed_down", args },
        grid: [Extent::Fixed(op.dim.div_ceil(rows) as u32), Extent::Fixed(1), Extent::Fixed(1)],
        threads: simdgroups as u32 * 32,
        bindings: vec![
            Binding::Region(op.mid.clone()),
            Binding::Region(op.shared_mid.clone()),
            Binding::Region(op.experts.clone()),
            Binding::Region(op.weights.clone()),
            Binding::Weight(op.down),
            Binding::Weight(op.shared_down),
            Binding::Region(op.x.clone()),
        ],
    })
}

/// Bytes of threadgroup memory where every simdgroup has the `k` activations of a slot as digits: as in
/// `slot_kind` and the array `part` of the kernels.
fn tile_bytes(top_k: usize, k: usize, simdgroups: usize) -> usize {
    let digits = (k / 128 * 96 + 8) * 4;
    (top_k + 1) * TILE_ROWS * 4 + simdgroups * (digits + k / 64 * 8)
}

/// Whether a machine with its own way for rows (`slot_kind` of the kernels) takes those of this matrix of
/// rows of `k` values.
fn takes_tile(cx: &Context<'_>, weight: WeightId, k: usize) -> Result<bool, LowerError> {
    let format = cx.matrix(weight)?.format;
    let known = matches!(
        format,
        MatrixFormat::Affine { bits: 4, group_size: 64 | 128, scale: Dtype::Bf16 }
    );
    Ok(known && k.is_multiple_of(128) && k <= MOST_TILE_DEPTH)
}

/// The kernel reads the experts before it waits for the step before it, which must publish them.
fn reads_published_experts(cx: &Context<'_>, op: &RoutedDown) -> bool {
    let before = cx.plan.steps.iter().take_while(|step| step.name != cx.step);
    before
        .filter_map(|step| experts_of(&step.op))
        .last()
        .is_some_and(|(experts, published)| published && *experts == op.experts)
}

/// The experts that a step chooses, and whether it publishes them.
fn experts_of(op: &Op) -> Option<(&Region, bool)> {
    match op {
        Op::RoutedGatedLinear(op) => Some((&op.experts, true)),
        Op::Route(op) => Some((&op.experts, false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_many_or_long_slots_do_not_fit() {
        assert_eq!(tile_bytes(8, 512, 9), 15_264);
        assert_eq!(tile_bytes(16, 1024, 16), 52_800);
        assert!(tile_bytes(8, 512, 9) <= MOST_BYTES && tile_bytes(16, 1024, 16) > MOST_BYTES);
    }
}
