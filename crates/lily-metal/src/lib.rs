//! The Metal device: runs plans on Apple GPUs.
//!
//! The one idea: a run is a plan's stages encoded once each. All buffers are shared with the host and
//! invisible to Metal's hazard tracking; what must wait for what is the plan's business, so an encoder
//! is concurrent and has a barrier exactly where the plan has the border of a stage.
//!
//! Everything that is a decision is a plain function over plain data and is tested on any system:
//! where weights lie (`weights`, `mapped`, `arena`), what one command buffer holds (`encoding`), which memory is
//! resident together (`residency`), whether the tensor units are used (`gate`). What remains are the
//! calls of Metal, and they exist only on macOS; elsewhere [`open`] refuses.
//!
//! What it deliberately lacks: knowledge of hazards and of the model, and checks of what
//! `lily-checkpoint`, `lily-plan` and [`lily_kernels::limits`] have already checked.
//!
//! Unsafe code: Metal's calls take raw pointers and trust indices and lifetimes; each block says what
//! it relies on.
#![cfg_attr(not(target_os = "macos"), allow(dead_code, reason = "only Metal's calls use it"))]

mod arena;
mod encoding;
mod error;
mod gate;
mod mapped;
mod options;
mod places;
mod residency;
mod trial;
mod weights;

#[cfg(target_os = "macos")]
mod compile;
#[cfg(target_os = "macos")]
mod device;
#[cfg(target_os = "macos")]
mod kernels;
#[cfg(target_os = "macos")]
mod launch;
#[cfg(target_os = "macos")]
mod memory;
#[cfg(target_os = "macos")]
mod model;
#[cfg(target_os = "macos")]
mod queue;
#[cfg(target_os = "macos")]
mod sequence;

use lily_device::{Device, DeviceFacts};
use lily_plan::buffer::Elem;

#[cfg(target_os = "macos")]
pub use device::MetalDevice;
pub use error::MetalError;
pub use options::{MetalOptions, TensorUnits};

/// The system's GPU, ready to load models.
pub struct Gpu {
    /// The device.
    pub device: Box<dyn Device>,
    /// Bytes that may be resident at once.
    pub working_set_bytes: u64,
}

/// What a device says of itself. Plans depend on no more of it than this, so they can be built where
/// there is no such device.
pub fn facts(name: String) -> DeviceFacts {
    DeviceFacts {
        kind: "metal",
        name,
        // Metal does not tell how many cores a GPU has.
        parallelism: 1,
        activations: Elem::Bf16,
        // About 64 tokens for each of 256 experts: two tiles of the grouped products.
        prefill_chunk: 2048,
        token_slot: true,
    }
}

/// The system's GPU.
///
/// # Errors
/// [`MetalError::NotMacOs`] on other systems, [`MetalError::TooOld`] below macOS 15,
/// [`MetalError::NoDevice`] where the system shows no GPU.
pub fn open(options: MetalOptions) -> Result<Gpu, MetalError> {
    #[cfg(target_os = "macos")]
    {
        let device = MetalDevice::new(options)?;
        let working_set_bytes = device.working_set_bytes();
        Ok(Gpu { device: Box::new(device), working_set_bytes })
    }
    #[cfg(not(target_os = "macos"))]
    {
        let MetalOptions { .. } = options;
        Err(MetalError::NotMacOs)
    }
}

#[cfg(all(test, not(target_os = "macos")))]
mod tests {
    #[test]
    fn elsewhere_there_is_no_device() {
        let error = super::open(super::MetalOptions::default()).map(drop).unwrap_err();
        assert!(matches!(error, super::MetalError::NotMacOs), "{error}");
    }
}
