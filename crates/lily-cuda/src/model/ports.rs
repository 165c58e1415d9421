//! Inputs and outputs of one plan: where the device reads and writes them, and their staging memory
//! on the host.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use lily_plan::buffer::BufferClass;
use lily_plan::plan::Plan;

use crate::error::CudaError;
use crate::memory::{ALIGN, Address, DeviceMemory, Pinned, download, upload};
use crate::model::ring::Ring;

/// Inputs and outputs of one plan.
#[derive(Debug)]
pub(crate) struct Ports {
    memory: DeviceMemory,
    /// By buffer index; `None` for buffers that are neither input nor output.
    offsets: Vec<Option<u64>>,
    control: u64,
    tokens: u64,
    logits: u64,
    /// Control block and tokens as they go to the device: everything from `control` to the end of
    /// the tokens.
    input: Pinned,
    output: Pinned,
    /// Where the plan chooses its own next token.
    pub(crate) ring: Option<Ring>,
}

impl Ports {
    pub(crate) fn new(context: &Arc<CudaContext>, plan: &Plan) -> Result<Self, CudaError> {
        let (offsets, bytes) = layout(plan);
        let offset = |id: lily_plan::buffer::BufferId| {
            offsets[id.0 as usize].expect("ports are inputs and outputs")
        };
        let (control, tokens) = (offset(plan.ports.control), offset(plan.ports.tokens));
        let ring = plan.ring().map(|ring| Ring::new(context, ring));
        Ok(Ports {
            ring: ring.transpose()?,
            memory: DeviceMemory::zeroed(context, "inputs and logits", bytes)?,
            control,
            tokens,
            logits: offset(plan.ports.logits),
            input: Pinned::zeroed(context, tokens - control + 4 * plan.rows as u64)?,
            output: Pinned::zeroed(context, plan.buffer(plan.ports.logits).bytes())?,
            offsets,
        })
    }

    /// Where the buffer of that index lies.
    pub(crate) fn address(&self, index: usize) -> Address {
        if let Some(ring) = self.ring.as_ref().filter(|ring| ring.is_buffer(index)) {
            return ring.address();
        }
        let offset = self.offsets[index].expect("the buffer is an input or output");
        self.memory.base() + offset
    }

    /// Sends control block and tokens. The staging memory must be free: the last run has ended.
    pub(crate) fn send(
        &mut self,
        tokens: &[u32],
        position: usize,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let at = (self.tokens - self.control) as usize;
        let len = at + 4 * tokens.len();
        let bytes = &mut self.input.bytes_mut()[..len];
        let position = u32::try_from(position).expect("positions were checked");
        bytes[0..4].copy_from_slice(&position.to_le_bytes());
        bytes[4..8].copy_from_slice(&(tokens.len() as u32).to_le_bytes());
        for (slot, token) in bytes[at..].chunks_exact_mut(4).zip(tokens) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        let to = self.memory.range(self.control, len as u64);
        // SAFETY: the range was checked and lives as long as the ports; the staging bytes are left
        // alone until the run has ended.
        unsafe { upload(to, &self.input.bytes()[..len], stream) }
    }

    /// Starts the copy of the first `len` logits.
    pub(crate) fn fetch(&mut self, len: usize, stream: &CudaStream) -> Result<(), CudaError> {
        let bytes = 4 * len;
        let from = self.memory.range(self.logits, bytes as u64);
        // SAFETY: the range was checked and lives as long as the ports; the staging bytes are not
        // read before the run has ended.
        unsafe { download(&mut self.output.bytes_mut()[..bytes], from, stream) }
    }

    /// The `len` logits that [`Ports::fetch`] copied, once the stream has passed the copy.
    pub(crate) fn logits(&self, len: usize, logits: &mut Vec<f32>) {
        let bytes = &self.output.bytes()[..4 * len];
        logits.clear();
        logits.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    }
}

/// Where inputs and outputs lie, control block and tokens first and next to each other, so that one
/// copy fills both.
fn layout(plan: &Plan) -> (Vec<Option<u64>>, u64) {
    let mut order: Vec<usize> = (0..plan.buffers.len())
        .filter(|&i| matches!(plan.buffers[i].class, BufferClass::Input | BufferClass::Output))
        .collect();
    let (control, tokens) = (plan.ports.control.0 as usize, plan.ports.tokens.0 as usize);
    order.sort_by_key(|&i| (i != control, i != tokens, i));
    let mut offsets = vec![None; plan.buffers.len()];
    let mut bytes = 0;
    for index in order {
        offsets[index] = Some(bytes);
        bytes += plan.buffers[index].bytes().next_multiple_of(ALIGN);
    }
    (offsets, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_plan::buffer::Elem;
    use lily_plan::plan::{Phase, PlanBuilder};

    #[test]
    fn control_block_and_tokens_lie_side_by_side() {
        let mut builder = PlanBuilder::new();
        let logits = builder.buffer("logits", Elem::F32, 1000, BufferClass::Output).buffer;
        let tokens = builder.buffer("tokens", Elem::U32, 100, BufferClass::Input).buffer;
        builder.buffer("x", Elem::F32, 100, BufferClass::Scratch);
        let control = builder.buffer("control", Elem::U32, 2, BufferClass::Input).buffer;
        let ports = lily_plan::plan::Ports { control, tokens, logits };
        let plan = builder.finish(Phase::Prefill, 100, 100, ports);
        let (offsets, bytes) = layout(&plan);
        assert_eq!(offsets, [Some(768), Some(256), None, Some(0)]);
        assert_eq!(bytes, 768 + 4096);
    }
}
