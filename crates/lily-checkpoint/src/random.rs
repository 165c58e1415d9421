//! Random checkpoints of the Qwen3.6-35B-A3B shape, for benchmarks and tests.
//!
//! The one idea: every byte is a function of seed, tensor name and position, by integer arithmetic
//! and exactly rounded floating point only. So any number of threads writes the same files on any
//! machine.

mod fill;
mod shape;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use self::shape::RandomShape;
use self::shape::{RandomTensor, config_json, tensors};
use crate::error::CheckpointError;
use crate::fields::CONFIG;
use crate::parse::{GENERATION, parse_config};
use crate::shards::INDEX;
use crate::write::header;

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomSpec {
    /// Layers; every fourth is full attention.
    pub layers: usize,
    /// Seed of all weights.
    pub seed: u64,
    /// Everything but the number of layers.
    pub shape: RandomShape,
}

impl RandomSpec {
    /// `layers` layers of the Qwen3.6-35B-A3B shape, seed 0.
    pub fn new(layers: usize) -> Self {
        RandomSpec { layers, seed: 0, shape: RandomShape::default() }
    }
}

/// Bytes of data after which a new shard begins.
const SHARD_BYTES: u64 = 4 << 30;
/// Bytes generated and written at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// Where [`write_random`] of this process writes before all files are complete: a program that ends
/// in between removes it.
pub fn partial_path(dir: &Path) -> PathBuf {
    let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    dir.with_file_name(format!(".{name}.partial-{}", std::process::id()))
}

/// Writes an MLX 4-bit directory (group 64, 8-bit gates, bf16 scales and biases).
///
/// Files appear under their final name only when all are complete. Without tokenizer files.
///
/// # Errors
/// [`CheckpointError::NotEmpty`] when `dir` holds anything, [`CheckpointError::OutOfRange`] for a
/// shape that no model can have, [`CheckpointError::Io`] when writing fails.
pub fn write_random(dir: &Path, spec: &RandomSpec) -> Result<(), CheckpointError> {
    write_random_in_chunks(dir, spec, CHUNK_BYTES, thread_count())
}

fn thread_count() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

fn write_random_in_chunks(
    dir: &Path,
    spec: &RandomSpec,
    chunk_bytes: u64,
    threads: usize,
) -> Result<(), CheckpointError> {
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |source| CheckpointError::io(path, source)
    };
    // Whatever this crate would not open, it does not write either.
    let config = config_json(spec)?;
    let model = parse_config(config.as_bytes())?.model;
    let tensors = tensors(&model);
    refuse_used(dir)?;

    let partial = partial_path(dir);
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(io(parent))?;
    }
    std::fs::create_dir(&partial).map_err(io(&partial))?;
    let cleanup = RemoveOnDrop(Some(partial.clone()));

    write_shards(&partial, &tensors, spec.seed, chunk_bytes, threads)?;
    let file = partial.join(CONFIG);
    std::fs::write(&file, config).map_err(io(&file))?;
    let file = partial.join(GENERATION);
    let eos = serde_json::json!({"do_sample": false, "eos_token_id": model.eos_token_ids});
    std::fs::write(&file, format!("{eos:#}\n")).map_err(io(&file))?;

    // An empty directory of that name gives way.
    std::fs::rename(&partial, dir).map_err(io(dir))?;
    cleanup.keep();
    Ok(())
}

fn refuse_used(dir: &Path) -> Result<(), CheckpointError> {
    let path = || dir.display().to_string();
    match std::fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(CheckpointError::NotEmpty { path: path() }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        // The path, or something on the way to it, is a file.
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory && dir.exists() => {
            Err(CheckpointError::NotEmpty { path: path() })
        }
        Err(error) => Err(CheckpointError::io(path(), error)),
    }
}

struct RemoveOnDrop(Option<PathBuf>);

impl RemoveOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Already on the way out with the error that matters.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// One piece of one tensor and where it goes.
struct Piece<'a> {
    tensor: &'a RandomTensor,
    start: u64,
    end: u64,
    shard: usize,
    offset: u64,
}

fn write_shards(
    dir: &Path,
    tensors: &[RandomTensor],
    seed: u64,
    chunk_bytes: u64,
    threads: usize,
) -> Result<(), CheckpointError> {
    let shards = split(tensors);
    let mut weight_map = serde_json::Map::new();
    let mut files = Vec::new();
    let mut pieces = Vec::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", number + 1, shards.len());
        let path = dir.join(&name);
        let failed = |source| CheckpointError::io(path.display().to_string(), source);
        let file = File::create(&path).map_err(failed)?;
        let entries = shard.iter().map(|t| (&*t.name, t.dtype, &*t.shape, t.bytes));
        let header = header(entries);
        file.write_all_at(&header, 0).map_err(failed)?;
        let mut offset = header.len() as u64;
        for tensor in *shard {
            weight_map.insert(tensor.name.clone(), name.clone().into());
            let starts = (0..tensor.bytes).step_by(chunk_bytes as usize);
            pieces.extend(starts.map(|start| Piece {
                tensor,
                start,
                end: tensor.bytes.min(start + chunk_bytes),
                shard: number,
                offset: offset + start,
            }));
            offset += tensor.bytes;
        }
        files.push((path, file));
    }
    write_pieces(&files, &pieces, seed, threads)?;

    weight_map.sort_keys();
    let total: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
    let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    let path = dir.join(INDEX);
    std::fs::write(&path, format!("{index:#}\n"))
        .map_err(|source| CheckpointError::io(path.display().to_string(), source))
}

/// Consecutive tensors, up to [`SHARD_BYTES`] per shard.
fn split(tensors: &[RandomTensor]) -> Vec<&[RandomTensor]> {
    let mut shards = Vec::new();
    let mut rest = tensors;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|tensor| {
            bytes += tensor.bytes;
            bytes <= SHARD_BYTES
        });
        let (shard, left) = rest.split_at(fits.count().max(1));
        shards.push(shard);
        rest = left;
    }
    shards
}

fn write_pieces(
    files: &[(PathBuf, File)],
    pieces: &[Piece<'_>],
    seed: u64,
    threads: usize,
) -> Result<(), CheckpointError> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        let mut buffer = Vec::new();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            buffer.resize((piece.end - piece.start) as usize, 0);
            fill::fill(piece.tensor, seed, piece.start, &mut buffer);
            let (path, file) = &files[piece.shard];
            if let Err(source) = file.write_all_at(&buffer, piece.offset) {
                let error = CheckpointError::io(path.display().to_string(), source);
                failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
                next.store(pieces.len(), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_chunks_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let spec = RandomSpec { shape: RandomShape::tiny(), ..RandomSpec::new(1) };
        let written = |chunk_bytes, threads| {
            let path = dir.path().join(format!("{chunk_bytes}-{threads}"));
            write_random_in_chunks(&path, &spec, chunk_bytes, threads).unwrap();
            std::fs::read(path.join("model-00001-of-00001.safetensors")).unwrap()
        };
        let whole = written(1 << 30, 1);
        assert_eq!(whole, written(1 << 12, 3));
        assert_eq!(whole, written(8 * 37, 2));
    }

    #[test]
    fn shards_are_cut_between_tensors() {
        let tensor = |bytes| RandomTensor {
            name: String::new(),
            key: String::new(),
            dtype: "U32",
            shape: Vec::new(),
            bytes,
            draw: shape::Draw::Bits,
        };
        let tensors = [SHARD_BYTES / 2, SHARD_BYTES / 2, 1, 2 * SHARD_BYTES, 3].map(tensor);
        let lens: Vec<usize> = split(&tensors).iter().map(|shard| shard.len()).collect();
        assert_eq!(lens, [2, 1, 1, 1]);
    }
}
