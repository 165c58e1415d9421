//! The one place that maps a file.
#![allow(unsafe_code)]

use std::fs::File;

/// A whole file as bytes, read when they are touched.
#[derive(Debug)]
pub struct Mapping {
    map: memmap2::Mmap,
}

impl Mapping {
    pub(crate) fn of(file: &File) -> std::io::Result<Mapping> {
        // SAFETY: the mapping is read-only, and nothing in this program writes to the file. Another
        // program that truncates it while it is in use ends this one with a bus error; that is the
        // price of using a file where it lies, and the documentation of packs says so.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Mapping { map })
    }

    /// All bytes of the file. The first byte lies on a page.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
