//! Gated DeltaNet.

use lily_plan::op::{Conv, DeltaMix, GatedDelta};

use super::{Context, LowerError, Tuning};
use crate::launch::{Binding, Extent, Kernel, Launch, Module};
use crate::params::{NormParams, Params};

const CONV_THREADS: usize = 256;

/// Fewest lanes that share a row of the recurrent state.
const LEAST_LANES: usize = 4;

/// Rows of the recurrent state in one simdgroup.
const SIMDGROUP_ROWS: usize = 8;

const SCAN_SIMDGROUPS: usize = 4;

/// Value rows and simdgroups of a threadgroup of the scan by chunks.
const CHUNK_VALUES: usize = 32;
const CHUNK_SIMDGROUPS: usize = 8;

/// Floats that fit into 32 KiB.
const SCAN_FLOATS: usize = 8192;

fn kernel(template: &'static str, args: Vec<String>) -> Kernel {
    Kernel { module: Module::GatedDelta, template, args }
}

fn fixed(groups: usize) -> Extent {
    Extent::Fixed(groups as u32)
}

pub(super) fn conv(_: &Context<'_>, op: &Conv) -> Result<Launch, LowerError> {
    let one = op.rows == 1;
    // A whole number of loads, and at least as long as the window.
    let block = if one { op.width } else { op.width.next_multiple_of(8).max(32) };
    let mut args = [op.channels, op.width, block, CONV_THREADS].map(|n| n.to_string()).to_vec();
    args.push(one.to_string());
    let blocks = Extent::Rows { units_per_row: 1, per_group: block as u32, extra: 0 };
    Ok(Launch {
        kernel: kernel("conv", args),
        grid: [fixed(op.channels.div_ceil(CONV_THREADS)), blocks, Extent::Fixed(1)],
        threads: CONV_THREADS as u32,
        bindings: vec![
            Binding::Region(op.control.clone()),
            Binding::Region(op.x.clone()),
            Binding::Weight(op.weight),
            Binding::Region(op.state.clone()),
            Binding::Region(op.out.clone()),
        ],
    })
}

pub(super) fn gated_delta(cx: &Context<'_>, op: &GatedDelta) -> Result<Launch, LowerError> {
    refuse_key_dim(cx, op.key_dim)?;
    let shape = [op.key_heads, op.value_heads, op.key_dim, op.value_dim];
    let mut args = shape.map(|n| n.to_string()).to_vec();
    let (template, values, simdgroups) = if by_chunks(cx, op) {
        ("gated_delta_chunks", CHUNK_VALUES, CHUNK_SIMDGROUPS)
    } else {
        let (lanes, block) = scan_shape(cx, op);
        args.extend([lanes, SCAN_SIMDGROUPS, block].map(|n| n.to_string()));
        args.push((op.rows == 1).to_string());
        ("gated_delta", SCAN_SIMDGROUPS * SIMDGROUP_ROWS, SCAN_SIMDGROUPS)
    };
    let slices = op.value_dim.div_ceil(values);
    Ok(Launch {
        kernel: kernel(template, args),
        grid: [fixed(op.value_heads * slices), Extent::Fixed(1), Extent::Fixed(1)],
        threads: 32 * simdgroups as u32,
        bindings: vec![
            cx.control(),
            Binding::Region(op.qkv.clone()),
            Binding::Region(op.a.clone()),
            Binding::Region(op.b.clone()),
            Binding::Weight(op.a_log),
            Binding::Weight(op.dt_bias),
            Binding::Region(op.state.clone()),
            Binding::Region(op.out.clone()),
        ],
    })
}

/// Lanes that share a row of the recurrent state.
fn lanes(lanes: usize, key_dim: usize) -> usize {
    if key_dim.is_multiple_of(4 * lanes) { lanes } else { LEAST_LANES }
}

/// Whether a scan goes by chunks of tokens: what chunk.h requires, and rows enough.
fn by_chunks(cx: &Context<'_>, op: &GatedDelta) -> bool {
    cx.tuning.scan_chunks
        && op.rows >= Tuning::SCAN_CHUNK_ROWS
        && op.key_dim.is_multiple_of(32)
        && op.key_dim <= 128
        && op.value_dim.is_multiple_of(CHUNK_VALUES)
}

/// Lanes of a row of the state, and tokens of a block.
fn scan_shape(cx: &Context<'_>, op: &GatedDelta) -> (usize, usize) {
    let lanes = lanes(cx.tuning.delta_lanes, op.key_dim);
    // What scan.h says it needs.
    let floats = |block: usize| {
        let token = 2 * op.key_dim + SIMDGROUP_ROWS * SCAN_SIMDGROUPS + 2 * block + 4;
        SCAN_SIMDGROUPS * block * token
    };
    let mut block = if op.rows == 1 { 1 } else { cx.tuning.scan_block };
    while block > 1 && floats(block) > SCAN_FLOATS {
        block /= 2;
    }
    (lanes, block)
}

pub(super) fn delta_mix(cx: &Context<'_>, op: &DeltaMix) -> Result<Launch, LowerError> {
    refuse_key_dim(cx, op.key_dim)?;
    if !op.value_dim.is_multiple_of(32) || op.value_dim > 256 {
        let found = op.value_dim;
        return Err(
            cx.unsupported(format!("value heads of {found}, not a multiple of 32 up to 256"))
        );
    }
    let shape = [op.key_heads, op.value_heads, op.key_dim, op.value_dim, op.width];
    let mut args = shape.map(|n| n.to_string()).to_vec();
    args.push(lanes(cx.tuning.mix_lanes, op.key_dim).to_string());
    args.push(op.sigmoid.to_string());
    let mut cluster = cx.tuning.delta_cluster.max(1);
    while !op.value_dim.is_multiple_of(32 * cluster) {
        cluster /= 2;
    }
    args.push(cluster.to_string());
    Ok(Launch {
        kernel: kernel("delta_mix", args),
        grid: [fixed(op.value_heads * cluster), Extent::Fixed(1), Extent::Fixed(1)],
        threads: 32 * (op.value_dim / cluster / SIMDGROUP_ROWS) as u32,
        bindings: vec![
            Binding::Region(op.control.clone()),
            Binding::Region(op.qkv.clone()),
            Binding::Region(op.z.clone()),
            Binding::Region(op.a.clone()),
            Binding::Region(op.b.clone()),
            Binding::Weight(op.conv),
            Binding::Region(op.conv_state.clone()),
            Binding::Weight(op.a_log),
            Binding::Weight(op.dt_bias),
            Binding::Weight(op.norm),
            Binding::Region(op.state.clone()),
            Binding::Region(op.out.clone()),
            Binding::Params(NormParams { eps: op.eps }.bytes()),
        ],
    })
}

/// A row of the state is shared by [`LEAST_LANES`] or more lanes in vectors of four.
fn refuse_key_dim(cx: &Context<'_>, key_dim: usize) -> Result<(), LowerError> {
    if key_dim.is_multiple_of(4 * LEAST_LANES) && key_dim <= 256 {
        return Ok(());
    }
    Err(cx.unsupported(format!(
        "key heads of {key_dim}, not a multiple of {} up to 256",
        4 * LEAST_LANES
    )))
}
