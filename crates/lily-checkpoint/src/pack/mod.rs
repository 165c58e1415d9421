//! The `.lily` file: one checkpoint in one file, laid out for graphics processors.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `LILYPACK` |
//! | 8..12 | version, `u32` |
//! | 12..16 | CRC-32 of the header, `u32` |
//! | 16..24 | bytes of the header, `u64` |
//! | 24.. | the header: JSON |
//! | multiples of [`ALIGN`] | side files and weights, each at its offset |
//!
//! All numbers are little-endian. The header lists the side files (`config.json`, tokenizer,
//! template) and the weights in the order of the forward pass, each with offset, size and CRC-32.
//! A matrix is stored as [`crate::packed`] lays it out; vectors and convolutions are `f32` with their
//! effective values. Every entry starts on a page of Apple Silicon, so that the file is mapped and used
//! where it lies. What lies between entries, and behind the last one up to the end of its page, is zero,
//! and the file ends there.
//!
//! Opening checks header, places and the side files that are read, not the weights: that would touch
//! every page. [`Checkpoint::verify`](crate::Checkpoint::verify) checks every byte.
//!
//! A file in use must not be truncated or overwritten in place: the program that has mapped it would end
//! with a bus error. `lily pack --force` replaces a file by renaming another over it, which is safe.

mod read;
mod write;

use serde::{Deserialize, Serialize};

pub(crate) use self::read::PackFile;
pub use self::write::{partial_path, write_pack};
use crate::manifest::{Dtype, MatrixFormat};

/// Extension of the file's name.
pub const EXTENSION: &str = "lily";

/// Alignment of every entry, in bytes: the page size of Apple Silicon.
pub const ALIGN: u64 = 16 << 10;

pub(crate) const MAGIC: &[u8; 8] = b"LILYPACK";
const VERSION: u32 = 1;
const PREFIX_BYTES: u64 = 24;
/// The header, in messages.
const HEADER: &str = "the header";
/// A genuine header has some hundred bytes per weight.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Side files that are packed where the checkpoint has them.
const SIDE_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Why a `.lily` file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// It has no bytes.
    #[error("the file is empty")]
    Empty,
    /// It does not start with the format's name.
    #[error("not a .lily file: it does not start with LILYPACK")]
    Magic,
    /// It was written by another version.
    #[error(
        "version {found} is not supported, expected {VERSION}: the file is of another lily, or damaged"
    )]
    Version {
        /// Version found.
        found: u32,
    },
    /// It ends too early.
    #[error("truncated: {what} ends at byte {end}, the file has {len} bytes")]
    Truncated {
        /// Header, entry or padding.
        what: String,
        /// Where it should end.
        end: u64,
        /// Size of the file.
        len: u64,
    },
    /// It goes on behind its last entry.
    #[error("the file has {len} bytes, {end} expected")]
    TrailingBytes {
        /// Where it should end.
        end: u64,
        /// Size of the file.
        len: u64,
    },
    /// Stored bytes are not those that were written.
    #[error("{what} is damaged: checksum {found:08x}, expected {expected:08x}")]
    Checksum {
        /// Header or entry.
        what: String,
        /// As the file says.
        expected: u32,
        /// Of the bytes.
        found: u32,
    },
    /// Bytes that belong to no entry are not zero.
    #[error("the padding behind {after} is damaged: byte {at} is {found:#04x}, expected 0x00")]
    Padding {
        /// Header or entry before it.
        after: String,
        /// Place in the file.
        at: u64,
        /// The byte.
        found: u8,
    },
    /// The header is not what this version writes.
    #[error("bad header: {reason}")]
    Header {
        /// What the parser says.
        reason: String,
    },
    /// An entry does not start on a page, overlaps another, or has the wrong size.
    #[error("{entry}: {what} {found}, expected {expected}")]
    Entry {
        /// Name of the weight or side file.
        entry: String,
        /// Which property.
        what: &'static str,
        /// What holds for a good file.
        expected: String,
        /// What was found.
        found: String,
    },
}

/// The JSON header.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    files: Vec<FileEntry>,
    weights: Vec<WeightEntry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) crc32: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WeightEntry {
    pub(crate) name: String,
    pub(crate) format: StoredFormat,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) crc32: u32,
}

/// How a weight is stored; its shape follows from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum StoredFormat {
    /// A matrix of packed values with scales and biases.
    Affine { bits: u32, group_size: usize, scale: StoredDtype },
    /// A matrix of floats.
    Float { dtype: StoredDtype },
    /// A vector or convolution of `f32`.
    Values,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoredDtype {
    Bf16,
    F16,
    F32,
}

impl From<StoredDtype> for Dtype {
    fn from(dtype: StoredDtype) -> Dtype {
        match dtype {
            StoredDtype::Bf16 => Dtype::Bf16,
            StoredDtype::F16 => Dtype::F16,
            StoredDtype::F32 => Dtype::F32,
        }
    }
}

impl StoredDtype {
    fn of(dtype: Dtype) -> StoredDtype {
        match dtype {
            Dtype::Bf16 => StoredDtype::Bf16,
            Dtype::F16 => StoredDtype::F16,
            Dtype::F32 | Dtype::U32 => StoredDtype::F32,
        }
    }
}

impl StoredFormat {
    fn of(format: MatrixFormat) -> StoredFormat {
        match format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                StoredFormat::Affine { bits, group_size, scale: StoredDtype::of(scale) }
            }
            MatrixFormat::Float(dtype) => StoredFormat::Float { dtype: StoredDtype::of(dtype) },
        }
    }

    fn matrix(self) -> Option<MatrixFormat> {
        match self {
            StoredFormat::Affine { bits, group_size, scale } => {
                Some(MatrixFormat::Affine { bits, group_size, scale: scale.into() })
            }
            StoredFormat::Float { dtype } => Some(MatrixFormat::Float(dtype.into())),
            StoredFormat::Values => None,
        }
    }
}
