//! The session buffers of one token timeline, and the plans put together for their addresses.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use lily_device::{DeviceError, Sequence};
use lily_plan::buffer::{Buffer, BufferClass};
use lily_plan::plan::Plan;

use crate::graph::Executable;
use crate::memory::{ALIGN, Address, DeviceMemory};

/// One session buffer that some prepared plan names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionBuffer {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) class: BufferClass,
}

/// The session buffers of all prepared plans, and where each lies: recurrent state first, so that one
/// fill clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionTable {
    buffers: Vec<SessionBuffer>,
    offsets: Vec<u64>,
    state_bytes: u64,
    bytes: u64,
}

impl SessionTable {
    /// The table with a plan's buffers added.
    pub(crate) fn with(&self, plan: &Plan) -> SessionTable {
        let mut buffers = self.buffers.clone();
        for buffer in plan.buffers.iter().filter(|buffer| is_session(buffer)) {
            let entry = SessionBuffer {
                name: buffer.name.clone(),
                bytes: buffer.bytes(),
                class: buffer.class,
            };
            match buffers.iter().find(|known| known.name == entry.name) {
                Some(known) => assert_eq!(*known, entry, "session buffer of two plans"),
                None => buffers.push(entry),
            }
        }
        buffers.sort_by_key(|buffer| buffer.class != BufferClass::State);
        let mut table = SessionTable { buffers, ..SessionTable::default() };
        for buffer in &table.buffers {
            table.offsets.push(table.bytes);
            table.bytes += buffer.bytes.next_multiple_of(ALIGN);
            if buffer.class == BufferClass::State {
                table.state_bytes = table.bytes;
            }
        }
        table
    }

    /// Index of the buffer of that name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|buffer| buffer.name == name)
    }
}

pub(crate) fn is_session(buffer: &Buffer) -> bool {
    matches!(buffer.class, BufferClass::KvCache | BufferClass::State)
}

/// KV cache and recurrent state in one allocation.
#[derive(Debug)]
pub(crate) struct CudaSequence {
    /// By plan; dropped before the memory that they name.
    pub(crate) executables: Vec<Executable>,
    table: Arc<SessionTable>,
    memory: DeviceMemory,
    stream: Arc<CudaStream>,
    /// What went wrong while it was cleared; the next run reports it.
    pub(crate) failed: Option<DeviceError>,
}

impl CudaSequence {
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        stream: Arc<CudaStream>,
        table: Arc<SessionTable>,
    ) -> Result<Self, DeviceError> {
        let memory = DeviceMemory::zeroed(context, "KV cache and recurrent state", table.bytes)
            .map_err(|error| error.at("start"))?;
        Ok(CudaSequence { executables: Vec::new(), table, memory, stream, failed: None })
    }

    /// Whether this sequence has the buffers of that table.
    pub(crate) fn matches(&self, table: &Arc<SessionTable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    /// Where the buffer of that index of the table lies.
    pub(crate) fn address(&self, index: usize) -> Address {
        self.memory.range(self.table.offsets[index], self.table.buffers[index].bytes)
    }
}

impl Drop for CudaSequence {
    fn drop(&mut self) {
        // Steps in flight still use the memory.
        let _ = self.stream.synchronize();
    }
}

impl Sequence for CudaSequence {
    fn reset(&mut self) {
        // Cache rows at or beyond the position are never read before they are written, so only the
        // recurrent state has to be cleared.
        let cleared = self.memory.clear(&self.stream, 0, self.table.state_bytes);
        self.failed = cleared.err().map(|error| error.at("reset"));
    }

    fn bytes(&self) -> u64 {
        self.memory.len()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_plan::buffer::Elem;
    use lily_plan::plan::{Phase, PlanBuilder, Ports};

    fn plan(buffers: &[(&str, u64, BufferClass)]) -> Plan {
        let mut builder = PlanBuilder::new();
        let mut ids = Vec::new();
        for (name, len, class) in buffers {
            ids.push(builder.buffer(*name, Elem::F32, *len, *class).buffer);
        }
        let ports = Ports { control: ids[0], tokens: ids[0], logits: ids[0] };
        builder.finish(Phase::Decode, 1, 16, ports)
    }

    #[test]
    fn plans_share_buffers_by_name_and_state_comes_first() {
        let (cache, state) = (BufferClass::KvCache, BufferClass::State);
        let first = plan(&[("k", 100, cache), ("s", 3, state), ("x", 9, BufferClass::Scratch)]);
        let second = plan(&[("s", 3, state), ("s2", 65, state), ("k", 100, cache)]);
        let table = SessionTable::default().with(&first).with(&second);
        let names: Vec<_> = table.buffers.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(names, ["s", "s2", "k"]);
        assert_eq!(table.offsets, [0, 256, 768]);
        assert_eq!((table.state_bytes, table.bytes), (768, 1280));
        assert_eq!(table.position("k"), Some(2));
        assert_eq!(table.position("x"), None);
    }

    #[test]
    #[should_panic(expected = "session buffer of two plans")]
    fn two_plans_that_disagree_on_a_buffer_are_a_contradiction() {
        let first = plan(&[("k", 100, BufferClass::KvCache)]);
        let second = plan(&[("k", 200, BufferClass::KvCache)]);
        let _ = SessionTable::default().with(&first).with(&second);
    }
}
