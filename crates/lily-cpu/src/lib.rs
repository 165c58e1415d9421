//! The CPU device: runs plans with AVX2, AVX-512 (with VNNI), NEON or portable code.
//!
//! The one idea: a step of a plan is a number of tasks that need nothing from each other, and all
//! tasks of a stage are one job of a thread pool. Which thread does what never changes a result: the
//! same plan and input give the same bits with any number of threads.
//!
//! What it deliberately lacks: knowledge of hazards and of the model (the plan states both), and
//! checks of what `lily-checkpoint` and `lily-plan` have already checked.

mod device;
mod executor;
pub mod matrix;
mod memory;
mod model;
mod ops;
pub mod pool;
mod sequence;
pub mod simd;
mod weights;

pub use device::{CpuDevice, CpuOptions};
pub use executor::OpTime;
pub use model::CpuModel;
pub use simd::Isa;
