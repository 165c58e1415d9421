//! Routing, grouping of slots by expert, and the sum of the experts' outputs.

use lily_plan::buffer::Region;
use lily_plan::op::{GroupByExpert, MoeCombine, Route};

use crate::launch::{Binding, Extent, Kernel, Launch, Module};
use crate::lower::{Context, LowerError};

/// Rows of a threadgroup that routes.
const ROUTE_SIMDGROUPS: usize = 4;

/// Simdgroups that share the slots when those of one expert are gathered.
const GROUP_SIMDGROUPS: usize = 8;

/// Elements of a row that a threadgroup combines.
const COMBINE_ELEMENTS: usize = 512;

fn kernel(template: &'static str, args: &[usize], one: bool) -> Kernel {
    let mut args: Vec<_> = args.iter().map(ToString::to_string).collect();
    args.push(one.to_string());
    Kernel { module: Module::Moe, template, args }
}

fn regions(operands: &[&Region]) -> impl Iterator<Item = Binding> {
    operands.iter().map(|&region| Binding::Region(region.clone()))
}

pub(in crate::lower) fn route(cx: &Context<'_>, op: &Route) -> Result<Launch, LowerError> {
    if op.n_experts > 1024 || op.top_k > 32 {
        let (n, k) = (op.n_experts, op.top_k);
        return Err(
            cx.unsupported(format!("{k} of {n} experts, more than 32 or of more than 1024"))
        );
    }
    let rows = Extent::Rows { units_per_row: 1, per_group: ROUTE_SIMDGROUPS as u32, extra: 0 };
    Ok(Launch {
        kernel: kernel("route", &[op.n_experts, op.top_k, ROUTE_SIMDGROUPS], op.rows == 1),
        grid: [rows, Extent::Fixed(1), Extent::Fixed(1)],
        threads: 32 * ROUTE_SIMDGROUPS as u32,
        bindings: regions(&[&op.logits, &op.experts, &op.weights]).chain([cx.control()]).collect(),
    })
}

pub(in crate::lower) fn group_by_expert(
    cx: &Context<'_>,
    op: &GroupByExpert,
) -> Result<Launch, LowerError> {
    let groups = Extent::Fixed(op.n_experts as u32);
    Ok(Launch {
        kernel: kernel(
            "group_by_expert",
            &[op.n_experts, op.top_k, GROUP_SIMDGROUPS],
            op.rows == 1,
        ),
        grid: [groups, Extent::Fixed(1), Extent::Fixed(1)],
        threads: 32 * GROUP_SIMDGROUPS as u32,
        bindings: regions(&[&op.experts, &op.offsets, &op.order]).chain([cx.control()]).collect(),
    })
}

pub(in crate::lower) fn moe_combine(
    cx: &Context<'_>,
    op: &MoeCombine,
) -> Result<Launch, LowerError> {
    if !op.dim.is_multiple_of(4) {
        let dim = op.dim;
        return Err(cx.unsupported(format!("rows of {dim} elements, not a multiple of 4")));
    }
    let operands = [&op.expert_out, &op.weights, &op.shared_out, &op.shared_gate, &op.x];
    let rows = Extent::Rows { units_per_row: 1, per_group: 1, extra: 0 };
    Ok(Launch {
        kernel: kernel("moe_combine", &[op.dim, op.top_k], op.rows == 1),
        grid: [Extent::Fixed(op.dim.div_ceil(COMBINE_ELEMENTS) as u32), rows, Extent::Fixed(1)],
        threads: COMBINE_ELEMENTS as u32 / 4,
        bindings: regions(&operands).chain([cx.control()]).collect(),
    })
}
