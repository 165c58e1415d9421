//! What a kernel did wrong.

use std::ffi::c_char;
use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::abi::{Report, kind};

/// The memory that was touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The buffer bound at this index.
    Buffer(u32),
    /// The threadgroup array of this name.
    Threadgroup(String),
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Buffer(index) => write!(f, "buffer {index}"),
            Memory::Threadgroup(name) => write!(f, "threadgroup array {name:?}"),
        }
    }
}

/// Who did it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Host name of the kernel.
    pub kernel: String,
    /// Position in the grid.
    pub threadgroup: [u32; 3],
    /// Index in the threadgroup.
    pub thread: u32,
    /// File and line, where a symbolizer is installed.
    pub source: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { kernel, threadgroup: [x, y, z], thread, source } = self;
        write!(f, "{kernel}, threadgroup ({x}, {y}, {z}), thread {thread}")?;
        source.as_ref().map_or(Ok(()), |source| write!(f, ", {source}"))
    }
}

/// What a kernel did wrong. The launch ends at the first fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An access that does not lie inside its buffer or array.
    #[error(
        "{place}: access of {size} bytes at byte {offset} of {memory}, which has {bytes} bytes"
    )]
    OutOfBounds {
        /// Who.
        place: Place,
        /// What was touched.
        memory: Memory,
        /// First byte of the access, from the start of the memory.
        offset: i64,
        /// Bytes of the access.
        size: u64,
        /// Bytes of the memory.
        bytes: u64,
    },
    /// An access at an address that is no multiple of the element's alignment.
    #[error("{place}: access at byte {offset} of {memory} has to be aligned to {align} bytes")]
    Misaligned {
        /// Who.
        place: Place,
        /// What was touched.
        memory: Memory,
        /// First byte of the access, from the start of the memory.
        offset: i64,
        /// Bytes of the alignment.
        align: u64,
    },
    /// Threads that wait at a barrier or simdgroup function for others that are elsewhere.
    #[error("{place}: not all threads reach the same barrier or simdgroup function: {waiting}")]
    Divergent {
        /// Who; the thread is one of several.
        place: Place,
        /// How many threads are where.
        waiting: String,
    },
    /// Threadgroup arrays that exceed what a threadgroup may have.
    #[error("{place}: threadgroup memory comes to {bytes} bytes with {name:?}")]
    ThreadgroupMemory {
        /// Who.
        place: Place,
        /// The array that no longer fits.
        name: String,
        /// Bytes of all arrays up to it.
        bytes: u64,
    },
    /// A pointer into memory that is neither a buffer nor a threadgroup array.
    #[error("{place}: pointer {pointer} points into no buffer")]
    UnknownMemory {
        /// Who.
        place: Place,
        /// The address.
        pointer: String,
    },
    /// The system refused memory for fibres.
    #[error("no memory for the threads of {kernel}")]
    NoMachine {
        /// Host name of the kernel.
        kernel: String,
    },
}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// File and line of an instruction, by the symbolizer of LLVM.
fn source_of(object: &Path, address: u64) -> Option<String> {
    let symbolizer = ["llvm-symbolizer-19", "llvm-symbolizer"].into_iter().find_map(|program| {
        let object = format!("--obj={}", object.display());
        let args = [object, "--inlines".to_owned(), "-f=none".to_owned()];
        // The address is that of the instruction after the call.
        let out = Command::new(program).args(args).arg(format!("{:#x}", address - 1)).output();
        out.ok().filter(|out| out.status.success())
    })?;
    let out = String::from_utf8_lossy(&symbolizer.stdout).into_owned();
    // Innermost first; frames of the run-time itself say nothing.
    let own = |line: &&str| !line.contains("runtime/host/") && !line.contains(".cpp:");
    let mut frames = out.lines().filter(|line| line.contains(':') && !line.starts_with('?'));
    frames.find(own).map(str::to_owned)
}

impl Fault {
    pub(crate) fn of(kernel: &str, object: &Path, report: &Report) -> Fault {
        let place = Place {
            kernel: kernel.to_owned(),
            threadgroup: report.threadgroup,
            thread: report.thread,
            source: (report.address > 0).then(|| source_of(object, report.address)).flatten(),
        };
        let name = text(&report.name);
        let memory = match u32::try_from(report.binding) {
            Ok(index) => Memory::Buffer(index),
            Err(_) => Memory::Threadgroup(name.clone()),
        };
        let Report { offset, bytes, size, .. } = *report;
        match report.kind {
            kind::BOUNDS => Fault::OutOfBounds { place, memory, offset, size, bytes },
            kind::ALIGNMENT => Fault::Misaligned { place, memory, offset, align: size },
            kind::DIVERGENCE => Fault::Divergent { place, waiting: text(&report.text) },
            kind::THREADGROUP_MEMORY => Fault::ThreadgroupMemory { place, name, bytes },
            kind::UNKNOWN_MEMORY => Fault::UnknownMemory { place, pointer: text(&report.text) },
            _ => Fault::NoMachine { kernel: kernel.to_owned() },
        }
    }

    /// The kernel's host name.
    pub fn kernel(&self) -> &str {
        match self {
            Fault::OutOfBounds { place, .. }
            | Fault::Misaligned { place, .. }
            | Fault::Divergent { place, .. }
            | Fault::ThreadgroupMemory { place, .. }
            | Fault::UnknownMemory { place, .. } => &place.kernel,
            Fault::NoMachine { kernel } => kernel,
        }
    }
}
