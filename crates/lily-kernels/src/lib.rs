//! The Metal kernels, and what every machine that runs them shares.
//!
//! The one idea: one set of sources in the Metal Shading Language (`kernels/` at the repository's
//! root) runs everywhere. [`lower::lower`] turns a validated plan into one [`launch::Launch`] per
//! step, with every shape a compile-time constant of its kernel; a device compiles the sources (as
//! they are for Metal, translated for CUDA and for the emulator), binds buffers and replays the
//! launches.
//!
//! What it deliberately lacks: any device's API, and hazards, which are facts of the plan.
#![forbid(unsafe_code)]

pub mod check;
pub mod launch;
pub mod limits;
pub mod lower;
pub mod params;
pub mod sources;
pub mod translate;
