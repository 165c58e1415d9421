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
    limits: [f64; 2],
}

/// How two machines differ.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Largest difference, in units of the larger of the number and the operand's root mean square.
    pub(crate) error: f64,
    /// Root mean square of the differences, in units of that of the operand.
    rms: f64,
    at: usize,
    expected: f64,
    found: f64,
}

/// Errors that rounding explains, largest and root mean square: sums in another order, and operands,
/// factors or results in bf16.
const LIMIT_F32: [f64; 2] = [1e-4, 2e-5];
const LIMIT_BF16: [f64; 2] = [5e-2, 1e-2];

/// What a step wrote.
pub(crate) fn written(plan: &Plan, signature: &Signature<'_>, rows: usize) -> Vec<Written> {
    let elem = |operand: &Operand<'_>| plan.buffer(operand.region.buffer).elem;
    let rounded = signature.operands.iter().any(|operand| elem(operand) == Elem::Bf16);
    let limits = if rounded { LIMIT_BF16 } else { LIMIT_F32 };
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
        limits,
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
    let numbers_compared = expected.len().max(1) as f64;
    let squares: f64 = expected.iter().filter(|x| x.is_finite()).map(|x| x * x).sum();
    let scale = match part.elem {
        Elem::U32 => 1.0,
        Elem::F32 | Elem::Bf16 => (squares / numbers_compared).sqrt().max(1e-6),
    };
    let mut worst = Outcome::default();
    let mut differences = 0.0;
    for (at, (&expected, &found)) in expected.iter().zip(&found).enumerate() {
        let difference = (expected - found).abs() / scale.max(expected.abs());
        let same = expected == found || (expected.is_nan() && found.is_nan());
        let error = if same { 0.0 } else { difference };
        differences += if same { 0.0 } else { (expected - found).powi(2) };
        // A NaN is larger than any error.
        if !worst.error.is_nan() && (error.is_nan() || error > worst.error) {
            worst = Outcome { error, rms: 0.0, at, expected, found };
        }
    }
    worst.rms = (differences / numbers_compared).sqrt() / scale;
    worst
}

impl Outcome {
    /// What is wrong, if anything.
    pub(crate) fn problem(&self, part: &Written) -> Option<String> {
        let Outcome { error, rms, at, expected, found } = self;
        let limits = if part.elem == Elem::U32 { [0.0; 2] } else { part.limits };
        let fine = *error <= limits[0] && *rms <= limits[1];
        let name = part.name;
        (!fine).then(|| {
            format!(
                "{name}[{at}] is {found}, expected {expected}; largest error {error:.1e} and {rms:.1e} \
                 in the mean, limits {limits:?}"
            )
        })
    }
}
