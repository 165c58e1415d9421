//! Memory that the GPU and the host share, and its residency.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use lily_checkpoint::Mapping;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLAllocation, MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet,
    MTLResidencySetDescriptor, MTLResourceOptions,
};

use crate::MetalError;
use crate::arena::Arenas;
use crate::mapped::Mapped;
use crate::residency;

/// Where buffers come from: the device, and the residency sets of its queue.
#[derive(Debug)]
pub(crate) struct Heap {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// `None` where the GPU has no residency sets.
    sets: Option<Mutex<Vec<Set>>>,
    /// Bytes up to which a set is filled.
    set_bytes: u64,
    working_set: u64,
}

/// One residency set of the queue.
#[derive(Debug)]
struct Set {
    raw: Retained<ProtocolObject<dyn MTLResidencySet>>,
    bytes: u64,
}

// SAFETY: reference counts of Objective-C objects are atomic, a residency set has no thread affinity,
// and the lock in `Heap` lets one thread at a time edit it.
unsafe impl Send for Set {}

impl Heap {
    /// Buffers of that device for commands of that queue.
    pub(crate) fn new(
        device: Retained<ProtocolObject<dyn MTLDevice>>,
        queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
        residency_sets: bool,
        set_bytes: u64,
    ) -> Arc<Heap> {
        let sets = residency_sets.then(|| Mutex::new(Vec::new()));
        let working_set = device.recommendedMaxWorkingSetSize();
        Arc::new(Heap { device, queue, sets, set_bytes, working_set })
    }

    /// Bytes up to which arrays should share a buffer.
    pub(crate) fn cap(&self) -> u64 {
        self.set_bytes
    }

    /// One buffer per array of sizes; their contents are undefined. `what` names them in the error.
    pub(crate) fn allocate_all(
        self: &Arc<Self>,
        what: &str,
        sizes: &[u64],
    ) -> Result<Vec<SharedBuffer>, MetalError> {
        autoreleasepool(|_| {
            let total = sizes.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
            let held = self.device.currentAllocatedSize() as u64;
            // More than the working set is granted too, and then paged at every step.
            if held.saturating_add(total) > self.working_set {
                return Err(MetalError::Memory { what: what.to_owned(), bytes: total });
            }
            let buffers = sizes.iter().map(|&bytes| self.buffer(what, bytes));
            let mut buffers = buffers.collect::<Result<Vec<_>, _>>()?;
            self.admit(&mut buffers)?;
            Ok(buffers)
        })
    }

    /// One buffer.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        what: &str,
        bytes: u64,
    ) -> Result<SharedBuffer, MetalError> {
        let mut buffers = self.allocate_all(what, &[bytes])?;
        buffers.pop().ok_or(MetalError::Object { what: "buffer" })
    }

    /// One buffer per stretch of a mapped file, where it lies.
    pub(crate) fn wrap_all(
        self: &Arc<Self>,
        what: &str,
        mapped: &Mapped,
    ) -> Result<Vec<SharedBuffer>, MetalError> {
        autoreleasepool(|_| {
            let buffers = mapped.spans.iter().map(|span| self.wrap(what, mapped, span.clone()));
            let mut buffers = buffers.collect::<Result<Vec<_>, _>>()?;
            self.admit(&mut buffers)?;
            Ok(buffers)
        })
    }

    fn wrap(
        self: &Arc<Self>,
        what: &str,
        mapped: &Mapped,
        span: Range<usize>,
    ) -> Result<SharedBuffer, MetalError> {
        let length = span.len();
        let refused = || MetalError::Memory { what: what.to_owned(), bytes: length as u64 };
        let base = NonNull::from(&mapped.mapping.bytes()[span]).cast::<u8>();
        let options =
            MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        // SAFETY: the stretch starts on a page and is whole pages long (`Mapped::of`), and it stays
        // mapped as long as the buffer, which holds the mapping. The mapping is read-only: no kernel
        // writes weights (`lily_kernels::check`), and nothing on the host writes this buffer.
        let raw = unsafe {
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(
                base.cast(),
                length,
                options,
                None,
            )
        };
        let (raw, mapping) = (raw.ok_or_else(refused)?, Some(Arc::clone(&mapped.mapping)));
        Ok(SharedBuffer { raw, base, length, heap: Arc::clone(self), set: None, mapping })
    }

    fn buffer(self: &Arc<Self>, what: &str, bytes: u64) -> Result<SharedBuffer, MetalError> {
        let refused = || MetalError::Memory { what: what.to_owned(), bytes };
        // Metal makes no buffer of no bytes.
        let length = usize::try_from(bytes.max(1)).map_err(|_| refused())?;
        let options =
            MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        let raw = self.device.newBufferWithLength_options(length, options).ok_or_else(refused)?;
        let base = raw.contents().cast();
        let heap = Arc::clone(self);
        Ok(SharedBuffer { raw, base, length, heap, set: None, mapping: None })
    }

    /// Makes buffers resident, with one commit per set.
    fn admit(&self, buffers: &mut [SharedBuffer]) -> Result<(), MetalError> {
        let Some(sets) = &self.sets else { return Ok(()) };
        let mut sets = sets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut touched = Vec::new();
        for buffer in buffers {
            let loads: Vec<u64> = sets.iter().map(|set| set.bytes).collect();
            let index = residency::choose(&loads, buffer.length as u64, self.set_bytes);
            if index == sets.len() {
                sets.push(self.new_set()?);
            }
            let set = &mut sets[index];
            set.raw.addAllocation(allocation(&buffer.raw));
            set.bytes += buffer.length as u64;
            buffer.set = Some(index);
            if !touched.contains(&index) {
                touched.push(index);
            }
        }
        for index in touched {
            sets[index].raw.commit();
            sets[index].raw.requestResidency();
        }
        Ok(())
    }

    /// An empty set, attached to the queue before any command that needs it.
    fn new_set(&self) -> Result<Set, MetalError> {
        let descriptor = MTLResidencySetDescriptor::new();
        let raw = self
            .device
            .newResidencySetWithDescriptor_error(&descriptor)
            .map_err(|_| MetalError::Object { what: "residency set" })?;
        self.queue.addResidencySet(&raw);
        Ok(Set { raw, bytes: 0 })
    }

    fn dismiss(&self, buffer: &SharedBuffer) {
        let (Some(sets), Some(index)) = (&self.sets, buffer.set) else { return };
        let mut sets = sets.lock().unwrap_or_else(PoisonError::into_inner);
        let set = &mut sets[index];
        set.raw.removeAllocation(allocation(&buffer.raw));
        set.raw.commit();
        set.bytes -= buffer.length as u64;
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let Some(sets) = &mut self.sets else { return };
        for set in sets.get_mut().unwrap_or_else(PoisonError::into_inner) {
            self.queue.removeResidencySet(&set.raw);
        }
    }
}

fn allocation(raw: &ProtocolObject<dyn MTLBuffer>) -> &ProtocolObject<dyn MTLAllocation> {
    ProtocolObject::from_ref(raw)
}

/// Bytes that the GPU and the host share; no hazard tracking.
#[derive(Debug)]
pub(crate) struct SharedBuffer {
    raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    base: NonNull<u8>,
    length: usize,
    heap: Arc<Heap>,
    /// Index of its residency set.
    set: Option<usize>,
    /// The file whose bytes these are, if they are not the buffer's own.
    mapping: Option<Arc<Mapping>>,
}

// SAFETY: reference counts of Objective-C objects are atomic, and a buffer has no thread affinity.
unsafe impl Send for SharedBuffer {}
// SAFETY: as above; the methods that touch contents state who may call them.
unsafe impl Sync for SharedBuffer {}

impl SharedBuffer {
    /// For Metal's calls.
    pub(crate) fn raw(&self) -> &ProtocolObject<dyn MTLBuffer> {
        &self.raw
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.length as u64
    }

    /// All bytes.
    ///
    /// # Safety
    /// No command that touches the buffer may be in flight. (Whoever is `&mut` is the only owner on
    /// this side.)
    pub(crate) unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.mapping.is_none(), "a mapped file is not written");
        // SAFETY: `contents` of a shared buffer are `length` bytes that live as long as the buffer;
        // `&mut self` excludes others on the host, the caller excludes the GPU. Metal maps fresh
        // memory, so every byte is initialised.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }

    /// Copies bytes to `offset`.
    ///
    /// # Safety
    /// Neither a command in flight nor another thread may touch these bytes.
    pub(crate) unsafe fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(self.mapping.is_none(), "a mapped file is not written");
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checked the range; the caller excludes everybody else; no Rust reference to the
        // contents exists while the buffer is shared.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies bytes from `offset`.
    ///
    /// # Safety
    /// Neither a command in flight nor another thread may write these bytes.
    pub(crate) unsafe fn read(&self, offset: u64, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: as in `write`; a command that has completed has made its writes visible.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Reads numbers of 4 bytes.
    ///
    /// # Safety
    /// As [`SharedBuffer::read`].
    pub(crate) unsafe fn read_floats(&self, offset: u64, floats: &mut [f32]) {
        let bytes = size_of_val(floats);
        let from = self.at(offset, bytes);
        // SAFETY: as in `read`; all bits are a number.
        unsafe { std::ptr::copy_nonoverlapping(from, floats.as_mut_ptr().cast::<u8>(), bytes) }
    }

    /// Zeroes bytes.
    ///
    /// # Safety
    /// As [`SharedBuffer::write`].
    pub(crate) unsafe fn zero(&self, offset: u64, bytes: u64) {
        assert!(self.mapping.is_none(), "a mapped file is not written");
        let bytes = usize::try_from(bytes).expect("inside the buffer");
        let to = self.at(offset, bytes);
        // SAFETY: as in `write`.
        unsafe { std::ptr::write_bytes(to, 0, bytes) }
    }

    /// Address of a range, checked to lie inside.
    fn at(&self, offset: u64, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.length as u64), "{bytes} bytes at {offset}");
        // The assertion keeps the offset inside the allocation.
        self.base.as_ptr().wrapping_add(offset as usize)
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        autoreleasepool(|_| self.heap.dismiss(self));
    }
}

/// The arrays of a layout in device memory.
#[derive(Debug)]
pub(crate) struct SharedArenas {
    pub(crate) layout: Arenas,
    pub(crate) buffers: Vec<SharedBuffer>,
}

impl SharedArenas {
    /// Allocates the buffers of a layout; their contents are undefined.
    pub(crate) fn new(heap: &Arc<Heap>, what: &str, layout: Arenas) -> Result<Self, MetalError> {
        let buffers = heap.allocate_all(what, &layout.buffers)?;
        Ok(SharedArenas { layout, buffers })
    }

    /// The weights of a mapped file where they lie.
    pub(crate) fn mapped(heap: &Arc<Heap>, what: &str, mapped: Mapped) -> Result<Self, MetalError> {
        let buffers = heap.wrap_all(what, &mapped)?;
        Ok(SharedArenas { layout: mapped.layout, buffers })
    }

    /// The buffer of an array, and where the array starts in it.
    pub(crate) fn locate(&self, index: usize) -> (&SharedBuffer, u64) {
        let slot = &self.layout.slots[index];
        (&self.buffers[slot.buffer], slot.offset)
    }
}
