//! The GPU as a device.

use std::sync::Arc;

use lily_checkpoint::Checkpoint;
use lily_device::{Device, DeviceError, DeviceFacts, LoadedModel, Progress};
use lily_kernels::limits::Limits;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSProcessInfo;
use objc2_metal::{MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice};

use crate::MetalError;
use crate::gate::{self, OsVersion, Verdict};
use crate::model::{self, MetalModel};
use crate::options::MetalOptions;

// Without CoreGraphics the system shows no default device to a program without windows.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// The system's GPU.
#[derive(Clone, Debug)]
pub struct MetalDevice {
    pub(crate) raw: Retained<ProtocolObject<dyn MTLDevice>>,
    pub(crate) facts: Arc<GpuFacts>,
    pub(crate) options: MetalOptions,
    verdict: Verdict,
}

/// What Metal says of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuFacts {
    pub(crate) name: String,
    /// Such as `applegpu_g16s`.
    pub(crate) architecture: String,
    pub(crate) os: OsVersion,
    pub(crate) limits: Limits,
}

impl GpuFacts {
    fn of(device: &ProtocolObject<dyn MTLDevice>, os: OsVersion) -> GpuFacts {
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        GpuFacts {
            name: device.name().to_string(),
            architecture: device.architecture().name().to_string(),
            os,
            limits: Limits {
                buffer_bytes: device.maxBufferLength() as u64,
                working_set_bytes: device.recommendedMaxWorkingSetSize(),
                threads: narrow(device.maxThreadsPerThreadgroup().width),
                threadgroup_bytes: narrow(device.maxThreadgroupMemoryLength()),
            },
        }
    }
}

impl MetalDevice {
    /// The system's default GPU.
    ///
    /// # Errors
    /// [`MetalError::TooOld`] below macOS 15, [`MetalError::NoDevice`] where the system shows no GPU.
    pub fn new(options: MetalOptions) -> Result<Self, MetalError> {
        autoreleasepool(|_| {
            let os = system();
            os.check()?;
            let raw = MTLCreateSystemDefaultDevice()
                .or_else(|| MTLCopyAllDevices().firstObject())
                .ok_or(MetalError::NoDevice)?;
            let facts = Arc::new(GpuFacts::of(&raw, os));
            let generation = gate::generation(&facts.architecture);
            let verdict = gate::tensor(options.tensor, os, generation);
            let mut device = MetalDevice { raw, facts, options, verdict };
            if device.verdict == Verdict::Try {
                device.verdict = match model::trial(&device) {
                    Ok(()) => Verdict::Used,
                    Err(why) => Verdict::Failed(why),
                };
            }
            Ok(device)
        })
    }

    /// Bytes that may be resident at once.
    pub fn working_set_bytes(&self) -> u64 {
        self.facts.limits.working_set_bytes
    }

    /// Whether products may use the tensor units.
    pub(crate) fn tensor_units(&self) -> bool {
        self.verdict == Verdict::Used
    }
}

fn system() -> OsVersion {
    let version = NSProcessInfo::processInfo().operatingSystemVersion();
    let number = |n: isize| u64::try_from(n).unwrap_or(0);
    OsVersion::new(number(version.majorVersion), number(version.minorVersion))
}

impl Device for MetalDevice {
    fn facts(&self) -> DeviceFacts {
        let GpuFacts { name, architecture, os, .. } = &*self.facts;
        crate::facts(format!("{name} ({architecture}, macOS {os}, {})", self.verdict))
    }

    fn load(
        &self,
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<Box<dyn LoadedModel>, DeviceError> {
        autoreleasepool(|_| {
            let model = MetalModel::load(self, checkpoint, progress)?;
            Ok(Box::new(model) as Box<dyn LoadedModel>)
        })
    }
}
