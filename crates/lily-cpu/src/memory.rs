//! Zeroed aligned allocations, and the one place that turns a plan's regions into slices.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use lily_device::DeviceError;
use lily_plan::buffer::Region;
use memmap2::{MmapMut, MmapOptions};

/// Alignment of every buffer in bytes: a cache line, and the widest vector register.
pub(crate) const ALIGN: usize = 64;

/// Zeroed pages of the system, which take memory when they are first touched, by the thread that
/// touches them; `None` where no bytes are asked for. `what` names them in the error.
pub(crate) fn zeroed_pages(what: &str, bytes: u64) -> Result<Option<MmapMut>, DeviceError> {
    if bytes == 0 {
        return Ok(None);
    }
    let error = || DeviceError::Memory { what: what.to_owned(), bytes };
    let len = usize::try_from(bytes).map_err(|_| error())?;
    let pages = MmapOptions::new().len(len).map_anon().map_err(|_| error())?;
    Ok(Some(pages))
}

/// Zeroed bytes at the start of a page; what is never touched costs no resident memory.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    base: NonNull<u8>,
    bytes: usize,
    /// Keeps them; reached only through `base`.
    _pages: Option<MmapMut>,
}

// SAFETY: the pages are owned, plain memory without thread affinity.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access gives out only an address; whoever dereferences it answers for races.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Allocates `bytes` zeroed bytes; `what` names them in the error.
    pub(crate) fn zeroed(what: &str, bytes: u64) -> Result<Self, DeviceError> {
        let mut pages = zeroed_pages(what, bytes)?;
        let base =
            pages.as_deref_mut().map_or(NonNull::dangling(), |pages| NonNull::from(pages).cast());
        let bytes = pages.as_deref().map_or(0, <[u8]>::len);
        Ok(AlignedBytes { base, bytes, _pages: pages })
    }

    /// Allocates a copy of these bytes.
    pub(crate) fn copy_of(bytes: &[u8]) -> Result<Self, DeviceError> {
        let mut copy = Self::zeroed("a buffer's copy", bytes.len() as u64)?;
        copy.bytes_mut().copy_from_slice(bytes);
        Ok(copy)
    }

    /// All bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the pages have that many initialised bytes, and `&mut self` excludes every
        // other access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// First byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

/// Element types a region can be read as: plain numbers for which every bit pattern is a value.
///
/// # Safety
/// Implementors must be inhabited by every bit pattern and need at most [`ALIGN`] alignment.
pub(crate) unsafe trait Element: Copy {}
// SAFETY: every bit pattern is an `f32`.
unsafe impl Element for f32 {}
// SAFETY: every bit pattern is a `u32`.
unsafe impl Element for u32 {}
// SAFETY: every bit pattern is a `u16`.
unsafe impl Element for u16 {}
// SAFETY: `bf16` is a transparent `u16`.
unsafe impl Element for half::bf16 {}

/// Where one buffer lies during a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) base: *mut u8,
    pub(crate) bytes: u64,
}

// SAFETY: an address; [`Memory`]'s methods state who may dereference it.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// The buffers of one plan during one run, by buffer index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory<'a> {
    spans: &'a [Span],
    owner: PhantomData<&'a mut [u8]>,
}

impl<'a> Memory<'a> {
    /// Buffers at `spans`.
    ///
    /// # Safety
    /// Each span must be valid for reads and writes for `'a`, aligned to [`ALIGN`], and reached in
    /// no other way during `'a`.
    pub(crate) unsafe fn new(spans: &'a [Span]) -> Self {
        Memory { spans, owner: PhantomData }
    }

    /// Where the buffers lie.
    pub(crate) fn spans(&self) -> &'a [Span] {
        self.spans
    }

    /// Address of elements `range` of a region, checked to lie inside and to be aligned.
    pub(crate) fn locate<T: Element>(&self, region: &Region, range: Range<usize>) -> *mut T {
        let span = &self.spans[region.buffer.0 as usize];
        let size = size_of::<T>() as u64;
        let start = region.bytes.start + range.start as u64 * size;
        let end = region.bytes.start + range.end as u64 * size;
        assert!(
            range.start <= range.end
                && end <= region.bytes.end
                && region.bytes.end <= span.bytes
                && start.is_multiple_of(align_of::<T>() as u64),
            "elements {range:?} outside of region {region:?}"
        );
        // The assertion keeps the offset inside the span, so it fits and stays in one allocation.
        span.base.wrapping_add(start as usize).cast()
    }

    /// Elements `range` of a region.
    ///
    /// # Safety
    /// Nobody may write these elements while the slice lives.
    pub(crate) unsafe fn read<T: Element>(&self, region: &Region, range: Range<usize>) -> &'a [T] {
        let first = self.locate::<T>(region, range.clone());
        // SAFETY: `locate` checked bounds and alignment, the span is valid for `'a`, any bit pattern
        // is a `T`, and the caller excludes writers.
        unsafe { std::slice::from_raw_parts(first, range.len()) }
    }

    /// Elements `range` of a region, to be overwritten or updated.
    ///
    /// # Safety
    /// Nobody else may read or write these elements while the slice lives.
    pub(crate) unsafe fn write<T: Element>(
        &self,
        region: &Region,
        range: Range<usize>,
    ) -> &'a mut [T] {
        let first = self.locate::<T>(region, range.clone());
        // SAFETY: as in `read`, and the caller excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(first, range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_plan::buffer::BufferId;

    #[test]
    fn an_allocation_is_zeroed_and_aligned() {
        let bytes = AlignedBytes::zeroed("test", 1000).unwrap();
        assert_eq!(bytes.base() as usize % ALIGN, 0);
        let spans = [Span { base: bytes.base(), bytes: 1000 }];
        // SAFETY: the allocation outlives `memory` and is reached only through it.
        let memory = unsafe { Memory::new(&spans) };
        let region = Region { buffer: BufferId(0), bytes: 0..1000 };
        // SAFETY: nothing writes.
        assert!(unsafe { memory.read::<f32>(&region, 0..250) }.iter().all(|&x| x == 0.0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn bytes_that_are_never_touched_cost_no_resident_memory() {
        let resident = || -> usize {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident();
        let bytes = AlignedBytes::zeroed("KV cache", 1 << 30).unwrap();
        assert_eq!(bytes.len(), 1 << 30);
        // Other tests run beside this one.
        assert!(resident() < before + (1 << 29));
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error_that_names_it() {
        let error = AlignedBytes::zeroed("KV cache", u64::MAX / 2).unwrap_err();
        assert!(error.to_string().contains("KV cache"), "{error}");
    }

    #[test]
    #[should_panic(expected = "outside of region")]
    fn elements_past_the_end_of_a_region_are_refused() {
        let bytes = AlignedBytes::zeroed("test", 64).unwrap();
        let spans = [Span { base: bytes.base(), bytes: 64 }];
        // SAFETY: the allocation outlives `memory` and is reached only through it.
        let memory = unsafe { Memory::new(&spans) };
        let region = Region { buffer: BufferId(0), bytes: 0..32 };
        // SAFETY: nothing writes.
        let _ = unsafe { memory.read::<f32>(&region, 0..9) };
    }
}
