//! Zeroed aligned allocations, and the one place that turns a plan's regions into slices.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use lily_device::DeviceError;
use lily_plan::buffer::Region;

/// Alignment of every buffer in bytes: a cache line, and the widest vector register.
pub(crate) const ALIGN: usize = 64;

/// Zeroed bytes at a 64-byte boundary; pages never touched cost no resident memory.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the allocation is owned, plain memory without thread affinity.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access gives out only an address; whoever dereferences it answers for races.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Allocates `bytes` zeroed bytes; `what` names them in the error.
    pub(crate) fn zeroed(what: &str, bytes: u64) -> Result<Self, DeviceError> {
        let error = || DeviceError::Memory { what: what.to_owned(), bytes };
        let size = usize::try_from(bytes).map_err(|_| error())?;
        if size == 0 {
            return Ok(AlignedBytes { base: NonNull::dangling(), bytes: 0 });
        }
        let layout = Layout::from_size_align(size, ALIGN).map_err(|_| error())?;
        // SAFETY: the layout has a non-zero size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(error)?;
        Ok(AlignedBytes { base, bytes: size })
    }

    /// Allocates a copy of these bytes.
    pub(crate) fn copy_of(bytes: &[u8]) -> Result<Self, DeviceError> {
        let mut copy = Self::zeroed("a buffer's copy", bytes.len() as u64)?;
        copy.bytes_mut().copy_from_slice(bytes);
        Ok(copy)
    }

    /// All bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has that many initialised bytes, and `&mut self` excludes every
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

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.bytes != 0 {
            let layout =
                Layout::from_size_align(self.bytes, ALIGN).expect("checked when allocated");
            // SAFETY: `base` came from `alloc_zeroed` with this very layout and is freed once.
            unsafe { dealloc(self.base.as_ptr(), layout) }
        }
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
