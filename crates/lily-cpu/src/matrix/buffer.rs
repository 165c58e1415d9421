//! Memory of a packed matrix.

use lily_device::DeviceError;
use memmap2::MmapMut;

use crate::memory::zeroed_pages;

/// From here on huge pages are worth asking for.
#[cfg(target_os = "linux")]
const HUGE: usize = 4 << 20;

/// Zeroed pages of their own: they are touched first by the thread that fills them, and large ones
/// ask the system for huge pages.
#[derive(Debug)]
pub(super) struct Buffer {
    pages: Option<MmapMut>,
}

/// Element types of which every bit pattern is a value.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for f32 {}

impl Buffer {
    /// `bytes` is `None` where the number overflows.
    pub(super) fn zeroed(what: &str, bytes: Option<usize>) -> Result<Self, DeviceError> {
        let pages = zeroed_pages(what, bytes.map_or(u64::MAX, |bytes| bytes as u64))?;
        #[cfg(target_os = "linux")]
        if let Some(pages) = pages.as_ref().filter(|pages| pages.len() >= HUGE) {
            // Advice: where the system has no huge pages, ordinary ones serve.
            let _ = pages.advise(memmap2::Advice::HugePage);
        }
        Ok(Buffer { pages })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.pages.as_deref().unwrap_or(&[])
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.as_deref_mut().unwrap_or(&mut [])
    }
}

/// Bytes as lines of 16 numbers.
pub(super) fn lines<T: Plain>(bytes: &[u8]) -> &[[T; 16]] {
    // SAFETY: every bit pattern of a `Plain` type is valid.
    let (before, lines, after) = unsafe { bytes.align_to::<[T; 16]>() };
    assert!(before.is_empty() && after.is_empty(), "tiles are whole lines and aligned");
    lines
}

/// Bytes as lines of 16 numbers.
pub(super) fn lines_mut<T: Plain>(bytes: &mut [u8]) -> &mut [[T; 16]] {
    // SAFETY: every bit pattern of a `Plain` type is valid, and so are the bytes of any of them.
    let (before, lines, after) = unsafe { bytes.align_to_mut::<[T; 16]>() };
    assert!(before.is_empty() && after.is_empty(), "tiles are whole lines and aligned");
    lines
}

/// Numbers as bytes.
pub(super) fn bytes_of_mut<T: Plain>(numbers: &mut [T]) -> &mut [u8] {
    let len = std::mem::size_of_val(numbers);
    // SAFETY: the range is exactly the slice's memory, and any bytes are valid `Plain` numbers.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), len) }
}

/// 16 `f32` of working memory on a cache line of their own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; 16]);
