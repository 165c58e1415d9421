//! Reads checkpoints of the Qwen3.5/3.6 hybrid family and refuses everything that is not one.
//!
//! The one idea: after [`Checkpoint::open`] returns, every weight the model needs is present under
//! one canonical name, with a shape and format that were checked against the configuration, and
//! every byte range lies inside its file. Nothing behind this crate validates files again.
//!
//! What it deliberately lacks: devices, tokens, and arithmetic on weights other than widening
//! small vectors to `f32`.
#![deny(unsafe_code)]

pub mod checkpoint;
pub mod config;
mod describe;
mod error;
mod expected;
mod fields;
mod json;
mod layout;
pub mod manifest;
mod map;
mod names;
pub mod pack;
pub mod packed;
mod parse;
mod quantization;
pub mod random;
mod rope;
mod safetensors;
mod shards;
mod source;
pub mod write;

pub use checkpoint::{Checkpoint, MatrixPart};
pub use describe::{describe, side_file};
pub use error::CheckpointError;
pub use map::Mapping;
pub use safetensors::header_bytes;
pub use source::FileStart;
