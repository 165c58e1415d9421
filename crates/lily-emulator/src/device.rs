//! The emulator as a device.

use std::path::PathBuf;

use lily_checkpoint::Checkpoint;
use lily_device::{Device, DeviceError, DeviceFacts, LoadedModel, Progress};
use lily_kernels::lower::Tuning;
use lily_plan::buffer::Elem;

use crate::cache::KernelCache;
use crate::error::{EmulatorError, KIND};
use crate::kernels::Edit;
use crate::model::EmulatorModel;
use crate::toolchain::Toolchain;

/// Choices for an [`EmulatorDevice`].
#[derive(Clone, Debug)]
pub struct EmulatorOptions {
    /// Decides the order of steps, threadgroups and threads.
    pub seed: u64,
    /// System threads that run threadgroups.
    pub workers: usize,
    /// What plans should feed matrix products of several rows.
    pub activations: Elem,
    /// Choices of lowering.
    pub tuning: Tuning,
    /// Changes to the kernels' sources; none, but for tests that plant faults.
    pub edits: Vec<Edit>,
    /// Where compiled kernels are kept.
    pub cache: PathBuf,
}

impl Default for EmulatorOptions {
    fn default() -> Self {
        EmulatorOptions {
            seed: 1,
            workers: 1,
            activations: Elem::F32,
            tuning: Tuning::default(),
            edits: Vec::new(),
            cache: KernelCache::default_folder(),
        }
    }
}

/// A machine that runs the Metal kernels on the CPU.
#[derive(Clone, Debug)]
pub struct EmulatorDevice {
    options: EmulatorOptions,
    toolchain: Toolchain,
}

impl EmulatorDevice {
    /// Looks for a compiler.
    ///
    /// # Errors
    /// [`CompileError::NoCompiler`](crate::CompileError::NoCompiler).
    pub fn new(options: EmulatorOptions) -> Result<Self, EmulatorError> {
        Ok(EmulatorDevice { options, toolchain: Toolchain::find()? })
    }

    /// As [`Device::load`], with the emulator's own type.
    ///
    /// # Errors
    /// As [`Device::load`].
    pub fn load_model(
        &self,
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<EmulatorModel, DeviceError> {
        let toolchain = self.toolchain.clone().with_defines(self.options.tuning.defines());
        let cache = KernelCache::new(toolchain, self.options.cache.clone());
        EmulatorModel::load(checkpoint, progress, cache, self.options.clone())
    }
}

impl Device for EmulatorDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            kind: KIND,
            name: "fibres".to_owned(),
            parallelism: self.options.workers,
            activations: self.options.activations,
            prefill_chunk: 512,
            token_slot: true,
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
