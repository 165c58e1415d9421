//! A device for tests: the Metal kernels on the CPU, one fibre per GPU thread.
//!
//! The one idea: what a user's Mac will compile is executed here first. The sources of `kernels/`
//! are translated to host C++ by `lily-kernels`, compiled by clang into shared objects, and run with
//! the run-time of `kernels/runtime/host.hpp`: threads are resumed in random order and meet only at
//! barriers and simdgroup functions, threadgroup memory and outputs are poisoned, and every access
//! to a buffer is checked against its bounds and alignment.
//!
//! What it deliberately lacks: speed, and any claim about it.

mod abi;
mod cache;
mod compute;
mod device;
mod error;
mod fault;
mod kernels;
mod memory;
mod model;
mod sequence;
mod step;
mod toolchain;
mod weights;

pub use cache::{Entry, KernelCache};
pub use compute::{Dispatch, Schedule, run};
pub use device::{EmulatorDevice, EmulatorOptions};
pub use error::EmulatorError;
pub use fault::{Fault, Memory, Place};
pub use kernels::{Edit, host_source, host_source_of};
pub use memory::AlignedBytes;
pub use model::EmulatorModel;
pub use toolchain::{CompileError, Toolchain};
