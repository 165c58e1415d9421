//! Packing: stored rows go into tiles, chunk by chunk, on all threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use lily_checkpoint::MatrixPart;
use lily_checkpoint::manifest::{Dtype, MatrixFormat, MatrixShape};
use lily_device::DeviceError;

use super::buffer::{Buffer, bytes_of_mut, lines_mut};
use super::layout::{AffineLayout, tile_bytes};
use super::{ReadRows, TILE};
use crate::pool::{Pool, SharedSlice};

/// Weight bytes read at once: few system calls, and the chunk is still in the second-level cache
/// when it is interleaved.
const CHUNK_BYTES: usize = 128 << 10;

/// What one thread reads into.
#[derive(Default)]
struct Stage {
    weight: Vec<u32>,
    scales: Vec<u32>,
    biases: Vec<u32>,
}

/// One run of tiles of one expert.
struct Chunk {
    expert: usize,
    tiles: Range<usize>,
}

impl Chunk {
    fn rows(&self, shape: &MatrixShape) -> Range<usize> {
        self.tiles.start * TILE..(self.tiles.end * TILE).min(shape.rows)
    }
}

/// Fills a buffer with all experts' tiles.
pub(super) fn pack(
    name: &str,
    shape: &MatrixShape,
    pool: &Pool,
    progress: &(dyn Fn(u64) + Sync),
    read: &ReadRows<'_>,
) -> Result<Buffer, DeviceError> {
    let n_tiles = shape.rows.div_ceil(TILE);
    let tile = tile_bytes(shape);
    let bytes = tile.checked_mul(n_tiles).and_then(|b| b.checked_mul(shape.n_experts));
    let mut buffer = Buffer::zeroed(name, bytes)?;
    if tile == 0 {
        return Ok(buffer);
    }

    let per_chunk = (CHUNK_BYTES / tile).clamp(1, n_tiles.max(1));
    let chunks = n_tiles.div_ceil(per_chunk);
    let stages: Vec<_> = (0..pool.threads()).map(|_| Mutex::new(Stage::default())).collect();
    let failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let target = SharedSlice::new(buffer.bytes_mut());
    pool.run(chunks * shape.n_experts, |task, worker| {
        if failed.load(Ordering::Relaxed) {
            return;
        }
        let first = task % chunks * per_chunk;
        let chunk = Chunk { expert: task / chunks, tiles: first..(first + per_chunk).min(n_tiles) };
        let start = (chunk.expert * n_tiles + chunk.tiles.start) * tile;
        // SAFETY: chunks are disjoint runs of tiles.
        let out = unsafe { target.slice(start, chunk.tiles.len() * tile) };
        let mut stage = stages[worker].lock().unwrap_or_else(PoisonError::into_inner);
        match stage.fill(shape, &chunk, read, out) {
            Ok(()) => {
                let rows = chunk.rows(shape).len();
                progress((rows * shape.format.row_bytes(shape.cols)) as u64);
            }
            Err(error) => {
                failed.store(true, Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(buffer),
    }
}

impl Stage {
    fn fill(
        &mut self,
        shape: &MatrixShape,
        chunk: &Chunk,
        read: &ReadRows<'_>,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let rows = chunk.rows(shape);
        let part = |part, to: &mut Vec<u32>, row_bytes: usize| {
            let bytes = rows.len() * row_bytes;
            to.resize(bytes.div_ceil(4), 0);
            read(part, chunk.expert, rows.clone(), &mut bytes_of_mut(to)[..bytes])
        };
        match shape.format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                let layout = AffineLayout::new(shape.cols, bits, group_size, scale);
                let side = layout.groups * scale.bytes();
                part(MatrixPart::Weight, &mut self.weight, shape.cols * layout.bits / 8)?;
                part(MatrixPart::Scales, &mut self.scales, side)?;
                part(MatrixPart::Biases, &mut self.biases, side)?;
                self.interleave_affine(&layout, rows.len(), out);
            }
            MatrixFormat::Float(dtype) => {
                part(MatrixPart::Weight, &mut self.weight, shape.cols * dtype.bytes())?;
                let weight = bytes_of_mut(&mut self.weight);
                match dtype {
                    Dtype::Bf16 | Dtype::F16 => {
                        interleave_floats(as_numbers::<u16>(weight), shape.cols, rows.len(), out);
                    }
                    Dtype::F32 | Dtype::U32 => {
                        interleave_floats(as_numbers::<u32>(weight), shape.cols, rows.len(), out);
                    }
                }
            }
        }
        Ok(())
    }

    fn interleave_affine(&mut self, layout: &AffineLayout, n_rows: usize, out: &mut [u8]) {
        let words = layout.chunks * layout.bits;
        let out = lines_mut::<u32>(out);
        let row_words = layout.groups * words;
        for (tile, lines) in out.chunks_exact_mut(layout.tile()).enumerate() {
            let first = tile * TILE;
            let lanes = TILE.min(n_rows - first);
            for (group, block) in lines.chunks_exact_mut(layout.block()).enumerate() {
                let (header, body) = block.split_at_mut(layout.header);
                for lane in 0..lanes {
                    let at = (first + lane) * row_words + group * words;
                    for (line, &word) in body.iter_mut().zip(&self.weight[at..at + words]) {
                        line[lane] = u32::from_le(word);
                    }
                }
                self.header(layout, first, lanes, group, header);
            }
        }
    }

    fn header(
        &mut self,
        layout: &AffineLayout,
        first: usize,
        lanes: usize,
        group: usize,
        header: &mut [[u32; TILE]],
    ) {
        if layout.header == 2 {
            for (line, numbers) in header.iter_mut().zip([&self.scales, &self.biases]) {
                for (lane, word) in line.iter_mut().enumerate().take(lanes) {
                    *word = u32::from_le(numbers[(first + lane) * layout.groups + group]);
                }
            }
        } else {
            let scales = as_numbers::<u16>(bytes_of_mut(&mut self.scales));
            let biases = as_numbers::<u16>(bytes_of_mut(&mut self.biases));
            for (lane, word) in header[0].iter_mut().enumerate().take(lanes) {
                let at = (first + lane) * layout.groups + group;
                let (scale, bias) = (u16::from_le(scales[at]), u16::from_le(biases[at]));
                *word = u32::from(scale) | u32::from(bias) << 16;
            }
        }
    }
}

/// Rows of floats become `[input][16 rows]`.
fn interleave_floats<T: Little>(rows: &[T], cols: usize, n_rows: usize, out: &mut [u8]) {
    let out = lines_mut::<T>(out);
    for (tile, lines) in out.chunks_exact_mut(cols).enumerate() {
        let rows = &rows[tile * TILE * cols..];
        for lane in 0..TILE.min(n_rows - tile * TILE) {
            for (line, &number) in lines.iter_mut().zip(&rows[lane * cols..][..cols]) {
                line[lane] = number.native();
            }
        }
    }
}

/// Numbers as a file stores them.
trait Little: super::buffer::Plain {
    fn native(self) -> Self;
}
impl Little for u16 {
    fn native(self) -> Self {
        u16::from_le(self)
    }
}
impl Little for u32 {
    fn native(self) -> Self {
        u32::from_le(self)
    }
}

fn as_numbers<T: super::buffer::Plain>(bytes: &[u8]) -> &[T] {
    // SAFETY: every bit pattern of a `Plain` type is valid.
    let (before, numbers, _) = unsafe { bytes.align_to::<T>() };
    assert!(before.is_empty(), "stages are vectors of words");
    numbers
}
