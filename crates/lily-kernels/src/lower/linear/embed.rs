//! Rows of the embedding.

use lily_checkpoint::manifest::MatrixFormat;
use lily_plan::op::Embed;

use super::shape::row_extent;
use crate::launch::{Binding, Extent, Kernel, Launch, Module};
use crate::lower::{Context, LowerError};

/// Threads of a threadgroup; each takes at least one value of a row.
const THREADS: usize = 128;

pub(in crate::lower) fn embed(cx: &Context<'_>, op: &Embed) -> Result<Launch, LowerError> {
    let table = cx.matrix(op.table)?;
    let args = vec![
        cx.format(op.table)?,
        table.rows.to_string(),
        op.dim.to_string(),
        THREADS.to_string(),
        (op.rows == 1).to_string(),
    ];
    // As `embed_values` in kernels/embed.
    let per_thread = match table.format {
        MatrixFormat::Affine { bits: 4 | 8, .. } => 8,
        MatrixFormat::Affine { bits: 2, .. } => 16,
        MatrixFormat::Affine { .. } => 32,
        MatrixFormat::Float(dtype) => {
            let wide = 16 / dtype.bytes();
            if op.dim.is_multiple_of(wide) { wide } else { 1 }
        }
    };
    let groups = op.dim.div_ceil(THREADS * per_thread);
    Ok(Launch {
        kernel: Kernel { module: Module::Embed, template: "embed", args },
        grid: [Extent::Fixed(groups as u32), row_extent(op.rows, 1), Extent::Fixed(1)],
        threads: THREADS as u32,
        bindings: vec![
            Binding::Weight(op.table),
            Binding::Region(op.tokens.clone()),
            Binding::Region(op.out.clone()),
            cx.control(),
        ],
    })
}
