//! The CUDA device: runs the translated Metal kernels as one graph per plan.
//!
//! The one idea: a plan becomes a CUDA graph whose edges are the plan's own, so a dependency that the
//! plan lacks shows as a wrong result and not by luck of an order. The host submits graphs and reads
//! results; nothing on it decides what runs next.
//!
//! What it deliberately lacks: kernels of its own (`kernels/` has them all), knowledge of hazards (the
//! plan states them), and a need for CUDA when it is built: driver and compiler are opened at run
//! time, and [`CudaDevice::new`] says what is missing.

mod ahead;
mod compile;
mod device;
mod error;
mod graph;
mod kernels;
mod launch;
mod memory;
mod model;
mod options;
mod order;
mod sequence;
mod weights;

pub use compile::Resources;
pub use device::CudaDevice;
pub use error::CudaError;
pub use kernels::{KernelFacts, compile_kernels};
pub use model::{CudaModel, PlanFacts, StepTrace};
pub use options::{CudaOptions, KernelCache, OptionError, Programmatic, Submission};
