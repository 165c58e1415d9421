//! The session buffers of one token timeline.

use std::any::Any;
use std::sync::Arc;

use lily_device::session::SessionTable;
use lily_device::{DeviceError, Sequence};
use lily_plan::buffer::BufferClass;

use crate::memory::{AlignedBytes, Span};

/// KV cache and recurrent state, one allocation per buffer, in the order of the model's table.
#[derive(Debug)]
pub(crate) struct CpuSequence {
    table: Arc<SessionTable>,
    buffers: Vec<AlignedBytes>,
}

impl CpuSequence {
    pub(crate) fn new(table: Arc<SessionTable>) -> Result<Self, DeviceError> {
        let buffers = table
            .buffers()
            .iter()
            .map(|buffer| AlignedBytes::zeroed(&buffer.name, buffer.bytes))
            .collect::<Result<_, _>>()?;
        Ok(CpuSequence { table, buffers })
    }

    /// Whether this sequence has the buffers of that table.
    pub(crate) fn matches(&self, table: &Arc<SessionTable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    /// Where the buffer of that index of the table lies.
    pub(crate) fn span(&mut self, index: usize) -> Span {
        let buffer = &self.buffers[index];
        Span { base: buffer.base(), bytes: buffer.len() as u64 }
    }
}

impl Sequence for CpuSequence {
    fn reset(&mut self) {
        for (buffer, entry) in self.buffers.iter_mut().zip(self.table.buffers()) {
            // Cache rows at or beyond the position are never read before they are written, so only
            // the recurrent state has to be cleared.
            if entry.class == BufferClass::State {
                // SAFETY: `&mut self` owns the allocation, and zero bytes are valid for it.
                unsafe { std::ptr::write_bytes(buffer.base(), 0, buffer.len()) }
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.len() as u64).sum()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
