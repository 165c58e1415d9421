//! The CPU as a device.

use std::sync::Arc;

use lily_checkpoint::Checkpoint;
use lily_device::{Device, DeviceError, DeviceFacts, LoadedModel, Progress};
use lily_plan::buffer::Elem;

use crate::model::CpuModel;
use crate::pool::Pool;
use crate::simd::Isa;
use crate::weights::WeightStore;

/// Choices for a [`CpuDevice`]; the default takes all cores and the widest instruction set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that work on a run; all cores when `None`, at most four per core (or 16).
    pub threads: Option<usize>,
    /// Instruction set; the widest this machine has when `None`, or when it lacks the one named.
    pub isa: Option<Isa>,
}

/// The processor this program runs on.
#[derive(Clone, Debug)]
pub struct CpuDevice {
    isa: Isa,
    pool: Arc<Pool>,
}

impl CpuDevice {
    /// Starts the worker threads.
    pub fn new(options: CpuOptions) -> Self {
        let threads = options.threads.unwrap_or_else(cores).clamp(1, most_threads());
        // Kernels rely on it: no device exists for an instruction set that the machine lacks.
        let isa = options.isa.filter(|isa| isa.is_available()).unwrap_or_else(Isa::detect);
        CpuDevice { isa, pool: Arc::new(Pool::new(threads)) }
    }

    /// As [`Device::load`], with the CPU's own type, which can report times by operation.
    ///
    /// # Errors
    /// As [`Device::load`].
    pub fn load_model(
        &self,
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<CpuModel, DeviceError> {
        let weights = WeightStore::load(checkpoint, self.isa, &self.pool, progress)?;
        CpuModel::new(weights, self.isa, Arc::clone(&self.pool))
    }
}

impl Device for CpuDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            kind: "cpu",
            name: self.isa.name().to_owned(),
            parallelism: self.pool.threads(),
            activations: Elem::F32,
            prefill_chunk: 512,
            token_slot: false,
        }
    }

    fn load(
        &self,
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<Box<dyn LoadedModel>, DeviceError> {
        Ok(Box::new(self.load_model(checkpoint, progress)?))
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// More threads than this only get into each other's way, and a system has only so many.
fn most_threads() -> usize {
    (4 * cores()).max(16)
}
