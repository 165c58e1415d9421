//! The session buffers of one token timeline.

use std::any::Any;
use std::sync::Arc;

use lily_device::Sequence;
use lily_device::session::SessionTable;
use lily_plan::buffer::BufferClass;

use crate::MetalError;
use crate::arena::Arenas;
use crate::memory::{Heap, SharedArenas};

/// KV cache and recurrent state, in the order of the model's table.
#[derive(Debug)]
pub(crate) struct MetalSequence {
    table: Arc<SessionTable>,
    memory: Arc<SharedArenas>,
}

impl MetalSequence {
    pub(crate) fn new(heap: &Arc<Heap>, table: Arc<SessionTable>) -> Result<Self, MetalError> {
        let overflow = || MetalError::Memory { what: "session".to_owned(), bytes: u64::MAX };
        let bytes = table.buffers().iter().map(|buffer| buffer.bytes);
        let layout = Arenas::pack(bytes, heap.cap()).ok_or_else(overflow)?;
        let memory = SharedArenas::new(heap, "session", layout)?;
        for buffer in &memory.buffers {
            // SAFETY: nobody else knows the buffer yet.
            unsafe { buffer.zero(0, buffer.len()) };
        }
        Ok(MetalSequence { table, memory: Arc::new(memory) })
    }

    /// Whether this sequence has the buffers of that table.
    pub(crate) fn matches(&self, table: &Arc<SessionTable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    /// Its memory; whoever runs commands on it keeps a clone until they have ended.
    pub(crate) fn memory(&self) -> &Arc<SharedArenas> {
        &self.memory
    }
}

impl Sequence for MetalSequence {
    fn reset(&mut self) {
        for (index, entry) in self.table.buffers().iter().enumerate() {
            // Cache rows at or beyond the position are never read before they are written, so only
            // the recurrent state has to be cleared.
            if entry.class == BufferClass::State {
                let (buffer, offset) = self.memory.locate(index);
                // SAFETY: every run waits for its commands, and `&mut self` excludes another run. (A
                // device that was lost may still be at work: then the bytes no longer matter.)
                unsafe { buffer.zero(offset, entry.bytes) };
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.memory.layout.bytes()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
