//! Turns a configuration and a manifest into plans.
//!
//! The one idea: an architecture is a function from (configuration, phase, rows) to a list of steps.
//! One file per part of the model: attention, gated delta, feed-forward, head. Every fusion
//! has an unfused twin behind a named switch of [`Fusions`].
//!
//! What it deliberately lacks: devices, weights' bytes, tokens, HTTP. It decides *what* runs in which
//! order on which buffers; how a step is computed is a device's business.
#![forbid(unsafe_code)]

mod attention;
mod build;
mod error;
mod fusions;
mod gated_delta;
mod head;
mod memory;
mod mlp;
mod project;
mod rope;

pub use build::{BuildOptions, GENERATED, GENERATED_LEN, build};
pub use error::ModelError;
pub use fusions::{Fusions, UnknownFusion};
pub use memory::{MemoryEstimate, estimate_memory};
