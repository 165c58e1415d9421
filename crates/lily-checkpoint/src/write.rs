//! Writes safetensors files, for checkpoints made here and for tests.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::error::CheckpointError;

/// Name, element type (the format's own name), shape and bytes of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorData {
    /// Name in the file.
    pub name: String,
    /// For example `BF16`.
    pub dtype: &'static str,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Elements, row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// Length prefix and JSON header for tensors that follow each other in this order.
///
/// Each entry is name, element type, shape and size in bytes. The header is not padded, as MLX
/// writes it: the data section starts at any byte.
pub fn header<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a str, &'a [usize], u64)>,
) -> Vec<u8> {
    let mut map = serde_json::Map::new();
    map.insert("__metadata__".into(), serde_json::json!({"format": "mlx"}));
    let mut offset = 0;
    for (name, dtype, shape, bytes) in tensors {
        let end = offset + bytes;
        let entry =
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]});
        map.insert(name.to_owned(), entry);
        offset = end;
    }
    let json = serde_json::Value::Object(map).to_string();
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(json.as_bytes());
    header
}

/// Writes one file. Names must be distinct and sizes must match shapes.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn write_safetensors(path: &Path, tensors: &[TensorData]) -> Result<(), CheckpointError> {
    let failed = |source| CheckpointError::io(path.display().to_string(), source);
    let mut file = File::create(path).map_err(failed)?;
    let entries = tensors
        .iter()
        .map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice(), t.bytes.len() as u64));
    file.write_all(&header(entries)).map_err(failed)?;
    for tensor in tensors {
        file.write_all(&tensor.bytes).map_err(failed)?;
    }
    Ok(())
}
