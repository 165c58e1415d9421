//! When each block of the last run began, had waited and ended (`kernels/runtime/cuda/trace.cuh`).

use std::sync::Arc;

use cudarc::driver::CudaContext;
use lily_device::{DeviceError, PlanId};
use lily_kernels::launch::Program;

use crate::error::CudaError;
use crate::memory::{Address, DeviceMemory};
use crate::model::CudaModel;

/// Words of a block's record.
const WORDS: usize = 6;
const RECORD: u64 = (WORDS * size_of::<u64>()) as u64;

/// The records of a plan's blocks, step by step.
#[derive(Debug)]
pub(super) struct Records {
    memory: DeviceMemory,
    /// Of each step, and the end.
    starts: Vec<u64>,
}

impl Records {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        program: &Program,
        rows: u32,
    ) -> Result<Self, CudaError> {
        let mut starts = vec![0];
        for launch in &program.launches {
            let blocks: u64 = launch.grid.iter().map(|n| u64::from(n.groups(rows))).product();
            starts.push(starts[starts.len() - 1] + blocks * RECORD);
        }
        let memory = DeviceMemory::zeroed(context, "trace", starts[starts.len() - 1])?;
        Ok(Records { memory, starts })
    }

    /// Where the blocks of a step leave theirs.
    pub(super) fn of(&self, step: usize) -> Address {
        self.memory.range(self.starts[step], self.starts[step + 1] - self.starts[step])
    }
}

/// The blocks of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTrace {
    /// Name of the step.
    pub step: String,
    /// Host name of its kernel.
    pub kernel: String,
    /// Of each block, in cycles of its multiprocessor: begun, had waited (0: did not wait), ended; in ns
    /// of the global timer: begun, ended; and the multiprocessor. By its first thread, which other warps
    /// may outlast.
    pub blocks: Vec<[u64; WORDS]>,
}

impl CudaModel {
    /// The trace of the last run of a plan, in the order of its steps. Empty without
    /// [`crate::CudaOptions::trace`].
    ///
    /// # Errors
    /// [`DeviceError`] where the driver refuses the copy.
    pub fn trace(&self, plan: PlanId) -> Result<Vec<StepTrace>, DeviceError> {
        let prepared = &self.plans[plan.0];
        let Some(records) = &prepared.records else { return Ok(Vec::new()) };
        let _running = self.lock();
        let mut bytes = vec![0; records.starts[prepared.launches.len()] as usize];
        records.memory.read(0, &mut bytes).map_err(|error| error.at("trace"))?;
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().expect("8 bytes"));
        let steps = prepared.order.steps.iter().map(|&step| {
            let own = &bytes[records.starts[step] as usize..records.starts[step + 1] as usize];
            let blocks = own.chunks_exact(RECORD as usize).map(|record| {
                let mut words = record.chunks_exact(8).map(word);
                std::array::from_fn(|_| words.next().expect("a record has its words"))
            });
            let launch = &prepared.launches[step];
            StepTrace {
                step: launch.step.clone(),
                kernel: launch.function.facts.name.clone(),
                blocks: blocks.collect(),
            }
        });
        Ok(steps.collect())
    }
}
