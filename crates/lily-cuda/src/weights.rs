//! A checkpoint's weights in device memory.
//!
//! All weights are one allocation. Matrices lie there packed (`lily_checkpoint::packed`), vectors and
//! convolutions as `f32`. Several threads read files into page-locked memory, two buffers each, so
//! that reading and copying overlap.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use lily_checkpoint::Checkpoint;
use lily_checkpoint::manifest::{Manifest, WeightInfo, WeightShape};
use lily_checkpoint::packed::PackedMatrix;
use lily_device::{DeviceError, Progress};

use crate::error::{CudaError, driver};
use crate::memory::{ALIGN, Address, DeviceMemory, Pinned, upload};

/// Bytes that one thread reads before it copies them.
const CHUNK: u64 = 16 << 20;

/// More readers than this only get into each other's way.
const MOST_READERS: usize = 16;

/// Where every weight lies, in the order of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WeightLayout {
    places: Vec<Place>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset: u64,
    bytes: u64,
    matrix: Option<PackedMatrix>,
}

/// Rows of one weight, counted over all experts; all of it where it is no matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    weight: usize,
    rows: Range<usize>,
}

impl WeightLayout {
    /// One weight after the other; `None` where the sizes overflow.
    pub(crate) fn of(manifest: &Manifest) -> Option<WeightLayout> {
        let mut bytes = 0u64;
        let mut places = Vec::with_capacity(manifest.weights().len());
        for info in manifest.weights() {
            let (size, matrix) = match info.shape {
                WeightShape::Matrix(shape) => {
                    let packed = PackedMatrix::of(&shape)?;
                    (packed.bytes, Some(packed))
                }
                WeightShape::Vector { len, .. } => ((len as u64).checked_mul(4)?, None),
                WeightShape::Conv { channels, width, .. } => {
                    ((channels as u64).checked_mul(width as u64)?.checked_mul(4)?, None)
                }
            };
            places.push(Place { offset: bytes, bytes: size, matrix });
            bytes = bytes.checked_add(size)?.checked_next_multiple_of(ALIGN)?;
        }
        Some(WeightLayout { places, bytes })
    }

    /// What the readers do, in the order of the manifest.
    fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (weight, place) in self.places.iter().enumerate() {
            let Some(matrix) = place.matrix else {
                jobs.push(Job { weight, rows: 0..1 });
                continue;
            };
            let rows = matrix.shape.n_experts * matrix.shape.rows;
            let row_bytes = (matrix.row_bytes + matrix.side_row_bytes).max(1);
            let step = (CHUNK / row_bytes).max(1) as usize;
            jobs.extend(
                (0..rows)
                    .step_by(step)
                    .map(|first| Job { weight, rows: first..rows.min(first + step) }),
            );
        }
        jobs
    }

    /// Staging bytes that the largest job needs.
    fn staging(&self, jobs: &[Job]) -> u64 {
        let bytes = |job: &Job| {
            let place = &self.places[job.weight];
            place.matrix.map_or(place.bytes, |matrix| {
                job.rows.len() as u64 * (matrix.row_bytes + matrix.side_row_bytes)
            })
        };
        jobs.iter().map(bytes).max().unwrap_or(0)
    }
}

/// All weights in device memory.
#[derive(Debug)]
pub(crate) struct WeightStore {
    memory: DeviceMemory,
    layout: WeightLayout,
    manifest: Manifest,
}

impl WeightStore {
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        context: &Arc<CudaContext>,
        progress: &dyn Progress,
    ) -> Result<Self, DeviceError> {
        let manifest = checkpoint.manifest().clone();
        let layout = WeightLayout::of(&manifest)
            .ok_or_else(|| DeviceError::Memory { what: "weights".to_owned(), bytes: u64::MAX })?;
        let memory = DeviceMemory::zeroed(context, "weights", layout.bytes)
            .map_err(|error| error.at("load"))?;
        let store = WeightStore { memory, layout, manifest };
        store.fill(checkpoint, context, progress)?;
        Ok(store)
    }

    fn fill(
        &self,
        checkpoint: &Checkpoint,
        context: &Arc<CudaContext>,
        progress: &dyn Progress,
    ) -> Result<(), DeviceError> {
        let jobs = self.layout.jobs();
        let staging = self.layout.staging(&jobs);
        let readers = readers().min(jobs.len()).max(1);
        let total = self.manifest.bytes();
        let (next, done, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let work = || {
            let mut reader = Reader::new(context, staging).map_err(|error| error.at("load"))?;
            while !stop.load(Ordering::Relaxed)
                && let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let read = reader.read(self, checkpoint, job)?;
                let now = done.fetch_add(read, Ordering::Relaxed) + read;
                progress.advance(now.min(total), total);
            }
            reader.finish().map_err(|error| error.at("load"))
        };
        std::thread::scope(|scope| {
            let spawn = |_| {
                scope.spawn(|| {
                    let ended = work();
                    if ended.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    ended
                })
            };
            let threads: Vec<_> = (0..readers).map(spawn).collect();
            let mut result = Ok(());
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(ended);
            }
            result
        })
    }

    /// Bytes in device memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.layout.bytes
    }

    /// Where the weight of that canonical name starts.
    pub(crate) fn address(&self, name: &str) -> Address {
        self.place(name).0
    }

    /// Where a weight of the checkpoint lies, and its bytes.
    pub(crate) fn place(&self, name: &str) -> (Address, u64) {
        let position = self.manifest.position(name);
        let position = position
            .unwrap_or_else(|| panic!("the plan names weight {name}, which the checkpoint lacks"));
        let place = &self.layout.places[position];
        (self.memory.range(place.offset, place.bytes), place.bytes)
    }
}

fn readers() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST_READERS)
}

/// One thread's staging memory and stream.
struct Reader {
    stream: Arc<CudaStream>,
    buffers: [(Pinned, CudaEvent); 2],
    turn: usize,
}

impl Reader {
    fn new(context: &Arc<CudaContext>, staging: u64) -> Result<Self, CudaError> {
        context.bind_to_thread().map_err(driver("cuCtxSetCurrent"))?;
        let stream = context.new_stream().map_err(driver("cuStreamCreate"))?;
        let buffer = || {
            let event = context.new_event(None).map_err(driver("cuEventCreate"))?;
            Ok::<_, CudaError>((Pinned::zeroed(context, staging)?, event))
        };
        Ok(Reader { stream, buffers: [buffer()?, buffer()?], turn: 0 })
    }

    /// Reads one job and starts its copy; returns the checkpoint's bytes that are on their way.
    fn read(
        &mut self,
        store: &WeightStore,
        checkpoint: &Checkpoint,
        job: &Job,
    ) -> Result<u64, DeviceError> {
        let at_load = |error: CudaError| error.at("load");
        self.turn = 1 - self.turn;
        let (pinned, event) = &mut self.buffers[self.turn];
        // The copy that used this buffer the time before last.
        event.synchronize().map_err(driver("cuEventSynchronize")).map_err(at_load)?;
        let info = &store.manifest.weights()[job.weight];
        let place = &store.layout.places[job.weight];
        let staged = match &place.matrix {
            Some(matrix) => read_rows(checkpoint, &info.name, matrix, &job.rows, pinned)?,
            None => read_floats(checkpoint, info, pinned)?,
        };
        for (offset, bytes) in staged.pieces {
            let to = store.memory.range(place.offset + offset, bytes.len() as u64);
            // SAFETY: the range lies in the store, which outlives the reader; the staging bytes are
            // left alone until the event below has been waited for.
            unsafe { upload(to, &pinned.bytes()[bytes], &self.stream) }.map_err(at_load)?;
        }
        event.record(&self.stream).map_err(driver("cuEventRecord")).map_err(at_load)?;
        Ok(staged.read)
    }

    fn finish(self) -> Result<(), CudaError> {
        self.stream.synchronize().map_err(driver("cuStreamSynchronize"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Also after an error: staging memory must not be freed under a copy.
        let _ = self.stream.synchronize();
    }
}

/// What lies in a staging buffer.
struct Staged {
    /// Offset inside the weight, and the staging bytes that go there.
    pieces: Vec<(u64, Range<usize>)>,
    /// Bytes of the checkpoint.
    read: u64,
}

fn read_rows(
    checkpoint: &Checkpoint,
    name: &str,
    matrix: &PackedMatrix,
    rows: &Range<usize>,
    pinned: &mut Pinned,
) -> Result<Staged, DeviceError> {
    let (row, side_row) = (matrix.row_bytes as usize, matrix.side_row_bytes as usize);
    let (words_len, side_len) = (rows.len() * row, rows.len() * side_row);
    let (words, rest) = pinned.bytes_mut().split_at_mut(words_len);
    let side = &mut rest[..side_len];
    let per_expert = matrix.shape.rows;
    let mut first = rows.start;
    while first < rows.end {
        let (expert, row_of_expert) = (first / per_expert, first % per_expert);
        let end = rows.end.min((expert + 1) * per_expert);
        let done = first - rows.start;
        let (n, within) = (end - first, row_of_expert..row_of_expert + (end - first));
        let words = &mut words[done * row..(done + n) * row];
        let side = &mut side[done * side_row..(done + n) * side_row];
        checkpoint.pack_rows(name, expert, within, words, side).map_err(|source| {
            DeviceError::Read { name: name.to_owned(), source: Box::new(source) }
        })?;
        first = end;
    }
    let start = rows.start as u64;
    let words_at = start * matrix.row_bytes;
    let side_at = matrix.side_offset + start * matrix.side_row_bytes;
    let pieces = vec![(words_at, 0..words_len), (side_at, words_len..words_len + side_len)];
    let read = rows.len() as u64 * matrix.shape.format.row_bytes(matrix.shape.cols) as u64;
    Ok(Staged { pieces, read })
}

fn read_floats(
    checkpoint: &Checkpoint,
    info: &WeightInfo,
    pinned: &mut Pinned,
) -> Result<Staged, DeviceError> {
    let values = match info.shape {
        WeightShape::Conv { .. } => checkpoint.read_conv(&info.name),
        _ => checkpoint.read_vector(&info.name),
    };
    let values = values.map_err(|source| DeviceError::Read {
        name: info.name.clone(),
        source: Box::new(source),
    })?;
    let len = 4 * values.len();
    let bytes = &mut pinned.bytes_mut()[..len];
    for (to, value) in bytes.chunks_exact_mut(4).zip(&values) {
        to.copy_from_slice(&value.to_le_bytes());
    }
    Ok(Staged { pieces: vec![(0, 0..len)], read: info.shape.bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_checkpoint::manifest::{Dtype, MatrixFormat, MatrixShape};

    fn manifest() -> Manifest {
        let affine = MatrixFormat::Affine { bits: 4, group_size: 64, scale: Dtype::Bf16 };
        let experts = MatrixShape { n_experts: 256, rows: 512, cols: 2048, format: affine };
        let single = MatrixShape {
            n_experts: 1,
            rows: 3,
            cols: 64,
            format: MatrixFormat::Float(Dtype::Bf16),
        };
        Manifest::new(vec![
            WeightInfo {
                name: "norm".into(),
                shape: WeightShape::Vector { len: 100, dtype: Dtype::Bf16 },
            },
            WeightInfo { name: "experts".into(), shape: WeightShape::Matrix(experts) },
            WeightInfo { name: "single".into(), shape: WeightShape::Matrix(single) },
        ])
    }

    #[test]
    fn weights_lie_one_after_the_other_at_multiples_of_256() {
        let layout = WeightLayout::of(&manifest()).unwrap();
        let mut end = 0;
        for place in &layout.places {
            assert_eq!(place.offset % ALIGN, 0);
            assert!(place.offset >= end);
            end = place.offset + place.bytes;
        }
        assert!(layout.bytes >= end);
    }

    #[test]
    fn jobs_cover_every_row_once_and_fit_the_staging_memory() {
        let layout = WeightLayout::of(&manifest()).unwrap();
        let jobs = layout.jobs();
        assert!(layout.staging(&jobs) <= CHUNK);
        let rows = |weight: usize| {
            jobs.iter().filter(|j| j.weight == weight).map(|j| j.rows.clone()).collect::<Vec<_>>()
        };
        assert_eq!((rows(0).len(), rows(0)[0].clone()), (1, 0..1));
        assert_eq!((rows(2).len(), rows(2)[0].clone()), (1, 0..3));
        let experts = rows(1);
        assert_eq!(experts.first().unwrap().start, 0);
        assert_eq!(experts.last().unwrap().end, 256 * 512);
        assert!(experts.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(experts.len() > 4);
    }
}
