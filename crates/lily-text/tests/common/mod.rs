//! Where the test inputs are.
#![allow(dead_code)]

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A file of the published Qwen3.6 checkpoint or its test vectors. They are
/// kept outside the repository; without them a test says so and does nothing.
pub(crate) fn qwen36(file: &str) -> Option<Vec<u8>> {
    let root = std::env::var_os("LILY_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let path = root.join("qwen36").join(file);
    if path.exists() {
        return Some(std::fs::read(path).unwrap());
    }
    assert!(
        std::env::var_os("LILY_REQUIRE_SHARED").is_none_or(|value| value != "1"),
        "{} is missing",
        path.display()
    );
    // Written past the capture of passing tests, so that a skip is seen.
    drop(writeln!(std::io::stderr(), "skipped: shared/ is missing"));
    None
}

/// A file of the demonstration model, which is part of the repository.
pub(crate) fn demo(file: &str) -> Vec<u8> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/checkpoint");
    std::fs::read(directory.join(file)).unwrap()
}
