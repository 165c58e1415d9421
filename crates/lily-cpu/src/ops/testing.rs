//! Runs one kernel over buffers made by a test.

use lily_plan::buffer::{BufferId, Region};

use super::{Active, Kernel, Part, Run, Workspace};
use crate::memory::{AlignedBytes, Memory, Span};
use crate::simd::Isa;

/// Buffers of one kernel under test.
#[derive(Default)]
pub(super) struct Bench {
    buffers: Vec<AlignedBytes>,
}

impl Bench {
    fn bytes(&mut self, bytes: &[u8]) -> Region {
        let id = BufferId(self.buffers.len() as u32);
        let buffer = AlignedBytes::zeroed("test", bytes.len() as u64).unwrap();
        self.buffers.push(buffer);
        let region = Region { buffer: id, bytes: 0..bytes.len() as u64 };
        self.set_bytes(&region, bytes);
        region
    }

    fn set_bytes(&mut self, region: &Region, bytes: &[u8]) {
        let buffer = &mut self.buffers[region.buffer.0 as usize];
        assert!(bytes.len() <= buffer.len());
        // SAFETY: the allocation is as long and owned by `self`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.base(), bytes.len()) }
    }

    fn get_bytes(&self, region: &Region) -> Vec<u8> {
        let buffer = &self.buffers[region.buffer.0 as usize];
        // SAFETY: initialised bytes owned by `self`, which is borrowed.
        unsafe { std::slice::from_raw_parts(buffer.base(), buffer.len()) }.to_vec()
    }

    pub(super) fn f32s(&mut self, values: &[f32]) -> Region {
        self.bytes(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(super) fn bf16s(&mut self, values: &[f32]) -> Region {
        let bytes = values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes());
        self.bytes(&bytes.collect::<Vec<_>>())
    }

    pub(super) fn u32s(&mut self, values: &[u32]) -> Region {
        self.bytes(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(super) fn set_f32s(&mut self, region: &Region, values: &[f32]) {
        self.set_bytes(region, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
    }

    pub(super) fn get_f32s(&self, region: &Region) -> Vec<f32> {
        let bytes = self.get_bytes(region);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// Elements of a KV cache of `bytes` bytes each, widened.
    pub(super) fn get_cache(&self, region: &Region, bytes: usize) -> Vec<f32> {
        if bytes == 4 {
            return self.get_f32s(region);
        }
        let bytes = self.get_bytes(region);
        bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    }

    pub(super) fn get_u32s(&self, region: &Region) -> Vec<u32> {
        let bytes = self.get_bytes(region);
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// Runs all tasks of a kernel as three threads would cut them, the last task first.
    pub(super) fn run(&mut self, kernel: &dyn Kernel, isa: Isa, active: Active) {
        self.run_cut_for(kernel, isa, active, 3);
    }

    /// Runs all tasks as `threads` threads would cut them.
    pub(super) fn run_cut_for(
        &mut self,
        kernel: &dyn Kernel,
        isa: Isa,
        active: Active,
        threads: usize,
    ) {
        let spans: Vec<Span> = self
            .buffers
            .iter()
            .map(|buffer| Span { base: buffer.base(), bytes: buffer.len() as u64 })
            .collect();
        // SAFETY: the buffers are owned by `self`, which is borrowed for as long as `memory` lives.
        let memory = unsafe { Memory::new(&spans) };
        let run = Run { memory, active, threads, isa };
        let count = kernel.tasks(&run);
        let mut workspace = Workspace::default();
        for index in (0..count).rev() {
            kernel.task(&run, Part { index, count }, &mut workspace);
        }
    }
}
