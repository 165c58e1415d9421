//! The session buffers of one token timeline.

use std::any::Any;
use std::sync::Arc;

use lily_device::Sequence;
use lily_plan::buffer::BufferClass;

use crate::memory::{AlignedBytes, POISON};

/// One session buffer that some prepared plan names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionBuffer {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) class: BufferClass,
}

/// KV cache and recurrent state, in the order of the model's table.
#[derive(Debug)]
pub(crate) struct EmulatorSequence {
    table: Arc<[SessionBuffer]>,
    buffers: Vec<AlignedBytes>,
}

impl EmulatorSequence {
    pub(crate) fn new(table: Arc<[SessionBuffer]>) -> Self {
        let buffers =
            table.iter().map(|buffer| AlignedBytes::zeroed(buffer.bytes as usize)).collect();
        let mut sequence = EmulatorSequence { table, buffers };
        sequence.reset();
        sequence
    }

    /// Whether this sequence has the buffers of that table.
    pub(crate) fn matches(&self, table: &Arc<[SessionBuffer]>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    /// The buffer of that index of the table.
    pub(crate) fn buffer(&mut self, index: usize) -> &mut AlignedBytes {
        &mut self.buffers[index]
    }
}

impl Sequence for EmulatorSequence {
    fn reset(&mut self) {
        for (buffer, entry) in self.buffers.iter_mut().zip(self.table.iter()) {
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
