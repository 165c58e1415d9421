//! The choice of a token.

use lily_plan::op::{Advance, ArgmaxParts};

use super::{Context, LowerError};
use crate::launch::{Binding, Extent, Kernel, Launch, Module};

const THREADS: u32 = 256;

fn launch(
    template: &'static str,
    args: [usize; 2],
    groups: usize,
    bindings: Vec<Binding>,
) -> Launch {
    let args = args.map(|n| n.to_string()).to_vec();
    Launch {
        kernel: Kernel { module: Module::Sample, template, args },
        grid: [Extent::Fixed(groups as u32), Extent::Fixed(1), Extent::Fixed(1)],
        threads: THREADS,
        bindings,
    }
}

pub(super) fn argmax_parts(_: &Context<'_>, op: &ArgmaxParts) -> Result<Launch, LowerError> {
    let bindings = [&op.logits, &op.values, &op.ids].map(|region| Binding::Region(region.clone()));
    Ok(launch("argmax_parts", [op.vocab, op.parts], op.parts, bindings.to_vec()))
}

pub(super) fn advance(_: &Context<'_>, op: &Advance) -> Result<Launch, LowerError> {
    let operands = [&op.control, &op.values, &op.ids, &op.tokens, &op.ring];
    let bindings = operands.map(|region| Binding::Region(region.clone()));
    Ok(launch("advance", [op.parts, op.ring_len], 1, bindings.to_vec()))
}
