//! Device memory, and staging memory on the host.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, PinnedHostSlice, result};

use crate::error::{CudaError, driver};

/// Every buffer starts at a multiple of this: what the widest loads and the packed weights need.
pub(crate) const ALIGN: u64 = 256;

/// An address in device memory.
pub(crate) type Address = cudarc::driver::sys::CUdeviceptr;

/// One allocation of device memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<CudaContext>,
    base: Address,
    bytes: u64,
}

impl DeviceMemory {
    /// Allocates zeroed memory; `what` names it in the error. No bytes need no memory.
    pub(crate) fn zeroed(
        context: &Arc<CudaContext>,
        what: &str,
        bytes: u64,
    ) -> Result<Self, CudaError> {
        context.bind_to_thread().map_err(driver("cuCtxSetCurrent"))?;
        let mut memory = DeviceMemory { context: Arc::clone(context), base: 0, bytes: 0 };
        if bytes == 0 {
            return Ok(memory);
        }
        let refused = |free| CudaError::Memory { what: what.to_owned(), bytes, free };
        // Asked first, so that the refusal can say what is free.
        let (free, _) = result::mem_get_info().map_err(driver("cuMemGetInfo"))?;
        let size = usize::try_from(bytes).map_err(|_| refused(free as u64))?;
        if size > free {
            return Err(refused(free as u64));
        }
        // SAFETY: a context is current; the address is freed once, by `drop`.
        memory.base = unsafe { result::malloc_sync(size) }.map_err(|_| refused(free as u64))?;
        memory.bytes = bytes;
        // SAFETY: the range is the allocation just made, and nothing uses it yet. The default stream
        // orders the fill before every later call that waits for the context, as the next one does.
        unsafe { result::memset_d8_sync(memory.base, 0, size) }.map_err(driver("cuMemsetD8"))?;
        result::ctx::synchronize().map_err(driver("cuCtxSynchronize"))?;
        Ok(memory)
    }

    /// First byte; 0 where nothing is allocated.
    pub(crate) fn base(&self) -> Address {
        self.base
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Address of a range of this memory, checked to lie inside.
    pub(crate) fn range(&self, offset: u64, bytes: u64) -> Address {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} of {}",
            self.bytes
        );
        self.base + offset
    }

    /// Copies bytes to `offset` and waits for it.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.context.bind_to_thread().map_err(driver("cuCtxSetCurrent"))?;
        let at = self.range(offset, bytes.len() as u64);
        // SAFETY: the range was checked; the call has read the pageable bytes when it returns.
        unsafe { result::memcpy_htod_sync(at, bytes) }.map_err(driver("cuMemcpyHtoD"))?;
        // They may still be on their way from the driver's own staging memory.
        result::ctx::synchronize().map_err(driver("cuCtxSynchronize"))
    }

    /// Copies bytes from `offset` and waits for it.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.context.bind_to_thread().map_err(driver("cuCtxSetCurrent"))?;
        let at = self.range(offset, bytes.len() as u64);
        // SAFETY: the range was checked; the call returns when the bytes are there.
        unsafe { result::memcpy_dtoh_sync(bytes, at) }.map_err(driver("cuMemcpyDtoH"))
    }

    /// Zeroes a range, in the order of the stream.
    pub(crate) fn clear(
        &self,
        stream: &CudaStream,
        offset: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        self.context.bind_to_thread().map_err(driver("cuCtxSetCurrent"))?;
        let at = self.range(offset, bytes);
        // SAFETY: the range was checked; the stream keeps the order with other users of it.
        unsafe { result::memset_d8_async(at, 0, bytes as usize, stream.cu_stream()) }
            .map_err(driver("cuMemsetD8Async"))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.base == 0 {
            return;
        }
        // Nothing sensible can follow a failure here: the context is gone or going.
        let _ = self.context.bind_to_thread();
        // SAFETY: the address came from `malloc_sync` and is freed once. `cuMemFree` waits for work
        // that still uses it.
        let _ = unsafe { result::free_sync(self.base) };
    }
}

/// Page-locked host memory: copies from and to it run beside other work.
#[derive(Debug)]
pub(crate) struct Pinned {
    memory: PinnedHostSlice<u8>,
}

impl Pinned {
    /// Allocates zeroed bytes, at least one.
    pub(crate) fn zeroed(context: &Arc<CudaContext>, bytes: u64) -> Result<Self, CudaError> {
        let what = "cuMemHostAlloc";
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX / 4);
        // SAFETY: the memory is filled just below, before anybody reads it.
        let memory = unsafe { context.alloc_pinned_with_flags::<u8>(size, 0) };
        let mut pinned = Pinned { memory: memory.map_err(driver(what))? };
        pinned.bytes_mut().fill(0);
        Ok(pinned)
    }

    /// The bytes. Who calls this has waited for copies into them.
    pub(crate) fn bytes(&self) -> &[u8] {
        // The slice's own event is never recorded here, so nothing waits and nothing fails.
        self.memory.as_slice().unwrap_or_default()
    }

    /// The bytes. Who calls this has waited for copies from and into them.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut_slice().unwrap_or_default()
    }
}

/// Copies host bytes to device memory in the order of the stream.
///
/// # Safety
/// `to` must start a device range of `from.len()` bytes that stays allocated, and `from` must stay
/// in place and unchanged until the stream has passed the copy.
pub(crate) unsafe fn upload(
    to: Address,
    from: &[u8],
    stream: &CudaStream,
) -> Result<(), CudaError> {
    if from.is_empty() {
        return Ok(());
    }
    // SAFETY: as the caller promises.
    unsafe { result::memcpy_htod_async(to, from, stream.cu_stream()) }
        .map_err(driver("cuMemcpyHtoDAsync"))
}

/// Copies device bytes to host memory in the order of the stream.
///
/// # Safety
/// `from` must start a device range of `to.len()` bytes that stays allocated, and `to` must stay in
/// place and unread until the stream has passed the copy.
pub(crate) unsafe fn download(
    to: &mut [u8],
    from: Address,
    stream: &CudaStream,
) -> Result<(), CudaError> {
    if to.is_empty() {
        return Ok(());
    }
    // SAFETY: as the caller promises.
    unsafe { result::memcpy_dtoh_async(to, from, stream.cu_stream()) }
        .map_err(driver("cuMemcpyDtoHAsync"))
}
