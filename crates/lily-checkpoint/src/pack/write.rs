//! Writing a `.lily` file.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{
    ALIGN, FileEntry, Header, MAGIC, PREFIX_BYTES, SIDE_FILES, StoredFormat, VERSION, WeightEntry,
};
use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;
use crate::manifest::{MatrixShape, WeightInfo, WeightShape};
use crate::packed::PackedMatrix;

/// Bytes of a matrix that are read at once.
const CHUNK_BYTES: u64 = 8 << 20;

/// Where [`write_pack`] writes before the file is whole: a program that ends in between removes it.
pub fn partial_path(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    partial.into()
}

/// Writes an opened checkpoint as one `.lily` file, to [`partial_path`] first and then under its name,
/// where there is never half a file; `progress` is told the bytes done and in all.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn write_pack(
    checkpoint: &Checkpoint,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), CheckpointError> {
    let partial = partial_path(path);
    let failed = |source| CheckpointError::io(path.display().to_string(), source);
    let written = write(checkpoint, &partial, progress)
        .and_then(|()| std::fs::rename(&partial, path).map_err(failed));
    if written.is_err() {
        // The first error is the one worth telling.
        drop(std::fs::remove_file(&partial));
    }
    written
}

fn write(
    checkpoint: &Checkpoint,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), CheckpointError> {
    let files = side_files(checkpoint)?;
    let mut header = plan(checkpoint, &files);
    let total = header.weights.iter().map(|weight| weight.bytes).sum();
    let failed = |source| CheckpointError::io(path.display().to_string(), source);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
    for ((_, bytes), entry) in files.iter().zip(&header.files) {
        out.seek(SeekFrom::Start(entry.offset)).map_err(failed)?;
        out.write_all(bytes).map_err(failed)?;
    }
    let mut done = 0;
    for (info, entry) in checkpoint.manifest().weights().iter().zip(&mut header.weights) {
        out.seek(SeekFrom::Start(entry.offset)).map_err(failed)?;
        let mut hasher = crc32fast::Hasher::new();
        chunks(checkpoint, info, &mut |bytes| {
            hasher.update(bytes);
            done += bytes.len() as u64;
            progress(done, total);
            out.write_all(bytes).map_err(failed)
        })?;
        entry.crc32 = hasher.finalize();
    }
    let json = serde_json::to_vec(&header).expect("plain data");
    out.seek(SeekFrom::Start(0)).map_err(failed)?;
    for part in [
        &MAGIC[..],
        &VERSION.to_le_bytes(),
        &crc32fast::hash(&json).to_le_bytes(),
        &(json.len() as u64).to_le_bytes(),
        &json,
    ] {
        out.write_all(part).map_err(failed)?;
    }
    let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
    // The last entry is padded, so that whole pages can be mapped.
    let len = file.metadata().map_err(failed)?.len();
    file.set_len(len.next_multiple_of(ALIGN)).map_err(failed)?;
    file.sync_all().map_err(failed)
}

fn side_files(checkpoint: &Checkpoint) -> Result<Vec<(&'static str, Vec<u8>)>, CheckpointError> {
    let mut files = Vec::new();
    for name in SIDE_FILES {
        if let Some(bytes) = checkpoint.side_file(name)? {
            files.push((name, bytes));
        }
    }
    Ok(files)
}

/// Places everything; checksums of weights are filled in later, at the same length.
fn plan(checkpoint: &Checkpoint, files: &[(&'static str, Vec<u8>)]) -> Header {
    let mut header = Header {
        files: files
            .iter()
            .map(|(name, bytes)| FileEntry {
                name: (*name).to_owned(),
                offset: u64::MAX,
                bytes: bytes.len() as u64,
                crc32: crc32fast::hash(bytes),
            })
            .collect(),
        weights: checkpoint.manifest().weights().iter().map(unplaced).collect(),
    };
    // With the widest numbers in place, the header can only become shorter.
    let widest = serde_json::to_vec(&header).expect("plain data").len() as u64;
    let mut at = PREFIX_BYTES + widest;
    let mut place = |offset: &mut u64, bytes: u64| {
        *offset = at.next_multiple_of(ALIGN);
        at = *offset + bytes;
    };
    for file in &mut header.files {
        place(&mut file.offset, file.bytes);
    }
    for weight in &mut header.weights {
        place(&mut weight.offset, weight.bytes);
    }
    header
}

fn unplaced(info: &WeightInfo) -> WeightEntry {
    let (format, bytes) = match info.shape {
        WeightShape::Matrix(shape) => (StoredFormat::of(shape.format), layout(&shape).bytes),
        WeightShape::Vector { len, .. } => (StoredFormat::Values, 4 * len as u64),
        WeightShape::Conv { channels, width, .. } => {
            (StoredFormat::Values, 4 * (channels * width) as u64)
        }
    };
    WeightEntry { name: info.name.clone(), format, offset: u64::MAX, bytes, crc32: u32::MAX }
}

fn layout(shape: &MatrixShape) -> PackedMatrix {
    PackedMatrix::of(shape).expect("a checkpoint's sizes are checked")
}

/// Hands out all bytes of a weight in order.
fn chunks(
    checkpoint: &Checkpoint,
    info: &WeightInfo,
    take: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let shape = match info.shape {
        WeightShape::Matrix(shape) => shape,
        WeightShape::Vector { .. } => return take(&bytes(&checkpoint.read_vector(&info.name)?)),
        WeightShape::Conv { .. } => return take(&bytes(&checkpoint.read_conv(&info.name)?)),
    };
    let packed = layout(&shape);
    let per_row = packed.row_bytes.max(packed.side_row_bytes).max(1);
    let rows_per_chunk = (CHUNK_BYTES / per_row).max(1) as usize;
    let mut at = 0;
    for side in [false, true] {
        for expert in 0..shape.n_experts {
            for first in (0..shape.rows).step_by(rows_per_chunk) {
                let rows = first..(first + rows_per_chunk).min(shape.rows);
                let range =
                    if side { packed.side(expert, &rows) } else { packed.words(expert, &rows) };
                let mut buffer = vec![0; (range.end - range.start) as usize];
                match side {
                    false => checkpoint.pack_words(&info.name, expert, rows, &mut buffer)?,
                    true => checkpoint.pack_side(&info.name, expert, rows, &mut buffer)?,
                }
                take(&buffer)?;
                at = range.end;
            }
        }
        let end = if side { packed.bytes } else { packed.side_offset };
        take(&vec![0; (end - at) as usize])?;
        at = end;
    }
    Ok(())
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
