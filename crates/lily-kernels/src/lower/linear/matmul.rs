//! Products of many rows: matrix-matrix kernels.

use lily_plan::buffer::Region;
use lily_plan::op::{ExpertGatedLinear, ExpertLinear, GatedLinear, Linear, StackedLinear};

use super::matvec;
use crate::launch::{Binding, Extent, Kernel, Launch, Module};
use crate::lower::{Block, Context, LowerError};

pub(super) fn linear(cx: &Context<'_>, op: &Linear) -> Result<Launch, LowerError> {
    if !whole_packets(op.k) {
        return matvec::linear(cx, op);
    }
    let block = cx.tuning.matmul_block.fitting(cx.elem(&op.x), op.n, op.k);
    let args = vec![
        cx.format(op.weight)?,
        cx.elem_name(&op.x),
        op.n.to_string(),
        op.k.to_string(),
        block.to_string(),
        op.accumulate.to_string(),
        (op.rows == 1).to_string(),
    ];
    Ok(Launch {
        kernel: Kernel { module: Module::Linear, template: "matmul", args },
        grid: grid(op.n, block.columns, row_blocks(block)),
        threads: block.threads(),
        bindings: vec![region(&op.x), Binding::Weight(op.weight), region(&op.out), cx.control()],
    })
}

/// One input to several matrices: a step of decode, which no matrix-matrix kernel takes.
pub(super) fn stacked_linear(cx: &Context<'_>, op: &StackedLinear) -> Result<Launch, LowerError> {
    matvec::stacked_linear(cx, op)
}

pub(super) fn gated_linear(cx: &Context<'_>, op: &GatedLinear) -> Result<Launch, LowerError> {
    if op.norm.is_some() || !whole_packets(op.k) {
        return matvec::gated_linear(cx, op);
    }
    let block = cx.tuning.matmul_block.fitting_pair(cx.elem(&op.x), op.k);
    let args = vec![
        cx.format(op.gate)?,
        cx.format(op.up)?,
        cx.elem_name(&op.x),
        cx.elem_name(&op.out),
        op.n.to_string(),
        op.k.to_string(),
        block.to_string(),
        (op.rows == 1).to_string(),
    ];
    let weights = [op.gate, op.up].map(Binding::Weight);
    Ok(Launch {
        kernel: Kernel { module: Module::Linear, template: "gated_matmul", args },
        grid: grid(op.n, block.columns / 2, row_blocks(block)),
        threads: block.threads(),
        bindings: [region(&op.x)]
            .into_iter()
            .chain(weights)
            .chain([region(&op.out), cx.control()])
            .collect(),
    })
}

pub(super) fn expert_linear(cx: &Context<'_>, op: &ExpertLinear) -> Result<Launch, LowerError> {
    if !whole_packets(op.k) {
        return matvec::expert_linear(cx, op);
    }
    let block = Block::for_experts(cx.tuning, op.rows * op.top_k / op.n_experts).fitting(
        cx.elem(&op.x),
        op.n,
        op.k,
    );
    let args = vec![
        cx.format(op.weight)?,
        cx.elem_name(&op.x),
        op.n_experts.to_string(),
        if op.per_slot { 1 } else { op.top_k }.to_string(),
        op.n.to_string(),
        op.k.to_string(),
        block.to_string(),
    ];
    let operands = [&op.x, &op.offsets, &op.order].map(region);
    Ok(Launch {
        kernel: Kernel { module: Module::Moe, template: "expert_matmul", args },
        grid: grid(op.n, block.columns, slot_blocks(block, op.top_k, op.n_experts)),
        threads: block.threads(),
        bindings: operands
            .into_iter()
            .chain([Binding::Weight(op.weight), region(&op.out)])
            .collect(),
    })
}

pub(super) fn expert_gated_linear(
    cx: &Context<'_>,
    op: &ExpertGatedLinear,
) -> Result<Launch, LowerError> {
    if !whole_packets(op.k) {
        return matvec::expert_gated_linear(cx, op);
    }
    let block = Block::for_experts(cx.tuning, op.rows * op.top_k / op.n_experts)
        .fitting_pair(cx.elem(&op.x), op.k);
    let args = vec![
        cx.format(op.gate)?,
        cx.format(op.up)?,
        cx.elem_name(&op.x),
        cx.elem_name(&op.out),
        op.n_experts.to_string(),
        op.top_k.to_string(),
        op.n.to_string(),
        op.k.to_string(),
        block.to_string(),
    ];
    let operands = [&op.x, &op.offsets, &op.order].map(region);
    let weights = [op.gate, op.up].map(Binding::Weight);
    Ok(Launch {
        kernel: Kernel { module: Module::Moe, template: "expert_gated_matmul", args },
        grid: grid(op.n, block.columns / 2, slot_blocks(block, op.top_k, op.n_experts)),
        threads: block.threads(),
        bindings: operands.into_iter().chain(weights).chain([region(&op.out)]).collect(),
    })
}

/// The kernels stage 32 values of a row at a time.
fn whole_packets(k: usize) -> bool {
    k.is_multiple_of(32)
}

fn region(region: &Region) -> Binding {
    Binding::Region(region.clone())
}

fn grid(n: usize, columns: usize, rows: Extent) -> [Extent; 3] {
    [Extent::Fixed(n.div_ceil(columns) as u32), rows, Extent::Fixed(1)]
}

fn row_blocks(block: Block) -> Extent {
    Extent::Rows { units_per_row: 1, per_group: block.rows as u32, extra: 0 }
}

/// Blocks end at the borders of experts, each of which may leave one block partly filled.
fn slot_blocks(block: Block, top_k: usize, n_experts: usize) -> Extent {
    Extent::Rows {
        units_per_row: top_k as u32,
        per_group: block.rows as u32,
        extra: n_experts as u32,
    }
}
