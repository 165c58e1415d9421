//! A checkpoint's weights: where they lie, and the readers that fill them.
//!
//! Files are read by several threads straight into the memory that the GPU uses. Each job owns the
//! bytes that it fills, so the readers need no lock beyond the list of jobs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lily_checkpoint::manifest::{Manifest, MatrixShape, WeightInfo, WeightShape};
use lily_checkpoint::packed::PackedMatrix;
use lily_checkpoint::{Checkpoint, CheckpointError};
use lily_device::{DeviceError, Progress};
use lily_kernels::limits::weight_bytes;

use crate::arena::Arenas;

/// Bytes that a reader takes at once.
const CHUNK: u64 = 16 << 20;
/// More readers than this only get into each other's way.
const MOST_READERS: usize = 16;

/// Where every weight lies, in the order of the manifest; `None` where sizes overflow.
pub(crate) fn layout(manifest: &Manifest, cap: u64) -> Option<Arenas> {
    let sizes = manifest.weights().iter().map(|info| weight_bytes(&info.shape));
    Arenas::pack(sizes.collect::<Option<Vec<_>>>()?, cap)
}

/// What one reader does at a time.
struct Job<'a> {
    info: &'a WeightInfo,
    part: Part<'a>,
    /// Bytes of the checkpoint.
    read: u64,
}

enum Part<'a> {
    /// Rows of one expert's matrix.
    Rows { expert: usize, first: usize, rows: usize, words: &'a mut [u8], side: &'a mut [u8] },
    /// A whole vector or convolution, as `f32`.
    Floats(&'a mut [u8]),
}

/// Fills the buffers of a layout with the weights of a checkpoint.
///
/// # Errors
/// [`DeviceError::Read`] when a file fails.
///
/// # Panics
/// When the buffers are not those of the layout of the checkpoint's manifest.
pub(crate) fn fill<'a>(
    checkpoint: &'a Checkpoint,
    layout: &Arenas,
    buffers: Vec<&'a mut [u8]>,
    progress: &dyn Progress,
) -> Result<(), DeviceError> {
    let jobs = jobs(checkpoint.manifest(), layout, buffers);
    let readers = readers().min(jobs.len()).max(1);
    let total = checkpoint.manifest().bytes();
    let (jobs, done, stop) =
        (Mutex::new(jobs.into_iter()), AtomicU64::new(0), AtomicBool::new(false));
    let next = || jobs.lock().ok().and_then(|mut jobs| jobs.next());
    let work = || -> Result<(), DeviceError> {
        while !stop.load(Ordering::Relaxed)
            && let Some(job) = next()
        {
            let (name, read) = (&job.info.name, job.read);
            run(checkpoint, job).map_err(|source| {
                stop.store(true, Ordering::Relaxed);
                DeviceError::Read { name: name.clone(), source: Box::new(source) }
            })?;
            let now = done.fetch_add(read, Ordering::Relaxed) + read;
            progress.advance(now.min(total), total);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..readers).map(|_| scope.spawn(work)).collect();
        let mut result = Ok(());
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    })
}

/// Threads that read.
pub(crate) fn readers() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST_READERS)
}

/// Cuts the buffers into the bytes of the weights, and these into jobs.
fn jobs<'a>(manifest: &'a Manifest, layout: &Arenas, buffers: Vec<&'a mut [u8]>) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    let mut rests: Vec<(u64, &mut [u8])> = buffers.into_iter().map(|bytes| (0, bytes)).collect();
    for (info, slot) in manifest.weights().iter().zip(&layout.slots) {
        let (at, rest) = &mut rests[slot.buffer];
        let (_, bytes) = std::mem::take(rest).split_at_mut((slot.offset - *at) as usize);
        let (bytes, after) = bytes.split_at_mut(slot.bytes as usize);
        (*at, *rest) = (slot.offset + slot.bytes, after);
        match info.shape {
            WeightShape::Matrix(shape) => matrix_jobs(info, &shape, bytes, &mut jobs),
            WeightShape::Vector { .. } | WeightShape::Conv { .. } => {
                let read = info.shape.bytes();
                jobs.push(Job { info, part: Part::Floats(bytes), read });
            }
        }
    }
    jobs
}

fn matrix_jobs<'a>(
    info: &'a WeightInfo,
    shape: &MatrixShape,
    bytes: &'a mut [u8],
    jobs: &mut Vec<Job<'a>>,
) {
    let packed = PackedMatrix::of(shape).expect("laid out before");
    let (row, side_row) = (packed.row_bytes as usize, packed.side_row_bytes as usize);
    let (mut words, mut side) = bytes.split_at_mut(packed.side_offset as usize);
    let step = (CHUNK / (packed.row_bytes + packed.side_row_bytes).max(1)).max(1) as usize;
    for expert in 0..shape.n_experts {
        for first in (0..shape.rows).step_by(step) {
            let rows = step.min(shape.rows - first);
            let (own_words, after) = words.split_at_mut(rows * row);
            words = after;
            let (own_side, after) = side.split_at_mut(rows * side_row);
            side = after;
            let read = rows as u64 * shape.format.row_bytes(shape.cols) as u64;
            let part = Part::Rows { expert, first, rows, words: own_words, side: own_side };
            jobs.push(Job { info, part, read });
        }
    }
}

fn run(checkpoint: &Checkpoint, job: Job<'_>) -> Result<(), CheckpointError> {
    let name = &job.info.name;
    match job.part {
        Part::Rows { expert, first, rows, words, side } => {
            checkpoint.pack_rows(name, expert, first..first + rows, words, side)
        }
        Part::Floats(bytes) => {
            let values = match job.info.shape {
                WeightShape::Conv { .. } => checkpoint.read_conv(name)?,
                _ => checkpoint.read_vector(name)?,
            };
            for (to, value) in bytes.chunks_exact_mut(4).zip(values) {
                to.copy_from_slice(&value.to_le_bytes());
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use lily_device::NoProgress;

    fn demo() -> Checkpoint {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/checkpoint");
        Checkpoint::open(&demo).unwrap()
    }

    /// The bytes of one weight, read in one piece.
    fn whole(checkpoint: &Checkpoint, info: &WeightInfo) -> Vec<u8> {
        let floats = |values: Vec<f32>| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        match info.shape {
            WeightShape::Vector { .. } => floats(checkpoint.read_vector(&info.name).unwrap()),
            WeightShape::Conv { .. } => floats(checkpoint.read_conv(&info.name).unwrap()),
            WeightShape::Matrix(shape) => {
                let packed = PackedMatrix::of(&shape).unwrap();
                let mut bytes = vec![0; packed.bytes as usize];
                let (words, side) = bytes.split_at_mut(packed.side_offset as usize);
                for expert in 0..shape.n_experts {
                    let rows = 0..shape.rows;
                    let words_at = packed.words(expert, &rows);
                    let side_at = packed.side(expert, &rows);
                    let start = packed.side_offset;
                    let side_at = (side_at.start - start) as usize..(side_at.end - start) as usize;
                    let words = &mut words[words_at.start as usize..words_at.end as usize];
                    let side = &mut side[side_at];
                    checkpoint.pack_rows(&info.name, expert, rows, words, side).unwrap();
                }
                bytes
            }
        }
    }

    #[test]
    fn every_weight_lies_in_its_slot_as_packed() {
        let checkpoint = demo();
        let manifest = checkpoint.manifest();
        for cap in [1 << 16, 1 << 30] {
            let layout = layout(manifest, cap).unwrap();
            let mut memory: Vec<Vec<u8>> =
                layout.buffers.iter().map(|&bytes| vec![0; bytes as usize]).collect();
            let buffers = memory.iter_mut().map(Vec::as_mut_slice).collect();
            fill(&checkpoint, &layout, buffers, &NoProgress).unwrap();
            assert!(cap > 1 << 20 || memory.len() > 3, "{} buffers", memory.len());
            for (info, slot) in manifest.weights().iter().zip(&layout.slots) {
                let start = slot.offset as usize;
                let found = &memory[slot.buffer][start..start + slot.bytes as usize];
                assert!(found == whole(&checkpoint, info), "{}", info.name);
            }
        }
    }

    #[test]
    fn progress_ends_at_the_size_of_the_checkpoint() {
        struct Last(AtomicU64, AtomicUsize);
        impl Progress for Last {
            fn advance(&self, done: u64, total: u64) {
                assert!(done <= total);
                self.0.fetch_max(done, Ordering::Relaxed);
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let checkpoint = demo();
        let layout = layout(checkpoint.manifest(), 1 << 20).unwrap();
        let mut memory: Vec<Vec<u8>> =
            layout.buffers.iter().map(|&bytes| vec![0; bytes as usize]).collect();
        let buffers = memory.iter_mut().map(Vec::as_mut_slice).collect();
        let last = Last(AtomicU64::new(0), AtomicUsize::new(0));
        fill(&checkpoint, &layout, buffers, &last).unwrap();
        assert_eq!(last.0.into_inner(), checkpoint.manifest().bytes());
        assert!(last.1.into_inner() >= checkpoint.manifest().weights().len());
    }

    #[test]
    fn large_matrices_are_cut_and_every_row_is_read_once() {
        use lily_checkpoint::manifest::{Dtype, MatrixFormat};
        let format = MatrixFormat::Affine { bits: 4, group_size: 64, scale: Dtype::Bf16 };
        let shape = MatrixShape { n_experts: 2, rows: 20_000, cols: 2048, format };
        let info = WeightInfo { name: "experts".into(), shape: WeightShape::Matrix(shape) };
        let manifest = Manifest::new(vec![info]);
        let layout = layout(&manifest, 1 << 30).unwrap();
        let mut memory = vec![0; layout.buffers[0] as usize];
        let jobs = jobs(&manifest, &layout, vec![&mut memory]);
        assert!(jobs.len() > 2 && jobs.iter().all(|job| job.read <= CHUNK), "{}", jobs.len());
        assert_eq!(jobs.iter().map(|job| job.read).sum::<u64>(), manifest.bytes());
        let mut next = (0, 0);
        for job in &jobs {
            let Part::Rows { expert, first, rows, words, side } = &job.part else {
                panic!("not a matrix")
            };
            assert_eq!((*expert, *first), next);
            assert_eq!((words.len(), side.len()), (rows * 1024, rows * 128));
            next = if first + rows == 20_000 { (expert + 1, 0) } else { (*expert, first + rows) };
        }
        assert_eq!(next, (2, 0));
    }
}
