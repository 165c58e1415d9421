//! What a step wrote on two machines.

use std::ops::Range;

use lily_plan::access::{Operand, Signature};
use lily_plan::buffer::{BufferClass, Elem};
use lily_plan::plan::Plan;

/// An operand that a step wrote, as far as its rows were active.
pub(crate) struct Written {
    pub(crate) name: &'static str,
    buffer: usize,
    bytes: Range<usize>,
    elem: Elem,
    limit: f64,
}

/// How two machines differ.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Largest difference, in units of the larger of the number and the operand's root mean square.
    pub(crate) error: f64,
    at: usize,
    expected: f64,
    found: f64,
}

/// Relative errors that rounding explains: sums in another order, and operands or results in bf16.
const LIMIT_F32: f64 = 1e-4;
const LIMIT_BF16: f64 = 2e-2;

/// What a step wrote.
pub(crate) fn written(plan: &Plan, signature: &Signature<'_>, rows: usize) -> Vec<Written> {
    let elem = |operand: &Operand<'_>| plan.buffer(operand.region.buffer).elem;
    let rounded = signature.operands.iter().any(|operand| elem(operand) == Elem::Bf16);
    let limit = if rounded { LIMIT_BF16 } else { LIMIT_F32 };
    let active = |operand: &Operand<'_>| {
        let Range { start, end } = operand.region.bytes;
        let part = if by_rows(plan, signature, operand) {
            (end - start) / signature.rows as u64 * rows.min(signature.rows) as u64
        } else {
            end - start
        };
        start as usize..(start + part) as usize
    };
    let written = signature.operands.iter().filter(|operand| operand.access.writes());
    let part = |operand: &Operand<'_>| Written {
        name: operand.name,
        buffer: operand.region.buffer.0 as usize,
        bytes: active(operand),
        elem: elem(operand),
        limit,
    };
    written.map(part).collect()
}

/// Whether an operand has one row per token.
fn by_rows(plan: &Plan, signature: &Signature<'_>, operand: &Operand<'_>) -> bool {
    let class = plan.buffer(operand.region.buffer).class;
    !matches!(class, BufferClass::KvCache | BufferClass::State | BufferClass::Input)
        && !matches!(
            (signature.kind, operand.name),
            ("group_by_expert", "offsets") | ("last_row", "out") | ("advance", _)
        )
}

fn numbers(part: &Written, buffers: &[Vec<u8>]) -> Vec<f64> {
    let bytes = &buffers[part.buffer][part.bytes.clone()];
    match part.elem {
        Elem::F32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_ne_bytes(b.try_into().unwrap())))
            .collect(),
        Elem::Bf16 => bytes
            .chunks_exact(2)
            .map(|b| f64::from(half::bf16::from_ne_bytes(b.try_into().unwrap())))
            .collect(),
        Elem::U32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(u32::from_ne_bytes(b.try_into().unwrap())))
            .collect(),
    }
}

/// The largest difference.
pub(crate) fn compare(part: &Written, expected: &[Vec<u8>], found: &[Vec<u8>]) -> Outcome {
    let (expected, found) = (numbers(part, expected), numbers(part, found));
    let squares: f64 = expected.iter().filter(|x| x.is_finite()).map(|x| x * x).sum();
    let scale = match part.elem {
        Elem::U32 => 1.0,
        Elem::F32 | Elem::Bf16 => (squares / expected.len().max(1) as f64).sqrt().max(1e-6),
    };
    let mut worst = Outcome::default();
    for (at, (&expected, &found)) in expected.iter().zip(&found).enumerate() {
        let difference = (expected - found).abs() / scale.max(expected.abs());
        let same = expected == found || (expected.is_nan() && found.is_nan());
        let error = if same { 0.0 } else { difference };
        if !(error <= worst.error) {
            worst = Outcome { error, at, expected, found };
        }
        if worst.error.is_nan() {
            break;
        }
    }
    worst
}

impl Outcome {
    /// What is wrong, if anything.
    pub(crate) fn problem(&self, part: &Written) -> Option<String> {
        let Outcome { error, at, expected, found } = self;
        let limit = if part.elem == Elem::U32 { 0.0 } else { part.limit };
        let name = part.name;
        // A NaN is no difference below the limit.
        (!(*error <= limit)).then(|| {
            format!("{name}[{at}] is {found}, expected {expected} (error {error:.1e}, limit {limit:.0e})")
        })
    }
}
