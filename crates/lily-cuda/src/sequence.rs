//! The session buffers of one token timeline, and the plans put together for their addresses.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use lily_device::session::SessionTable;
use lily_device::{DeviceError, Sequence};
use lily_plan::buffer::BufferClass;

use crate::graph::Executable;
use crate::memory::{ALIGN, Address, DeviceMemory};

/// Where the buffers of a session table lie: recurrent state first, so that one fill clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Layout {
    /// By index in the table.
    offsets: Vec<u64>,
    state_bytes: u64,
    bytes: u64,
}

impl Layout {
    fn of(table: &SessionTable) -> Layout {
        let buffers = table.buffers();
        let mut layout = Layout { offsets: vec![0; buffers.len()], ..Layout::default() };
        let mut append = |class| {
            for (offset, buffer) in layout.offsets.iter_mut().zip(buffers) {
                if buffer.class == class {
                    *offset = layout.bytes;
                    layout.bytes += buffer.bytes.next_multiple_of(ALIGN);
                }
            }
            layout.bytes
        };
        layout.state_bytes = append(BufferClass::State);
        append(BufferClass::KvCache);
        layout
    }
}

/// KV cache and recurrent state in one allocation.
#[derive(Debug)]
pub(crate) struct CudaSequence {
    /// By plan; dropped before the memory that they name.
    pub(crate) executables: Vec<Executable>,
    table: Arc<SessionTable>,
    layout: Layout,
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
        let layout = Layout::of(&table);
        let memory = DeviceMemory::zeroed(context, "KV cache and recurrent state", layout.bytes)
            .map_err(|error| error.at("start"))?;
        Ok(CudaSequence { executables: Vec::new(), table, layout, memory, stream, failed: None })
    }

    /// Whether this sequence has the buffers of that table.
    pub(crate) fn matches(&self, table: &Arc<SessionTable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    /// Where the buffer of that index of the table lies.
    pub(crate) fn address(&self, index: usize) -> Address {
        self.memory.range(self.layout.offsets[index], self.table.buffers()[index].bytes)
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
        let cleared = self.memory.clear(&self.stream, 0, self.layout.state_bytes);
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
    use lily_plan::plan::{Phase, Plan, PlanBuilder, Ports};

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
    fn state_comes_first_and_every_buffer_is_aligned() {
        let (cache, state) = (BufferClass::KvCache, BufferClass::State);
        let plan = plan(&[("k", 100, cache), ("s", 3, state), ("v", 7, cache), ("s2", 65, state)]);
        let layout = Layout::of(&SessionTable::default().with(&plan).unwrap());
        assert_eq!(layout.offsets, [768, 0, 1280, 256]);
        assert_eq!((layout.state_bytes, layout.bytes), (768, 1536));
    }
}
