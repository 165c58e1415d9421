//! Why a plan cannot be prepared.

use lily_device::DeviceError;

use crate::toolchain::CompileError;

/// Why a plan cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// The kernels' sources cannot be put together.
    #[error(transparent)]
    Source(#[from] lily_kernels::sources::SourceError),
    /// The kernels' sources cannot be translated.
    #[error(transparent)]
    Translate(#[from] lily_kernels::translate::TranslateError),
    /// A step has no kernel.
    #[error(transparent)]
    Lower(#[from] lily_kernels::lower::LowerError),
    /// The translated sources cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// How a device names the emulator.
pub(crate) const KIND: &str = "emulator";

impl From<EmulatorError> for DeviceError {
    fn from(error: EmulatorError) -> Self {
        DeviceError::Lost { device: KIND, step: "prepare".to_owned(), message: error.to_string() }
    }
}
