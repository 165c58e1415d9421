//! A CUDA GPU as a device.

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, result, sys};
use lily_checkpoint::Checkpoint;
use lily_device::{Device, DeviceError, DeviceFacts, LoadedModel, Progress};

use crate::error::{CudaError, driver};
use crate::model::CudaModel;
use crate::options::CudaOptions;
use crate::weights::WeightStore;

/// The oldest driver with all calls used here: graphs with edge data and parameter sizes of kernels.
const LEAST_DRIVER: i32 = 12_080;

/// One GPU; clones share it.
#[derive(Clone, Debug)]
pub struct CudaDevice {
    context: Arc<CudaContext>,
    options: CudaOptions,
    chip: Chip,
}

/// What code generation and launches need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chip {
    pub(crate) name: String,
    /// Compute capability.
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub(crate) shared_bytes: u32,
    /// Most threads of one block.
    pub(crate) threads: u32,
    /// Most blocks of a grid in x, y and z.
    pub(crate) grid: [u32; 3],
}

impl Chip {
    /// Whether neighbouring blocks can share memory (thread block clusters).
    pub(crate) fn has_clusters(&self) -> bool {
        self.capability.0 >= 9
    }

    /// Whether kernels of decode should share a multiprocessor as [`crate::CudaOptions::carveout`] and
    /// [`crate::CudaOptions::spread`] say. It pays where steps start early, and both are shares of the
    /// 228 KB that such chips have for servers; of 100 KB they would leave a kernel too little.
    pub(crate) fn shares_evenly(&self) -> bool {
        self.has_clusters() && self.shared_bytes >= 200 << 10
    }

    fn of(context: &CudaContext) -> Result<Chip, CudaError> {
        let get = |attribute| context.attribute(attribute).map_err(driver("cuDeviceGetAttribute"));
        let count = |attribute| get(attribute).map(|value| value.max(0) as u32);
        Ok(Chip {
            name: context.name().map_err(driver("cuDeviceGetName"))?,
            capability: (
                get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: count(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
            shared_bytes: count(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )?,
            threads: count(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            grid: [
                count(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                count(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                count(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ],
        })
    }

    /// Itself, unless it is older than Ampere, which first multiplied matrices of bf16.
    fn served(self) -> Result<Chip, CudaError> {
        if self.capability < (8, 0) {
            return Err(CudaError::OldChip { name: self.name, found: self.capability });
        }
        Ok(self)
    }

    /// The target that code is made for; from capability 9.0 on with the chip's own instructions.
    pub(crate) fn arch(&self) -> String {
        let (major, minor) = self.capability;
        let own = if major >= 9 { "a" } else { "" };
        format!("sm_{major}{minor}{own}")
    }
}

impl CudaDevice {
    /// Opens the driver and the run-time compiler and takes one GPU.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoCompiler`] or [`CudaError::NoDevice`] where one of them
    /// is missing, [`CudaError::OldDriver`] or [`CudaError::CompilerTooNew`] where they do not fit,
    /// [`CudaError::Driver`] when the GPU cannot be used.
    pub fn new(options: CudaOptions) -> Result<Self, CudaError> {
        let version = driver_version()?;
        if version < LEAST_DRIVER {
            return Err(CudaError::OldDriver { found: version, least: LEAST_DRIVER });
        }
        let count = device_count()?;
        if options.ordinal >= count {
            return Err(CudaError::NoDevice { ordinal: options.ordinal, count });
        }
        let compiler = crate::compile::nvrtc_version()?.0;
        if compiler > version / 1000 {
            return Err(CudaError::CompilerTooNew { compiler, driver: version / 1000 });
        }
        let context =
            CudaContext::new(options.ordinal).map_err(driver("cuDevicePrimaryCtxRetain"))?;
        let chip = Chip::of(&context)?.served()?;
        Ok(CudaDevice { context, options, chip })
    }

    /// Free and total device memory in bytes.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (free, total) = self.context.mem_get_info().map_err(driver("cuMemGetInfo"))?;
        Ok((free as u64, total as u64))
    }

    /// As [`Device::load`], with the device's own type, which can report facts of its kernels.
    ///
    /// # Errors
    /// As [`Device::load`].
    pub fn load_model(
        &self,
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<CudaModel, DeviceError> {
        let weights = WeightStore::load(checkpoint, &self.context, progress)?;
        CudaModel::new(
            checkpoint.manifest().clone(),
            Arc::new(weights),
            Arc::clone(&self.context),
            self.options.clone(),
            self.chip.clone(),
        )
        .map_err(|error| error.at("start"))
    }
}

impl Device for CudaDevice {
    fn facts(&self) -> DeviceFacts {
        self.options.facts(self.chip.name.clone(), self.chip.multiprocessors)
    }

    fn load(
        &self,
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<Box<dyn LoadedModel>, DeviceError> {
        Ok(Box::new(self.load_model(checkpoint, progress)?))
    }
}

/// As `cuDriverGetVersion` counts: 1000 * major + 10 * minor.
fn driver_version() -> Result<i32, CudaError> {
    // SAFETY: opens and closes the driver's library, whose initialisers have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the library is there, the call needs no `cuInit` and writes one `int`.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    status.result().map_err(driver("cuDriverGetVersion"))?;
    Ok(version)
}

fn device_count() -> Result<usize, CudaError> {
    match result::init() {
        // A driver without a GPU says so here.
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => return Ok(0),
        initialised => initialised.map_err(driver("cuInit"))?,
    }
    let count = result::device::get_count().map_err(driver("cuDeviceGetCount"))?;
    Ok(count.max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chip(capability: (i32, i32)) -> Chip {
        let name = "Quadro RTX 8000".to_owned();
        Chip { name, capability, multiprocessors: 1, threads: 1024, shared_bytes: 0, grid: [1; 3] }
    }

    #[test]
    fn chips_older_than_ampere_are_refused_by_name() {
        let error = chip((7, 5)).served().unwrap_err().to_string();
        let words = "Quadro RTX 8000 has compute capability 7.5, expected 8.0 or newer";
        assert_eq!(error, words);
        assert_eq!(chip((8, 0)).served().unwrap(), chip((8, 0)));
    }

    #[test]
    fn code_is_made_for_the_chip_at_hand() {
        assert_eq!(chip((8, 9)).arch(), "sm_89");
        assert_eq!(chip((9, 0)).arch(), "sm_90a");
        assert_eq!(chip((12, 0)).arch(), "sm_120a");
    }

    #[test]
    fn only_chips_with_room_and_early_starts_share_multiprocessors_evenly() {
        let evenly = |capability, kib: u32| {
            Chip { shared_bytes: kib << 10, ..chip(capability) }.shares_evenly()
        };
        assert!(evenly((9, 0), 228) && evenly((10, 0), 228));
        assert!(!evenly((8, 0), 164) && !evenly((8, 9), 100) && !evenly((12, 0), 100));
    }

    #[test]
    fn what_is_missing_is_said_and_nothing_panics() {
        match CudaDevice::new(CudaOptions { ordinal: usize::MAX, ..CudaOptions::default() }) {
            Ok(_) => panic!("no machine has so many devices"),
            Err(
                CudaError::NoDriver
                | CudaError::NoCompiler
                | CudaError::NoDevice { .. }
                | CudaError::OldDriver { .. }
                | CudaError::OldChip { .. }
                | CudaError::CompilerTooNew { .. }
                | CudaError::Driver { .. },
            ) => {}
            Err(other) => panic!("{other}"),
        }
    }
}
