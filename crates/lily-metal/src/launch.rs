//! A launch with everything resolved that does not change from run to run.

use std::ptr::NonNull;

use lily_kernels::launch::{Binding, Extent, Launch};
use lily_plan::buffer::{BufferId, Region, WeightId};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLComputeCommandEncoder, MTLSize};

use crate::compile::Pipeline;
use crate::memory::{SharedArenas, SharedBuffer};
use crate::places::{Place, Places};

/// One dispatch, ready to be encoded.
#[derive(Debug)]
pub(crate) struct PreparedLaunch {
    pipeline: Pipeline,
    bindings: Vec<Bound>,
    grid: [Extent; 3],
    threads: usize,
}

#[derive(Debug)]
enum Bound {
    /// Index into the weights.
    Weight(usize),
    /// Bytes of a buffer of the plan.
    Region(Region),
    /// Bytes of a struct.
    Params(Vec<u8>),
}

/// The memory of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) places: &'a Places,
    pub(crate) weights: &'a SharedArenas,
    pub(crate) scratch: &'a SharedBuffer,
    pub(crate) ports: &'a SharedBuffer,
    pub(crate) session: Option<&'a SharedArenas>,
}

impl<'a> Memory<'a> {
    /// The buffer that holds a buffer of the plan, and where that starts in it.
    fn locate(&self, buffer: BufferId) -> (&'a SharedBuffer, u64) {
        match self.places.buffers[buffer.0 as usize] {
            Place::Scratch(offset) => (self.scratch, offset),
            Place::Port(offset) => (self.ports, offset),
            Place::Session(index) => {
                self.session.expect("a plan with session buffers runs in a session").locate(index)
            }
            Place::Unused => panic!("buffer {} is bound and touched by no step", buffer.0),
        }
    }
}

impl PreparedLaunch {
    /// Resolves a launch; `weight` finds the index of a weight.
    pub(crate) fn new(
        launch: &Launch,
        pipeline: Pipeline,
        weight: impl Fn(WeightId) -> usize,
    ) -> PreparedLaunch {
        let bind = |binding: &Binding| match binding {
            Binding::Region(region) => Bound::Region(region.clone()),
            Binding::Weight(id) => Bound::Weight(weight(*id)),
            Binding::Params(bytes) => Bound::Params(bytes.clone()),
        };
        PreparedLaunch {
            pipeline,
            bindings: launch.bindings.iter().map(bind).collect(),
            grid: launch.grid,
            threads: launch.threads as usize,
        }
    }

    /// Encodes the dispatch for that many active rows.
    ///
    /// # Safety
    /// The memory has to live until the command buffer has completed, and its buffers must have the
    /// sizes of the plan that this launch was lowered from.
    pub(crate) unsafe fn encode(
        &self,
        encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>,
        memory: &Memory<'_>,
        rows: u32,
    ) {
        encoder.setComputePipelineState(&self.pipeline.state);
        for (index, bound) in self.bindings.iter().enumerate() {
            let (buffer, offset) = match bound {
                Bound::Weight(weight) => memory.weights.locate(*weight),
                Bound::Region(region) => {
                    let (raw, offset) = memory.locate(region.buffer);
                    let end = offset + region.bytes.end;
                    assert!(end <= raw.len(), "binding {index} is outside of its buffer");
                    (raw, offset + region.bytes.start)
                }
                Bound::Params(bytes) => {
                    // SAFETY: the limits were checked: the index exists, the bytes are 1 to 4096;
                    // Metal copies them.
                    unsafe {
                        let first = NonNull::from(bytes.as_slice()).cast();
                        encoder.setBytes_length_atIndex(first, bytes.len(), index);
                    }
                    continue;
                }
            };
            assert!(offset < buffer.len(), "binding {index} is outside of its buffer");
            // SAFETY: index and alignment were checked with the limits, the offset just above; the
            // caller keeps the buffer alive; its contents are what the plan says.
            unsafe {
                encoder.setBuffer_offset_atIndex(Some(buffer.raw()), offset as usize, index);
            }
        }
        let [width, height, depth] = self.grid.map(|extent| extent.groups(rows) as usize);
        let threads = MTLSize { width: self.threads, height: 1, depth: 1 };
        encoder
            .dispatchThreadgroups_threadsPerThreadgroup(MTLSize { width, height, depth }, threads);
    }
}
