//! What can go wrong before and while a plan runs on a CUDA device.

use cudarc::driver::DriverError;
use lily_device::DeviceError;

/// Why a CUDA device cannot be used or has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not installed.
    #[error("no CUDA driver found (libcuda.so.1, nvcuda.dll)")]
    NoDriver,
    /// The run-time compiler's library is not installed.
    #[error("NVRTC not found (libnvrtc.so.13); it is part of the CUDA toolkit")]
    NoCompiler,
    /// The driver sees no such device.
    #[error("CUDA device {ordinal} does not exist: the driver sees {count}")]
    NoDevice {
        /// Asked for.
        ordinal: usize,
        /// Devices that the driver sees.
        count: usize,
    },
    /// The driver is too old for the calls used here.
    #[error("the CUDA driver speaks version {found}, expected {least} or newer")]
    OldDriver {
        /// As `cuDriverGetVersion` counts: 1000 * major + 10 * minor.
        found: i32,
        /// The oldest that works.
        least: i32,
    },
    /// The GPU lacks instructions that the kernels are made of.
    #[error("{name} has compute capability {}.{}, expected 8.0 or newer", found.0, found.1)]
    OldChip {
        /// The GPU's name.
        name: String,
        /// Its compute capability.
        found: (i32, i32),
    },
    /// Code that the compiler makes does not load into this driver.
    #[error("NVRTC is of CUDA {compiler}, the driver only of {driver}")]
    CompilerTooNew {
        /// Major version of NVRTC.
        compiler: i32,
        /// Major version of the driver.
        driver: i32,
    },
    /// A call of the driver failed.
    #[error("{call}: {message}")]
    Driver {
        /// What was being done.
        call: &'static str,
        /// The driver's words.
        message: String,
    },
    /// A module's source did not compile.
    #[error("the {module} kernels do not compile:\n{log}")]
    Compile {
        /// Folder of the sources.
        module: &'static str,
        /// The compiler's log.
        log: String,
    },
    /// No kernels run a plan.
    #[error(transparent)]
    Lower(#[from] lily_kernels::lower::LowerError),
    /// A kernel's source could not be put together.
    #[error("kernel {kernel}")]
    Source {
        /// Its host name.
        kernel: String,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A step asks for what this device does not do.
    #[error("step {step}: {what} is {found}, expected {expected}")]
    Limit {
        /// Step name.
        step: String,
        /// Which limit.
        what: &'static str,
        /// What the launch has.
        found: u64,
        /// What the device takes.
        expected: String,
    },
    /// Memory ran out.
    #[error("{what} needs {bytes} bytes of device memory, {free} are free")]
    Memory {
        /// What was to be allocated.
        what: String,
        /// Size in bytes.
        bytes: u64,
        /// Free at that time.
        free: u64,
    },
}

/// Names the call that failed.
pub(crate) fn driver(call: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |error| CudaError::Driver { call, message: describe(error) }
}

/// The driver's name of an error and its sentence.
pub(crate) fn describe(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    };
    let (name, sentence) = (text(error.error_name()), text(error.error_string()));
    if name.is_empty() { format!("{:?}", error.0) } else { format!("{name} ({sentence})") }
}

impl CudaError {
    /// As an error of a step, or of what comes before the first (`start`).
    pub(crate) fn at(self, step: &str) -> DeviceError {
        match self {
            CudaError::Memory { what, bytes, .. } => DeviceError::Memory { what, bytes },
            CudaError::Limit { ref step, .. } => {
                let step = step.clone();
                DeviceError::Lost { device: "cuda", step, message: self.to_string() }
            }
            other => DeviceError::Lost {
                device: "cuda",
                step: step.to_owned(),
                message: other.to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_a_memory_error() {
        let error = CudaError::Memory { what: "scratch".into(), bytes: 10, free: 5 }.at("start");
        assert!(matches!(error, DeviceError::Memory { bytes: 10, .. }), "{error}");
    }

    #[test]
    fn a_limit_names_its_own_step() {
        let error = CudaError::Limit {
            step: "layers.3.attn".into(),
            what: "threads",
            found: 2048,
            expected: "at most 1024".into(),
        };
        let DeviceError::Lost { step, message, .. } = error.at("start") else { panic!() };
        assert_eq!(step, "layers.3.attn");
        assert!(message.contains("2048"), "{message}");
    }
}
