//! The session buffers of one token timeline.

use std::any::Any;
use std::sync::Arc;

use lily_device::Sequence;
use lily_device::session::SessionTable;
use lily_plan::buffer::BufferClass;

use crate::memory::{AlignedBytes, POISON};

/// KV cache and recurrent state, in the order of the model's table.
#[derive(Debug)]
pub(crate) struct EmulatorSequence {
    table: Arc<SessionTable>,
    buffers: Vec<AlignedBytes>,
}

impl EmulatorSequence {
    pub(crate) fn new(table: Arc<SessionTable>) -> Self {
        let buffers = table
            .buffers()
            .iter()
            .map(|buffer| AlignedBytes::zeroed(buffer.bytes as usize))
            .collect();
        let mut sequence = EmulatorSequence { table, buffers };
        sequence.reset();
        sequence
    }

    /// Whether this sequence has the buffers of that table.
    pub(crate) fn matches(&self, table: &Arc<SessionTable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    /// The buffer of that index of the table.
    pub(crate) fn buffer(&mut self, index: usize) -> &mut AlignedBytes {
        &mut self.buffers[index]
    }
}

impl Sequence for EmulatorSequence {
    fn reset(&mut self) {
        for (buffer, entry) in self.buffers.iter_mut().zip(self.table.buffers()) {
            // Rows of the cache are written before they are read; whoever reads others shall notice.
            buffer.fill(if entry.class == BufferClass::State { 0 } else { POISON });
        }
    }

    fn bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.len() as u64).sum()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
