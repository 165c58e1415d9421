//! One device against another, step by step.
//!
//! Every step of a plan runs on both with the very same bytes, and whatever it writes is compared.
//! The next step goes on with the reference's results: so one wrong kernel is blamed once, and the
//! others are judged as if it were right.

use lily_plan::access::{Access, Operand};
use lily_plan::buffer::{Buffer, BufferClass, Elem, Region};
use lily_plan::plan::Plan;

use crate::{DeviceError, LoadedModel, PlanId, trusted};

/// Where a comparison starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Position of the first row.
    pub position: usize,
    /// Active rows.
    pub rows: usize,
    /// Token ids are below this.
    pub vocab: usize,
    /// Of tokens and session contents.
    pub seed: u64,
}

/// How far one written operand is from the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Step name.
    pub step: String,
    /// Kind of operation.
    pub op: &'static str,
    /// Operand of the operation.
    pub operand: &'static str,
    /// Its type.
    pub elem: Elem,
    /// Elements compared.
    pub elements: usize,
    /// Elements that are not equal.
    pub unequal: usize,
    /// `‖found - expected‖ / ‖expected‖`; infinite where one is a number and the other is not. For
    /// integers the share of unequal elements.
    pub relative: f64,
    /// The largest difference of one element, in units of the root mean square of the expected ones.
    pub largest: f64,
}

impl Difference {
    /// Whether rounding explains it: the norm is within `relative`, and no single element is off by
    /// much more, as one wrong tile among many right ones would be. Integers must be equal.
    pub fn within(&self, relative: f64) -> bool {
        match self.elem {
            Elem::U32 => self.unequal == 0,
            Elem::F32 | Elem::Bf16 => {
                self.relative <= relative && self.largest <= MOST_OF_ONE * relative
            }
        }
    }

    /// How far beyond [`Difference::within`] it is: at most 1 is within.
    pub fn excess(&self, relative: f64) -> f64 {
        match self.elem {
            Elem::U32 if self.unequal == 0 => 0.0,
            Elem::U32 => f64::INFINITY,
            Elem::F32 | Elem::Bf16 => {
                (self.relative / relative).max(self.largest / (MOST_OF_ONE * relative))
            }
        }
    }
}

/// A single element may be off by so many times what all together may.
const MOST_OF_ONE: f64 = 25.0;

/// A plan prepared on one device.
#[derive(Clone, Copy)]
pub struct Prepared<'a> {
    /// The device's model.
    pub model: &'a dyn LoadedModel,
    /// The plan there.
    pub plan: PlanId,
}

/// Position and active rows of the control block among a plan's buffers.
///
/// # Panics
/// When there is no such buffer, or the two do not fit the plan: kernels trust them.
pub fn control(plan: &Plan, buffers: &[Vec<u8>]) -> (usize, usize) {
    let bytes = &buffers[plan.ports.control.0 as usize];
    let word = |at: usize| {
        let word = bytes[at..at + 4].try_into().expect("4 bytes");
        u32::from_le_bytes(word) as usize
    };
    let (position, rows) = (word(0), word(4));
    trusted(plan.check_run(rows, position));
    (position, rows)
}

/// Runs every step of a plan on two devices with the same bytes and reports each written operand.
///
/// # Errors
/// What [`LoadedModel::probe`] of either device returns.
///
/// # Panics
/// When `start` does not fit the plan.
pub fn compare_steps(
    plan: &Plan,
    reference: Prepared<'_>,
    subject: Prepared<'_>,
    start: Start,
    on_difference: &mut dyn FnMut(Difference),
) -> Result<(), DeviceError> {
    let mut expected = contents(plan, start);
    let mut found = expected.clone();
    for (index, step) in plan.steps.iter().enumerate() {
        let signature = step.op.signature();
        for written in signature.operands.iter().filter(|o| o.access == Access::Write) {
            // A step in place reads what it overwrites.
            let in_place = |o: &Operand<'_>| o.access.reads() && o.region.overlaps(written.region);
            if !signature.operands.iter().any(in_place) {
                poison(plan, written.region, &mut expected);
            }
        }
        for operand in &signature.operands {
            let buffer = operand.region.buffer.0 as usize;
            found[buffer].clone_from(&expected[buffer]);
        }
        reference.model.probe(reference.plan, index, &mut expected)?;
        subject.model.probe(subject.plan, index, &mut found)?;
        for operand in signature.operands.iter().filter(|o| o.access.writes()) {
            let elem = plan.buffer(operand.region.buffer).elem;
            let [expected, found] = [&expected, &found].map(|b| bytes(b, operand.region));
            let compared = Compared::of(elem, expected, found);
            on_difference(Difference {
                step: step.name.clone(),
                op: signature.kind,
                operand: operand.name,
                elem,
                elements: compared.elements,
                unequal: compared.unequal,
                relative: compared.relative(),
                largest: compared.largest(),
            });
        }
    }
    Ok(())
}

fn bytes<'b>(buffers: &'b [Vec<u8>], region: &Region) -> &'b [u8] {
    &buffers[region.buffer.0 as usize][region.bytes.start as usize..region.bytes.end as usize]
}

/// What a step overwrites is made unlike any result before, except where it may keep parts of it.
fn poison(plan: &Plan, region: &Region, buffers: &mut [Vec<u8>]) {
    if plan.buffer(region.buffer).class == BufferClass::Scratch {
        let range = region.bytes.start as usize..region.bytes.end as usize;
        buffers[region.buffer.0 as usize][range].fill(0xff);
    }
}

/// Inputs, and session buffers as if something had run before; everything else zero.
fn contents(plan: &Plan, start: Start) -> Vec<Vec<u8>> {
    trusted(plan.check_run(start.rows, start.position));
    let mut random = Random(start.seed);
    let mut buffers: Vec<Vec<u8>> =
        plan.buffers.iter().map(|buffer| content(buffer, &mut random)).collect();
    let control = [start.position as u32, start.rows as u32];
    for (slot, value) in buffers[plan.ports.control.0 as usize].chunks_exact_mut(4).zip(control) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
    for slot in buffers[plan.ports.tokens.0 as usize].chunks_exact_mut(4) {
        let token = random.next() % start.vocab as u64;
        slot.copy_from_slice(&(token as u32).to_le_bytes());
    }
    buffers
}

fn content(buffer: &Buffer, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(buffer.bytes()).expect("a buffer fits memory")];
    if !buffer.class.is_session() {
        return bytes;
    }
    match buffer.elem {
        Elem::F32 => {
            for slot in bytes.chunks_exact_mut(4) {
                slot.copy_from_slice(&random.float().to_le_bytes());
            }
        }
        // The upper half of a float is the nearest smaller bfloat16.
        Elem::Bf16 => {
            for slot in bytes.chunks_exact_mut(2) {
                slot.copy_from_slice(&random.float().to_le_bytes()[2..]);
            }
        }
        Elem::U32 => {}
    }
    bytes
}

/// A small generator, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Between -0.5 and 0.5.
    fn float(&mut self) -> f32 {
        (self.next() % (1 << 24)) as f32 / (1 << 24) as f32 - 0.5
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    elements: usize,
    unequal: usize,
    integers: bool,
    /// Expected elements that are numbers.
    finite: usize,
    /// Sums of squares.
    difference: f64,
    expected: f64,
    largest: f64,
}

impl Compared {
    fn of(elem: Elem, expected: &[u8], found: &[u8]) -> Compared {
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        let halves = |bytes: &[u8]| -> Vec<u32> {
            bytes.chunks_exact(2).map(|b| u32::from_le_bytes([0, 0, b[0], b[1]])).collect()
        };
        let (expected, found) = match elem {
            Elem::F32 | Elem::U32 => (words(expected), words(found)),
            Elem::Bf16 => (halves(expected), halves(found)),
        };
        let mut compared = Compared { integers: elem == Elem::U32, ..Compared::default() };
        for (expected, found) in expected.into_iter().zip(found) {
            compared.add(expected, found);
        }
        compared
    }

    /// Adds one element, as bits of an `f32` or as an integer.
    fn add(&mut self, expected: u32, found: u32) {
        self.elements += 1;
        self.unequal += usize::from(expected != found);
        if self.integers {
            return;
        }
        let [expected, found] = [expected, found].map(|bits| f64::from(f32::from_bits(bits)));
        if expected.is_finite() {
            self.finite += 1;
            self.expected += expected * expected;
        }
        let difference = match expected == found || (expected.is_nan() && found.is_nan()) {
            true => 0.0,
            false if expected.is_finite() && found.is_finite() => (expected - found).abs(),
            false => f64::INFINITY,
        };
        self.difference += difference * difference;
        self.largest = self.largest.max(difference);
    }

    fn relative(&self) -> f64 {
        if self.integers {
            return self.unequal as f64 / self.elements.max(1) as f64;
        }
        if self.finite == 0 {
            // Two devices that agree on nothing but NaN have shown nothing.
            return f64::INFINITY;
        }
        ratio(self.difference.sqrt(), self.expected.sqrt())
    }

    fn largest(&self) -> f64 {
        ratio(self.largest, (self.expected / self.elements.max(1) as f64).sqrt())
    }
}

/// A difference from nothing is as bad as can be.
fn ratio(difference: f64, expected: f64) -> f64 {
    if difference == 0.0 { 0.0 } else { difference / expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(expected: &[f32], found: &[f32]) -> Compared {
        let bytes = |values: &[f32]| -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        };
        Compared::of(Elem::F32, &bytes(expected), &bytes(found))
    }

    #[test]
    fn differences_are_relative_to_what_is_expected() {
        let same = compared(&[3.0, -4.0], &[3.0, -4.0]);
        assert_eq!((same.relative(), same.largest(), same.unequal), (0.0, 0.0, 0));
        let other = compared(&[3.0, -4.0], &[3.0, -4.5]);
        assert!((other.relative() - 0.1).abs() < 1e-12);
        assert_eq!(other.unequal, 1);
    }

    #[test]
    fn a_value_left_unwritten_is_as_wrong_as_can_be() {
        let poison = f32::from_bits(0xffff_ffff);
        assert_eq!(compared(&[1.0, 2.0], &[1.0, poison]).relative(), f64::INFINITY);
        assert_eq!(compared(&[1.0, poison], &[1.0, poison]).relative(), 0.0);
        assert_eq!(compared(&[0.0], &[1.0]).relative(), f64::INFINITY);
    }

    #[test]
    fn agreement_on_nothing_but_nan_is_no_agreement() {
        assert_eq!(compared(&[f32::NAN; 3], &[f32::NAN; 3]).relative(), f64::INFINITY);
    }

    #[test]
    fn one_wrong_tile_among_many_right_ones_is_not_within() {
        let expected: Vec<f32> = (0..100_000).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut found = expected.clone();
        found[..8].fill(0.0);
        let compared = compared(&expected, &found);
        let difference = Difference {
            step: "step".to_owned(),
            op: "op",
            operand: "out",
            elem: Elem::F32,
            elements: compared.elements,
            unequal: compared.unequal,
            relative: compared.relative(),
            largest: compared.largest(),
        };
        assert!(difference.relative <= 2e-2, "the norm alone does not see it");
        assert!(!difference.within(2e-2) && difference.excess(2e-2) > 1.0);
    }

    #[test]
    fn integers_are_counted() {
        let bytes = |values: [u32; 4]| -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        };
        let compared = Compared::of(Elem::U32, &bytes([1, 2, 3, 4]), &bytes([1, 2, 4, 3]));
        assert_eq!(compared.relative(), 0.5);
    }

    #[test]
    fn halves_are_compared_as_the_numbers_they_are() {
        // 1.0 and 1.5 as bfloat16.
        let compared = Compared::of(Elem::Bf16, &[0x80, 0x3f], &[0xc0, 0x3f]);
        assert!((compared.relative() - 0.5).abs() < 1e-12);
    }
}
