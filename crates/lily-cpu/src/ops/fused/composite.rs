//! Kernels one after the other, as one task.

use lily_device::DeviceError;
use lily_plan::buffer::{BufferId, Region};

use super::super::{Kernel, Part, Run, Workspace};
use crate::memory::{AlignedBytes, Memory, Span};
use crate::weights::Weights;

/// Kernels of one step, and what they hand each other.
pub(super) struct Composite {
    kernels: Vec<Box<dyn Kernel>>,
    /// Buffers of the plan; temporaries are numbered from here.
    plan_buffers: usize,
    temporaries: Vec<AlignedBytes>,
}

impl Composite {
    pub(super) fn new(weights: &Weights<'_>) -> Self {
        let plan_buffers = weights.plan_buffers();
        Composite { kernels: Vec::new(), plan_buffers, temporaries: Vec::new() }
    }

    pub(super) fn push(&mut self, kernel: impl Kernel + 'static) {
        self.push_boxed(Box::new(kernel));
    }

    pub(super) fn push_boxed(&mut self, kernel: Box<dyn Kernel>) {
        self.kernels.push(kernel);
    }

    /// Memory for `elements` numbers of 4 bytes that only this step sees.
    pub(super) fn temporary(&mut self, elements: usize) -> Result<Region, DeviceError> {
        let bytes = 4 * elements as u64;
        let id = self.plan_buffers + self.temporaries.len();
        self.temporaries.push(AlignedBytes::zeroed("temporaries of a fused step", bytes)?);
        Ok(Region { buffer: BufferId(id as u32), bytes: 0..bytes })
    }
}

impl Kernel for Composite {
    fn tasks(&self, _: &Run<'_>) -> usize {
        1
    }

    fn task(&self, run: &Run<'_>, _: Part, workspace: &mut Workspace) {
        let mut spans = std::mem::take(&mut workspace.spans);
        spans.clear();
        spans.extend_from_slice(run.memory.spans());
        assert_eq!(spans.len(), self.plan_buffers, "buffers of the plan");
        let span = |memory: &AlignedBytes| Span { base: memory.base(), bytes: memory.len() as u64 };
        spans.extend(self.temporaries.iter().map(span));
        // SAFETY: the plan's spans are those of the run, which outlive it; the kernels below touch
        // only elements of this step's operands, as this task may. The temporaries live as long as
        // `self`, and one run at a time uses them, in this only task.
        let memory = unsafe { Memory::new(&spans) };
        let inner = Run { memory, active: run.active, threads: 1, isa: run.isa };
        for kernel in &self.kernels {
            // It may read what the one before has written.
            workspace.matrix.forget();
            let count = kernel.tasks(&inner);
            for index in 0..count {
                kernel.task(&inner, Part { index, count }, workspace);
            }
        }
        workspace.spans = spans;
    }
}
