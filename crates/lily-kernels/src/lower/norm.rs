//! Norms and element-wise steps.

use lily_plan::buffer::Region;
use lily_plan::op::{Add, GatedRmsNorm, LastRow, RmsNorm, SwiGlu};

use super::{Context, LowerError};
use crate::launch::{Binding, Extent, Kernel, Launch, Module};
use crate::params::{NormParams, Params as _};

/// Most threads of a norm, and those of an element-wise threadgroup, each with four elements.
const THREADS: usize = 256;

/// Heads of a gated norm's threadgroup.
const NORM_SIMDGROUPS: usize = 8;

fn kernel(template: &'static str, args: Vec<String>) -> Kernel {
    Kernel { module: Module::Norm, template, args }
}

pub(super) fn rms_norm(cx: &Context<'_>, op: &RmsNorm) -> Result<Launch, LowerError> {
    refuse_odd_width(cx, op.dim)?;
    let threads = (op.dim / 4).next_multiple_of(32).min(THREADS);
    let one = op.rows == 1;
    let args = [op.dim.to_string(), threads.to_string(), one.to_string(), cx.elem_name(&op.out)];
    Ok(Launch {
        kernel: kernel("rms_norm", args.to_vec()),
        grid: [
            Extent::Rows { units_per_row: 1, per_group: 1, extra: 0 },
            Extent::Fixed(1),
            Extent::Fixed(1),
        ],
        threads: threads as u32,
        bindings: vec![
            Binding::Region(op.x.clone()),
            Binding::Weight(op.weight),
            Binding::Region(op.out.clone()),
            cx.control(),
            Binding::Params(NormParams { eps: op.eps }.bytes()),
        ],
    })
}

pub(super) fn gated_rms_norm(cx: &Context<'_>, op: &GatedRmsNorm) -> Result<Launch, LowerError> {
    refuse_odd_width(cx, op.dim)?;
    let one = op.rows == 1;
    let mut args = [op.heads, op.dim, NORM_SIMDGROUPS].map(|n| n.to_string()).to_vec();
    args.extend([op.sigmoid.to_string(), one.to_string(), cx.elem_name(&op.out)]);
    let heads = Extent::Rows {
        units_per_row: op.heads as u32,
        per_group: NORM_SIMDGROUPS as u32,
        extra: 0,
    };
    Ok(Launch {
        kernel: kernel("gated_rms_norm", args),
        grid: [heads, Extent::Fixed(1), Extent::Fixed(1)],
        threads: 32 * NORM_SIMDGROUPS as u32,
        bindings: vec![
            Binding::Region(op.x.clone()),
            Binding::Region(op.gate.clone()),
            Binding::Weight(op.weight),
            Binding::Region(op.out.clone()),
            cx.control(),
            Binding::Params(NormParams { eps: op.eps }.bytes()),
        ],
    })
}

pub(super) fn swiglu(cx: &Context<'_>, op: &SwiGlu) -> Result<Launch, LowerError> {
    let per_row = op.rows_per_token * op.dim;
    let one = op.rows == op.rows_per_token;
    let args = [per_row.to_string(), one.to_string(), cx.elem_name(&op.out)];
    elementwise(cx, kernel("swiglu", args.to_vec()), per_row, &[&op.gate, &op.up, &op.out])
}

pub(super) fn add(cx: &Context<'_>, op: &Add) -> Result<Launch, LowerError> {
    let args = [op.dim.to_string(), (op.rows == 1).to_string()];
    elementwise(cx, kernel("add", args.to_vec()), op.dim, &[&op.x, &op.y])
}

fn elementwise(
    cx: &Context<'_>,
    kernel: Kernel,
    per_row: usize,
    operands: &[&Region],
) -> Result<Launch, LowerError> {
    refuse_odd_width(cx, per_row)?;
    let elements =
        Extent::Rows { units_per_row: per_row as u32, per_group: 4 * THREADS as u32, extra: 0 };
    let operands = operands.iter().map(|&region| Binding::Region(region.clone()));
    Ok(Launch {
        kernel,
        grid: [elements, Extent::Fixed(1), Extent::Fixed(1)],
        threads: THREADS as u32,
        bindings: operands.chain([cx.control()]).collect(),
    })
}

pub(super) fn last_row(_: &Context<'_>, op: &LastRow) -> Result<Launch, LowerError> {
    let groups = op.dim.div_ceil(THREADS) as u32;
    Ok(Launch {
        kernel: kernel("last_row", vec![op.dim.to_string(), (op.rows == 1).to_string()]),
        grid: [Extent::Fixed(groups), Extent::Fixed(1), Extent::Fixed(1)],
        threads: THREADS as u32,
        bindings: vec![
            Binding::Region(op.x.clone()),
            Binding::Region(op.out.clone()),
            Binding::Region(op.control.clone()),
        ],
    })
}

/// Rows are read four elements at a time.
fn refuse_odd_width(cx: &Context<'_>, width: usize) -> Result<(), LowerError> {
    if width.is_multiple_of(4) {
        return Ok(());
    }
    Err(cx.unsupported(format!("rows of {width} elements, not a multiple of 4")))
}
