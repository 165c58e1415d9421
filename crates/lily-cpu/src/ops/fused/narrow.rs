//! Operands in `bf16` that feed matrix products: widened before the step, narrowed after it.

use half::bf16;
use lily_plan::buffer::Region;
use lily_plan::op::Op;

use super::super::attention::widen;
use super::super::{Kernel, Part, Run, Workspace};
use super::composite::Composite;
use super::{Compiled, compile_plain};
use crate::weights::Weights;

/// How an operation touches an operand that may be narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    Write,
    Update,
}

/// The operands of an operation that may be `bf16`, with their elements per token row.
fn narrow_operands(op: &mut Op) -> Vec<(&mut Region, Use, usize)> {
    use Use::{Read, Update, Write};
    match op {
        Op::RmsNorm(o) => vec![(&mut o.out, Write, o.dim)],
        Op::Linear(o) => vec![(&mut o.x, Read, o.k)],
        Op::GatedLinear(o) => vec![(&mut o.x, Read, o.k), (&mut o.out, Write, o.n)],
        Op::SwiGlu(o) => vec![(&mut o.out, Write, o.rows_per_token * o.dim)],
        Op::GatedRmsNorm(o) => vec![(&mut o.out, Write, o.heads * o.dim)],
        Op::Attention(o) => vec![(&mut o.out, Write, o.n_heads * o.head_dim)],
        Op::OutputGate(o) => vec![(&mut o.x, Update, o.n_heads * o.head_dim)],
        Op::ExpertLinear(o) => {
            let slots = if o.per_slot { o.top_k } else { 1 };
            vec![(&mut o.x, Read, slots * o.k)]
        }
        Op::ExpertGatedLinear(o) => {
            vec![(&mut o.x, Read, o.k), (&mut o.out, Write, o.top_k * o.n)]
        }
        _ => Vec::new(),
    }
}

/// The kernel of an operation some of whose operands are `bf16`; `None` where none is.
pub(in super::super) fn with_narrow_operands(
    mut op: Op,
    rows: usize,
    weights: &Weights<'_>,
) -> Option<Compiled> {
    let is_narrow = |region: &Region| weights.is_bf16(region.buffer);
    if !narrow_operands(&mut op).iter().any(|(region, _, _)| is_narrow(region)) {
        return None;
    }
    Some(compile_narrow(op, rows, weights))
}

fn compile_narrow(mut op: Op, rows: usize, weights: &Weights<'_>) -> Compiled {
    let mut steps = Composite::new(weights);
    let mut after = Vec::new();
    for (region, access, width) in narrow_operands(&mut op) {
        if !weights.is_bf16(region.buffer) {
            continue;
        }
        let wide = steps.temporary(rows * width)?;
        let narrow = std::mem::replace(region, wide.clone());
        if access != Use::Write {
            steps.push(Widen { from: narrow.clone(), to: wide.clone(), rows, width });
        }
        if access != Use::Read {
            after.push(Narrow { from: wide, to: narrow, rows, width });
        }
    }
    steps.push_boxed(compile_plain(&op, weights)?);
    after.into_iter().for_each(|kernel| steps.push(kernel));
    Ok(Box::new(steps))
}

/// `F32` from `Bf16`, `width` elements per token row.
struct Widen {
    from: Region,
    to: Region,
    rows: usize,
    width: usize,
}

impl Kernel for Widen {
    fn tasks(&self, _: &Run<'_>) -> usize {
        1
    }

    fn task(&self, run: &Run<'_>, _: Part, _: &mut Workspace) {
        let elements = 0..run.rows(self.rows) * self.width;
        // SAFETY: the plan's hazards exclude writers of `from`, and `to` is this step's own.
        let (from, to) = unsafe {
            (
                run.memory.read::<bf16>(&self.from, elements.clone()),
                run.memory.write::<f32>(&self.to, elements),
            )
        };
        widen(run.isa, from, to);
    }
}

/// `Bf16` from `F32`, to the nearest, ties to even.
struct Narrow {
    from: Region,
    to: Region,
    rows: usize,
    width: usize,
}

impl Kernel for Narrow {
    fn tasks(&self, _: &Run<'_>) -> usize {
        1
    }

    fn task(&self, run: &Run<'_>, _: Part, _: &mut Workspace) {
        let elements = 0..run.rows(self.rows) * self.width;
        // SAFETY: `from` is this step's own, and this is the only task that writes `to`.
        let (from, to) = unsafe {
            (
                run.memory.read::<f32>(&self.from, elements.clone()),
                run.memory.write::<bf16>(&self.to, elements),
            )
        };
        for (to, from) in to.iter_mut().zip(from) {
            *to = bf16::from_f32(*from);
        }
    }
}
