//! Header of a safetensors file, checked in full before any byte of data is trusted.
//!
//! Format: `u64` little-endian header length, JSON header, data section. `data_offsets` count from
//! the start of the data section, which needs no alignment.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::error::CheckpointError;
use crate::json::shorten;
use crate::manifest::Dtype;
use crate::source::Blob;

/// The format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const MAX_DIMS: usize = 8;

/// Element types of the format; the model uses only those that [`StoredDtype::used`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredDtype {
    name: &'static str,
    bits: u64,
}

const DTYPES: [StoredDtype; 20] = [
    StoredDtype { name: "BOOL", bits: 8 },
    StoredDtype { name: "F4", bits: 4 },
    StoredDtype { name: "F6_E2M3", bits: 6 },
    StoredDtype { name: "F6_E3M2", bits: 6 },
    StoredDtype { name: "U8", bits: 8 },
    StoredDtype { name: "I8", bits: 8 },
    StoredDtype { name: "F8_E5M2", bits: 8 },
    StoredDtype { name: "F8_E4M3", bits: 8 },
    StoredDtype { name: "F8_E8M0", bits: 8 },
    StoredDtype { name: "I16", bits: 16 },
    StoredDtype { name: "U16", bits: 16 },
    StoredDtype { name: "F16", bits: 16 },
    StoredDtype { name: "BF16", bits: 16 },
    StoredDtype { name: "I32", bits: 32 },
    StoredDtype { name: "U32", bits: 32 },
    StoredDtype { name: "F32", bits: 32 },
    StoredDtype { name: "C64", bits: 64 },
    StoredDtype { name: "F64", bits: 64 },
    StoredDtype { name: "I64", bits: 64 },
    StoredDtype { name: "U64", bits: 64 },
];

impl StoredDtype {
    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// The type as the rest of the engine knows it.
    pub(crate) fn used(self) -> Option<Dtype> {
        match self.name {
            "BF16" => Some(Dtype::Bf16),
            "F16" => Some(Dtype::F16),
            "F32" => Some(Dtype::F32),
            "U32" => Some(Dtype::U32),
            _ => None,
        }
    }
}

/// One tensor of a file; its bytes lie inside the file and belong to no other tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) dtype: StoredDtype,
    pub(crate) shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub(crate) offset: u64,
}

/// A shape for messages.
pub(crate) fn show_shape(shape: &[usize]) -> String {
    shorten(&format!("{shape:?}"))
}

/// Bytes from the start of a safetensors file of `len` bytes to the end of its header, by its first 8
/// bytes.
///
/// # Errors
/// [`CheckpointError::Truncated`], [`CheckpointError::HeaderTooLong`].
pub fn header_bytes(file: &str, first: &[u8], len: u64) -> Result<u64, CheckpointError> {
    let truncated =
        |expected| CheckpointError::Truncated { file: file.to_owned(), expected, found: len };
    let Some(&length) = first.first_chunk::<8>().filter(|_| len >= 8) else {
        return Err(truncated(8));
    };
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        let (file, limit, found) = (file.to_owned(), MAX_HEADER_BYTES, length);
        return Err(CheckpointError::HeaderTooLong { file, limit, found });
    }
    let data_start = 8 + length;
    if data_start > len { Err(truncated(data_start)) } else { Ok(data_start) }
}

/// Reads and checks the header of `blob`.
pub(crate) fn read_header(blob: &Blob) -> Result<Vec<TensorEntry>, CheckpointError> {
    let mut first = vec![0; blob.len().min(8) as usize];
    blob.read_at(0, &mut first)?;
    let data_start = header_bytes(blob.name(), &first, blob.len())?;
    let mut json = vec![0; (data_start - 8) as usize];
    blob.read_at(8, &mut json)?;
    parse_header(blob.name(), &json, blob.len() - data_start)
}

/// Checks the header `json` of a file whose data section has `data_bytes` bytes.
pub(crate) fn parse_header(
    file: &str,
    json: &[u8],
    data_bytes: u64,
) -> Result<Vec<TensorEntry>, CheckpointError> {
    let header: RawHeader = serde_json::from_slice(json).map_err(|error| {
        CheckpointError::Header { file: file.to_owned(), reason: error.to_string() }
    })?;
    let data_start = 8 + json.len() as u64;
    let mut tensors = Vec::with_capacity(header.0.len());
    for (name, raw) in header.0 {
        tensors.push(check_tensor(file, name, raw)?);
    }
    check_names(file, &tensors)?;
    tensors.sort_by_key(|tensor| (tensor.start, tensor.end));
    check_coverage(file, &tensors, data_start, data_bytes)?;
    Ok(tensors
        .into_iter()
        .map(|Ranged { name, dtype, shape, start, .. }| TensorEntry {
            name,
            dtype,
            shape,
            offset: data_start + start,
        })
        .collect())
}

struct Ranged {
    name: String,
    dtype: StoredDtype,
    shape: Vec<usize>,
    start: u64,
    end: u64,
}

fn check_tensor(file: &str, name: String, raw: RawTensor) -> Result<Ranged, CheckpointError> {
    let file = || file.to_owned();
    let Some(dtype) = DTYPES.iter().copied().find(|dtype| dtype.name == raw.dtype) else {
        return Err(CheckpointError::UnknownDtype {
            file: file(),
            tensor: name,
            found: shorten(&raw.dtype),
        });
    };
    let Some((shape, expected)) = size(&raw.shape, dtype) else {
        let found = shorten(&format!("{:?}", raw.shape));
        return Err(CheckpointError::ImpossibleShape { file: file(), tensor: name, found });
    };
    let (start, end) = raw.data_offsets;
    let Some(found) = end.checked_sub(start) else {
        return Err(CheckpointError::ByteRange { file: file(), tensor: name, start, end });
    };
    if found != expected {
        return Err(CheckpointError::ByteCount {
            file: file(),
            tensor: name,
            dtype: dtype.name,
            shape: show_shape(&shape),
            expected,
            found,
        });
    }
    Ok(Ranged { name, dtype, shape, start, end })
}

/// The shape in native integers and its size in bytes, where both exist.
fn size(dims: &[u64], dtype: StoredDtype) -> Option<(Vec<usize>, u64)> {
    if dims.len() > MAX_DIMS {
        return None;
    }
    // Zeros must not hide an overflow of the other dimensions: readers multiply in any order.
    let bits = dims.iter().try_fold(dtype.bits, |product, &dim| product.checked_mul(dim.max(1)))?;
    let bits = if dims.contains(&0) { 0 } else { bits };
    let shape = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>()?;
    bits.is_multiple_of(8).then_some((shape, bits / 8))
}

fn check_names(file: &str, tensors: &[Ranged]) -> Result<(), CheckpointError> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(CheckpointError::HeaderDuplicate {
            file: file.to_owned(),
            tensor: pair[0].to_owned(),
        }),
    }
}

/// Tensors, sorted by range, must fill the data section from its first to its last byte.
fn check_coverage(
    file: &str,
    tensors: &[Ranged],
    data_start: u64,
    data_bytes: u64,
) -> Result<(), CheckpointError> {
    let mut covered = 0;
    let mut previous = "";
    for Ranged { name, start, end, .. } in tensors {
        if *start < covered {
            return Err(CheckpointError::Overlap {
                file: file.to_owned(),
                first: previous.to_owned(),
                second: name.clone(),
            });
        }
        if *start > covered {
            return Err(CheckpointError::Hole {
                file: file.to_owned(),
                tensor: name.clone(),
                start: covered,
                end: *start,
            });
        }
        if end > start {
            previous = name;
        }
        covered = *end;
    }
    let file = file.to_owned();
    let expected = data_start.saturating_add(covered);
    let found = data_start.saturating_add(data_bytes);
    match covered.cmp(&data_bytes) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(CheckpointError::Truncated { file, expected, found }),
        std::cmp::Ordering::Less => Err(CheckpointError::TrailingBytes { file, expected, found }),
    }
}

/// Entries in file order; repeated names are kept for [`check_names`] to find.
struct RawHeader(Vec<(String, RawTensor)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(RawHeader(tensors))
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}
