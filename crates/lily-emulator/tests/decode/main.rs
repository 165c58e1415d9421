//! Decode as NVIDIA's tuning shapes it.

mod product;
mod rows;
mod steps;
#[path = "../support/mod.rs"]
mod support;
