//! A forward pass as data.
//!
//! The one idea: what runs, what it reads and what it writes are facts that exist before anything
//! runs. Byte ranges give hazards, hazards give a dependency graph, the graph gives stages; a device
//! only replays what was validated here.
//!
//! What it deliberately lacks: device APIs, weights' bytes, tokens.
#![forbid(unsafe_code)]

pub mod access;
pub mod buffer;
mod check;
pub mod dump;
mod error;
pub mod hazard;
mod memory;
pub mod op;
pub mod plan;
pub mod run;
mod stage;
pub mod stats;
pub mod valid;

pub use dump::dump;
pub use error::PlanError;
pub use stats::stats;
pub use valid::ValidPlan;
