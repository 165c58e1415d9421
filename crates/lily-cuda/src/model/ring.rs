//! The tokens that decode steps choose, in memory that the device writes and the host reads.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use lily_plan::run::TokenRing;

use crate::error::{CudaError, driver};
use crate::memory::{Address, Pinned};

/// Steps that are submitted before the host has seen the token of the first of them: enough to hide
/// the host's part, few enough that a stop wastes little.
const AHEAD: usize = 3;

/// The ring of a plan whose steps choose the next token by themselves.
///
/// It lies in page-locked host memory, which the device reaches by the same address: four bytes per
/// step need no copy.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Keeps the slots; nobody looks at them through it while steps are in flight.
    _memory: Pinned,
    slots: NonNull<u32>,
    plan_ring: TokenRing,
    /// One per step in flight.
    ends: Vec<CudaEvent>,
}

// SAFETY: the pointer is the ring's own memory, which has no thread affinity.
unsafe impl Send for Ring {}

impl Ring {
    pub(crate) fn new(context: &Arc<CudaContext>, plan_ring: TokenRing) -> Result<Self, CudaError> {
        let ends = (0..flight(plan_ring.slots)).map(|_| context.new_event(None));
        let ends = ends.collect::<Result<_, _>>().map_err(driver("cuEventCreate"))?;
        let mut memory = Pinned::zeroed(context, 4 * plan_ring.slots.max(1) as u64)?;
        // From the whole slice: a pointer may reach no more than what it was made from.
        let slots = NonNull::from(memory.bytes_mut()).cast();
        Ok(Ring { _memory: memory, slots, plan_ring, ends })
    }

    /// Whether it is the buffer of that index in its plan.
    pub(crate) fn is_buffer(&self, index: usize) -> bool {
        self.plan_ring.buffer.0 as usize == index
    }

    /// Where the device writes. With unified addressing, which every 64-bit system has, page-locked
    /// memory has one address on both sides.
    pub(crate) fn address(&self) -> Address {
        self.slots.as_ptr() as Address
    }

    /// Steps that may be in flight.
    pub(crate) fn flight(&self) -> usize {
        self.ends.len()
    }

    /// Marks the end of a step, counted from the first of a run.
    pub(crate) fn mark(&self, step: usize, stream: &CudaStream) -> Result<(), CudaError> {
        self.ends[step % self.ends.len()].record(stream).map_err(driver("cuEventRecord"))
    }

    /// Waits for a step and reads the token that it chose at `position`.
    pub(crate) fn take(&self, step: usize, position: usize) -> Result<u32, CudaError> {
        let ended = self.ends[step % self.ends.len()].synchronize();
        ended.map_err(driver("cuEventSynchronize"))?;
        let slot = self.plan_ring.slot(position);
        // SAFETY: the slot is one of the ring's, in memory that lives as long as the ring and is
        // aligned far beyond 4 bytes. The device wrote it before the event and steps in flight write
        // other slots; a volatile read, because the compiler sees neither.
        Ok(unsafe { self.slots.add(slot).read_volatile() })
    }
}

/// A slot must be read before the step that writes it anew is submitted.
fn flight(len: usize) -> usize {
    (AHEAD + 1).min(len).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_steps_are_in_flight_than_the_ring_has_slots() {
        assert_eq!(flight(1), 1);
        assert_eq!(flight(2), 2);
        assert_eq!(flight(64), AHEAD + 1);
    }
}
