//! Products of few rows: one matrix-vector product per row.

use lily_plan::buffer::{Region, WeightId};
use lily_plan::op::{
    ExpertGatedLinear, ExpertLinear, FoldedNorm, GatedLinear, Linear, StackedLinear,
};

use super::shape::{Shape, WHOLE_TILE, row_extent};
use crate::launch::{Binding, Extent, Kernel, Launch, Module};
use crate::lower::{Context, LowerError};
use crate::params::{NormParams, Params};

/// Rows of one matrix that a simdgroup takes at most.
const MOST_ROWS: usize = 4;
/// The same where a row of a second matrix comes with each.
const MOST_GATED_ROWS: usize = 2;

pub(super) fn linear(cx: &Context<'_>, op: &Linear) -> Result<Launch, LowerError> {
    let format = cx.matrix(op.weight)?.format;
    let shape = Shape::choose(cx.tuning, &[format], &[op.n], op.k, MOST_ROWS);
    let args = vec![
        cx.format(op.weight)?,
        cx.elem_name(&op.x),
        op.n.to_string(),
        op.k.to_string(),
        shape.rows.to_string(),
        shape.simdgroups.to_string(),
        op.accumulate.to_string(),
        (op.rows == 1).to_string(),
    ];
    let bindings = vec![Binding::Weight(op.weight), region(&op.x), region(&op.out), cx.control()];
    let groups = shape.groups(op.n);
    Ok(launch(Module::Linear, "matvec", args, shape, [groups, op.rows, 1], bindings))
}

pub(super) fn stacked_linear(cx: &Context<'_>, op: &StackedLinear) -> Result<Launch, LowerError> {
    let matrices: Vec<_> =
        op.parts.iter().map(|part| cx.matrix(part.weight)).collect::<Result<_, _>>()?;
    let formats: Vec<_> = matrices.iter().map(|matrix| matrix.format).collect();
    let ns: Vec<_> = op.parts.iter().map(|part| part.n).collect();
    let shape = Shape::choose(cx.tuning, &formats, &ns, op.k, MOST_ROWS);
    let shares: usize = ns.iter().map(|n| shape.groups(*n)).sum();
    let turns = match op.parts.len() {
        1 if op.k <= WHOLE_TILE => shares.div_ceil(cx.tuning.matvec_groups.max(1)),
        _ => 1,
    };

    let mut args = vec![
        op.k.to_string(),
        shape.simdgroups.to_string(),
        op.norm.is_some().to_string(),
        (op.rows == 1).to_string(),
        turns.to_string(),
    ];
    let mut weights = Vec::new();
    let mut outs = Vec::new();
    for i in 0..StackedLinear::MOST_PARTS {
        // An unused part has no rows; what it is bound to is never touched.
        let part = op.parts.get(i).unwrap_or(&op.parts[0]);
        let n = op.parts.get(i).map_or(0, |part| part.n);
        args.extend([cx.format(part.weight)?, n.to_string(), shape.rows.to_string()]);
        weights.push(Binding::Weight(part.weight));
        outs.push(region(&part.out));
    }
    let mut bindings = vec![region(&op.x), norm_weight(op.norm.as_ref(), &op.x)];
    bindings.append(&mut weights);
    bindings.append(&mut outs);
    bindings.extend([norm_params(op.norm.as_ref()), cx.control()]);
    let grid = [shares.div_ceil(turns), op.rows, 1];
    Ok(launch(Module::Linear, "stacked_matvec", args, shape, grid, bindings))
}

pub(super) fn gated_linear(cx: &Context<'_>, op: &GatedLinear) -> Result<Launch, LowerError> {
    let shape = gated_shape(cx, [op.gate, op.up], op.n, op.k)?;
    let args = vec![
        cx.format(op.gate)?,
        cx.format(op.up)?,
        cx.elem_name(&op.x),
        cx.elem_name(&op.out),
        op.n.to_string(),
        op.k.to_string(),
        shape.rows.to_string(),
        shape.simdgroups.to_string(),
        op.norm.is_some().to_string(),
        (op.rows == 1).to_string(),
    ];
    let bindings = vec![
        Binding::Weight(op.gate),
        Binding::Weight(op.up),
        region(&op.x),
        norm_weight(op.norm.as_ref(), &op.x),
        region(&op.out),
        norm_params(op.norm.as_ref()),
        cx.control(),
    ];
    let groups = shape.groups(op.n);
    Ok(launch(Module::Linear, "gated_matvec", args, shape, [groups, op.rows, 1], bindings))
}

pub(super) fn expert_linear(cx: &Context<'_>, op: &ExpertLinear) -> Result<Launch, LowerError> {
    let format = cx.matrix(op.weight)?.format;
    let shape = Shape::choose(cx.tuning, &[format], &vec![op.n; op.top_k], op.k, MOST_ROWS);
    let args = vec![
        cx.format(op.weight)?,
        cx.elem_name(&op.x),
        op.n_experts.to_string(),
        op.top_k.to_string(),
        op.n.to_string(),
        op.k.to_string(),
        op.per_slot.to_string(),
        shape.rows.to_string(),
        shape.simdgroups.to_string(),
    ];
    let bindings = vec![
        Binding::Weight(op.weight),
        region(&op.x),
        region(&op.offsets),
        region(&op.order),
        region(&op.out),
    ];
    let grid = [shape.groups(op.n), op.rows, op.top_k];
    Ok(launch(Module::Moe, "expert_matvec", args, shape, grid, bindings))
}

pub(super) fn expert_gated_linear(
    cx: &Context<'_>,
    op: &ExpertGatedLinear,
) -> Result<Launch, LowerError> {
    let shape = gated_shape(cx, [op.gate, op.up], op.n, op.k)?;
    let args = vec![
        cx.format(op.gate)?,
        cx.format(op.up)?,
        cx.elem_name(&op.x),
        cx.elem_name(&op.out),
        op.n_experts.to_string(),
        op.top_k.to_string(),
        op.n.to_string(),
        op.k.to_string(),
        shape.rows.to_string(),
        shape.simdgroups.to_string(),
    ];
    let bindings = vec![
        Binding::Weight(op.gate),
        Binding::Weight(op.up),
        region(&op.x),
        region(&op.offsets),
        region(&op.order),
        region(&op.out),
    ];
    let grid = [shape.groups(op.n), op.rows, op.top_k];
    Ok(launch(Module::Moe, "expert_gated_matvec", args, shape, grid, bindings))
}

/// The cut of a step with a gate and an up matrix of `n` rows.
fn gated_shape(
    cx: &Context<'_>,
    weights: [WeightId; 2],
    n: usize,
    k: usize,
) -> Result<Shape, LowerError> {
    let formats = [cx.matrix(weights[0])?.format, cx.matrix(weights[1])?.format];
    Ok(Shape::choose(cx.tuning, &formats, &[n], k, MOST_GATED_ROWS))
}

/// `grid`: threadgroups of one row, rows, units of each row.
fn launch(
    module: Module,
    template: &'static str,
    args: Vec<String>,
    shape: Shape,
    grid: [usize; 3],
    bindings: Vec<Binding>,
) -> Launch {
    let [groups, rows, units] = grid;
    Launch {
        kernel: Kernel { module, template, args },
        grid: [Extent::Fixed(groups as u32), row_extent(rows, units), Extent::Fixed(1)],
        threads: shape.threads(),
        bindings,
    }
}

fn region(region: &Region) -> Binding {
    Binding::Region(region.clone())
}

/// The weight of a folded norm; without one, anything, because it is not read.
pub(in crate::lower) fn norm_weight(norm: Option<&FoldedNorm>, x: &Region) -> Binding {
    norm.map_or_else(|| region(x), |norm| Binding::Weight(norm.weight))
}

/// What a kernel with an optional folded norm takes by value.
pub(in crate::lower) fn norm_params(norm: Option<&FoldedNorm>) -> Binding {
    Binding::Params(NormParams { eps: norm.map_or(0.0, |norm| norm.eps) }.bytes())
}
