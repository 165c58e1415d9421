//! What a machine needs to run tests of the emulator, and the goldens where it has it.
#![allow(dead_code, reason = "each test uses its part")]

use lily_emulator::Toolchain;

#[path = "../../../lily-cpu/tests/golden/reader.rs"]
mod reader;

pub(crate) use reader::Golden;

/// Whether kernels can be compiled here.
pub(crate) fn has_compiler() -> bool {
    reader::available("clang", "LILY_REQUIRE_CLANG", Toolchain::find().is_ok())
}

/// All golden checkpoints, or `None` where the shared folder or the compiler is missing.
pub(crate) fn goldens() -> Option<Vec<Golden>> {
    reader::goldens().filter(|_| has_compiler())
}
