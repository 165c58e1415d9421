//! Lists the kernels that the plans of all reference checkpoints need.
//!
//! `cargo run -p lily-kernels --example kernels`
#![allow(clippy::print_stdout, reason = "a program")]

#[path = "../tests/common/mod.rs"]
mod common;

fn main() {
    let Some(shared) = common::shared() else { return };
    for launch in common::launches(&shared) {
        println!("{}\t{}", launch.kernel.module.folder(), common::name(&launch.kernel));
    }
}
