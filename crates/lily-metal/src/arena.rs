//! Many arrays in few buffers.
//!
//! A process may have only so many Metal resources, and residency is decided buffer by buffer: arrays
//! share buffers, but no more than `cap` bytes lie in one unless a single array is larger.

/// Where an array lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Index of the buffer.
    pub(crate) buffer: usize,
    /// Bytes from its start; a multiple of [`ALIGN`].
    pub(crate) offset: u64,
    /// Size in bytes.
    pub(crate) bytes: u64,
}

/// Arrays start at multiples of this: two cache lines of the GPU.
pub(crate) const ALIGN: u64 = 256;

/// Slots in the order of the arrays, and the buffers that hold them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arenas {
    pub(crate) slots: Vec<Slot>,
    /// Size of each buffer in bytes; never 0.
    pub(crate) buffers: Vec<u64>,
}

impl Arenas {
    /// One array after the other, a new buffer when `cap` would be passed. `None` where sizes overflow.
    pub(crate) fn pack(sizes: impl IntoIterator<Item = u64>, cap: u64) -> Option<Arenas> {
        let mut arenas = Arenas::default();
        for bytes in sizes {
            let reserved = bytes.max(1).checked_next_multiple_of(ALIGN)?;
            let fits = |used: &u64| used.checked_add(reserved).is_some_and(|end| end <= cap);
            let offset = match arenas.buffers.last_mut().filter(|used| fits(used)) {
                Some(used) => {
                    *used += reserved;
                    *used - reserved
                }
                None => {
                    arenas.buffers.push(reserved);
                    0
                }
            };
            arenas.slots.push(Slot { buffer: arenas.buffers.len() - 1, offset, bytes });
        }
        Some(arenas)
    }

    /// Bytes of all buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.buffers.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_aligned_apart_and_inside_their_buffers() {
        let sizes = [1, 255, 256, 257, 0, 5000, 100, 700, 1024];
        let arenas = Arenas::pack(sizes, 1024).unwrap();
        let mut end = (0, 0);
        for (slot, bytes) in arenas.slots.iter().zip(sizes) {
            assert_eq!((slot.bytes, slot.offset % ALIGN), (bytes, 0));
            assert!((slot.buffer, slot.offset) >= end, "{slot:?} after {end:?}");
            end = (slot.buffer, slot.offset + slot.bytes.max(1));
            assert!(end.1 <= arenas.buffers[slot.buffer]);
        }
        let larger: Vec<&u64> = arenas.buffers.iter().filter(|&&bytes| bytes > 1024).collect();
        assert_eq!(larger, [&5120], "only the array that is larger than the cap");
    }

    #[test]
    fn arrays_beyond_4_gib_have_offsets_beyond_32_bits() {
        let arenas = Arenas::pack([5 << 30, 1 << 30], 8 << 30).unwrap();
        assert_eq!(arenas.slots[1], Slot { buffer: 0, offset: 5 << 30, bytes: 1 << 30 });
        assert_eq!(arenas.bytes(), 6 << 30);
    }

    #[test]
    fn sizes_that_overflow_are_refused_or_kept_apart() {
        assert_eq!(Arenas::pack([u64::MAX], u64::MAX), None);
        let apart = Arenas::pack([u64::MAX / 2, u64::MAX / 2 + 1], u64::MAX).unwrap();
        assert_eq!(apart.buffers.len(), 2);
    }
}
