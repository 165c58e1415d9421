//! One step of a plan: poison what it overwrites, bind, dispatch.

use lily_device::DeviceError;
use lily_kernels::launch::{Binding, Launch};
use lily_plan::access::{Access, Operand};
use lily_plan::buffer::Region;
use lily_plan::op::Op;
use lily_plan::plan::{Plan, Step};

use crate::abi;
use crate::cache::Entry;
use crate::compute::{Dispatch, Schedule, dispatch_raw};
use crate::error::KIND;
use crate::memory::{AlignedBytes, POISON};
use crate::weights::WeightStore;

/// Where one buffer lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    base: *mut u8,
    bytes: u64,
}

impl Span {
    pub(crate) fn of(memory: &mut AlignedBytes) -> Span {
        Span { base: memory.base(), bytes: memory.len() as u64 }
    }

    /// Bytes from `offset` on.
    pub(crate) fn part(memory: &mut AlignedBytes, offset: u64, bytes: u64) -> Span {
        assert!(offset + bytes <= memory.len() as u64, "a buffer is placed outside of the arena");
        // The assertion keeps the offset inside the allocation.
        Span { base: memory.base().wrapping_add(offset as usize), bytes }
    }

    fn region(&self, region: &Region) -> Span {
        let std::ops::Range { start, end } = region.bytes;
        assert!(start <= end && end <= self.bytes, "a region lies outside of its buffer");
        // The assertion keeps the offset inside the buffer.
        Span { base: self.base.wrapping_add(start as usize), bytes: end - start }
    }
}

/// A step about to run.
#[derive(Debug)]
pub(crate) struct StepRun<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) step: &'a Step,
    pub(crate) launch: &'a Launch,
    pub(crate) entry: &'a Entry,
    pub(crate) weights: &'a WeightStore,
    /// Active rows.
    pub(crate) rows: usize,
    pub(crate) seed: u64,
    pub(crate) workers: usize,
}

/// Runs one step on buffers at these places, by buffer index.
///
/// # Safety
/// Every span must be valid for reads and writes and reached in no other way during the call.
pub(crate) unsafe fn run_step(run: &StepRun<'_>, spans: &[Span]) -> Result<(), DeviceError> {
    let at = |region: &Region| spans[region.buffer.0 as usize].region(region);
    let signature = run.step.op.signature();
    // The ring of tokens counts as overwritten, and a step fills one slot of it.
    let keeps_ring = matches!(run.step.op, Op::Advance(_));
    for operand in overwritten(&signature.operands).filter(|_| !keeps_ring) {
        let Span { base, bytes } = at(operand.region);
        // SAFETY: `region` checked the bounds, and the caller excludes every other access.
        unsafe { std::ptr::write_bytes(base, POISON, bytes as usize) };
    }
    let bindings: Vec<Bound<'_>> =
        run.launch.bindings.iter().map(|binding| bind(run, binding, &at)).collect();
    let raw = bindings.iter().enumerate().map(|(index, bound)| {
        let (base, bytes) = match bound {
            Bound::Region(span) => (span.base, span.bytes),
            Bound::Weight(weight) => (weight.base(), weight.len() as u64),
            Bound::Params(params) => (params.base(), params.len() as u64),
        };
        abi::Binding { base, bytes, index: index as u32 }
    });
    let raw: Vec<abi::Binding> = raw.collect();
    // A step behind `LastRow` has one row, whatever the plan has.
    let rows = run.rows.min(signature.rows) as u32;
    let dispatch = Dispatch {
        grid: run.launch.grid.map(|extent| extent.groups(rows)),
        threads: run.launch.threads,
    };
    let schedule = Schedule { seed: run.seed, workers: run.workers };
    // SAFETY: regions lie inside of spans, which the caller vouches for; weights are only read, and
    // parameters belong to this call.
    let ran = unsafe { dispatch_raw(run.entry, &dispatch, &raw, &schedule) };
    ran.map_err(|fault| DeviceError::Lost {
        device: KIND,
        step: run.step.name.clone(),
        message: fault.to_string(),
    })
}

enum Bound<'a> {
    Region(Span),
    Weight(&'a AlignedBytes),
    Params(AlignedBytes),
}

fn bind<'a>(run: &StepRun<'a>, binding: &Binding, at: &dyn Fn(&Region) -> Span) -> Bound<'a> {
    match binding {
        Binding::Region(region) => Bound::Region(at(region)),
        Binding::Weight(id) => Bound::Weight(run.weights.get(&run.plan.weight(*id).name)),
        Binding::Params(bytes) => Bound::Params(AlignedBytes::of(bytes)),
    }
}

/// What a step overwrites without having read it.
pub(crate) fn overwritten<'a>(
    operands: &'a [Operand<'a>],
) -> impl Iterator<Item = &'a Operand<'a>> {
    let read =
        |region: &Region| operands.iter().any(|o| o.access.reads() && o.region.overlaps(region));
    operands.iter().filter(move |o| o.access == Access::Write && !read(o.region))
}
