//! Aligned allocations that kernels are bound to.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment in bytes: more than any access of a kernel needs.
const ALIGN: usize = 256;

/// What memory holds that nobody has written: a NaN in every float format, an absurd index.
pub(crate) const POISON: u8 = 0xff;

/// Zeroed bytes at a 256-byte boundary.
#[derive(Debug)]
pub struct AlignedBytes {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the allocation is owned, plain memory without thread affinity.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access gives out shared slices only.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Allocates zeroed bytes.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return AlignedBytes { base: NonNull::dangling(), len };
        }
        let layout = Layout::from_size_align(len, ALIGN).expect("fits the address space");
        // SAFETY: the layout has a non-zero size.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
        AlignedBytes { base, len }
    }

    /// A copy of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }

    /// A copy of these numbers.
    pub fn of_f32(numbers: &[f32]) -> Self {
        Self::of(&numbers.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
    }

    /// A copy of these numbers.
    pub fn of_u32(numbers: &[u32]) -> Self {
        Self::of(&numbers.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
    }

    /// The bytes as numbers.
    pub fn to_f32(&self) -> Vec<f32> {
        self.to_u32().into_iter().map(f32::from_bits).collect()
    }

    /// The bytes as numbers.
    pub fn to_u32(&self) -> Vec<u32> {
        let words = self.chunks_exact(4);
        words.map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes"))).collect()
    }

    /// First byte, for kernels: who writes through it answers for races.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation has `len` initialised bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len != 0 {
            let layout = Layout::from_size_align(self.len, ALIGN).expect("checked when allocated");
            // SAFETY: `base` came from `alloc_zeroed` with this very layout and is freed once.
            unsafe { dealloc(self.base.as_ptr(), layout) }
        }
    }
}
