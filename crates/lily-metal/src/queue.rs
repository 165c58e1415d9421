//! The command queue: command buffers in order, and what became of them.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandBufferDescriptor, MTLCommandBufferErrorOption,
    MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
    MTLDevice, MTLDispatchType, MTLFence,
};

use crate::MetalError;

/// How long one command buffer may take; the system's own watchdog is quicker, unless it is off.
const PATIENCE: Duration = Duration::from_secs(120);

/// A queue whose command buffers wait for each other.
///
/// Buffers are not tracked, so the queue's order alone promises nothing about memory: every encoder
/// waits for the fence that the one before it updated.
#[derive(Debug)]
pub(crate) struct Queue {
    raw: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    fence: Retained<ProtocolObject<dyn MTLFence>>,
    /// Whether some encoder has updated the fence.
    fenced: AtomicBool,
    /// Ask Metal for what an encoder was doing when it failed.
    detailed_errors: bool,
}

/// What became of one command buffer.
struct Ended {
    number: usize,
    /// Code and message.
    failure: Option<(isize, String)>,
}

/// Command buffers on their way.
#[derive(Debug)]
pub(crate) struct Submitted {
    sender: mpsc::Sender<Ended>,
    receiver: mpsc::Receiver<Ended>,
    /// What each is called when it fails.
    labels: Vec<String>,
}

impl Queue {
    /// A queue of that device.
    pub(crate) fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        detailed_errors: bool,
    ) -> Result<Queue, MetalError> {
        let raw = device.newCommandQueue().ok_or(MetalError::Object { what: "command queue" })?;
        let fence = device.newFence().ok_or(MetalError::Object { what: "fence" })?;
        Ok(Queue { raw, fence, fenced: AtomicBool::new(false), detailed_errors })
    }

    /// For residency sets.
    pub(crate) fn raw(&self) -> &Retained<ProtocolObject<dyn MTLCommandQueue>> {
        &self.raw
    }

    /// Encodes and commits one command buffer. `keep` owns everything that `encode` binds; it is
    /// dropped when the command buffer has ended, however it ended.
    pub(crate) fn submit(
        &self,
        submitted: &mut Submitted,
        label: String,
        keep: Arc<dyn Any + Send + Sync>,
        encode: impl FnOnce(&Encoder),
    ) -> Result<(), MetalError> {
        autoreleasepool(|_| {
            let descriptor = MTLCommandBufferDescriptor::new();
            // `keep` does what Metal would do for each buffer one by one.
            descriptor.setRetainedReferences(false);
            if self.detailed_errors {
                let option = MTLCommandBufferErrorOption::EncoderExecutionStatus;
                descriptor.setErrorOptions(option);
            }
            let commands = self
                .raw
                .commandBufferWithDescriptor(&descriptor)
                .ok_or(MetalError::Object { what: "command buffer" })?;
            let raw = commands
                .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
                .ok_or(MetalError::Object { what: "compute encoder" })?;
            if self.detailed_errors {
                raw.setLabel(Some(&NSString::from_str(&label)));
            }
            let encoder = Encoder { raw };
            if self.fenced.load(Ordering::Relaxed) {
                encoder.raw.waitForFence(&self.fence);
            }
            encode(&encoder);
            encoder.raw.updateFence(&self.fence);
            drop(encoder);
            // The command buffer retains neither what it binds nor the fence.
            let keep: Arc<dyn Any + Send + Sync> = Arc::new((keep, self.fence.clone()));
            submitted.watch(&commands, label, keep);
            commands.commit();
            self.fenced.store(true, Ordering::Relaxed);
            Ok(())
        })
    }
}

/// A concurrent compute encoder; ends its encoding when dropped, because Metal ends the program when
/// an encoder goes without.
#[derive(Debug)]
pub(crate) struct Encoder {
    raw: Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>,
}

impl Encoder {
    /// For Metal's calls.
    pub(crate) fn raw(&self) -> &ProtocolObject<dyn MTLComputeCommandEncoder> {
        &self.raw
    }

    /// What follows waits for what came before.
    pub(crate) fn barrier(&self) {
        self.raw.memoryBarrierWithScope(MTLBarrierScope::Buffers);
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        self.raw.endEncoding();
    }
}

impl Submitted {
    /// Nothing yet.
    pub(crate) fn new() -> Submitted {
        let (sender, receiver) = mpsc::channel();
        Submitted { sender, receiver, labels: Vec::new() }
    }

    /// Asks to be told when the command buffer has ended.
    fn watch(
        &mut self,
        commands: &ProtocolObject<dyn MTLCommandBuffer>,
        label: String,
        keep: Arc<dyn Any + Send + Sync>,
    ) {
        let (sender, number) = (self.sender.clone(), self.labels.len());
        self.labels.push(label);
        // Called on a thread of Metal, so it does next to nothing.
        let handler =
            RcBlock::new(move |commands: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
                let _keep = &keep;
                // SAFETY: Metal passes the command buffer that has completed.
                let commands = unsafe { commands.as_ref() };
                let failure = autoreleasepool(|_| failure(commands));
                // Nobody listens after a time-out.
                let _ = sender.send(Ended { number, failure });
            });
        // SAFETY: Metal copies the block and calls it once; what it captures is `Send`.
        unsafe { commands.addCompletedHandler(RcBlock::as_ptr(&handler)) };
    }

    /// Waits for all of them; the first failure, in the order of their numbers.
    pub(crate) fn wait(self) -> Result<(), MetalError> {
        let Submitted { sender, receiver, mut labels } = self;
        drop(sender);
        let mut failures = Vec::new();
        for done in 0..labels.len() {
            match receiver.recv_timeout(PATIENCE) {
                Ok(Ended { number, failure: Some(failure) }) => failures.push((number, failure)),
                Ok(_) => {}
                Err(_) => {
                    let steps = labels.swap_remove(done);
                    return Err(MetalError::Silent { steps, seconds: PATIENCE.as_secs() });
                }
            }
        }
        // Those behind the first fail too, as innocent victims.
        match failures.into_iter().min_by_key(|(number, _)| *number) {
            None => Ok(()),
            Some((number, (code, message))) => {
                Err(MetalError::Commands { steps: labels.swap_remove(number), code, message })
            }
        }
    }
}

fn failure(commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Option<(isize, String)> {
    if commands.status() != MTLCommandBufferStatus::Error {
        return None;
    }
    let error = commands.error();
    let text = |e: &objc2_foundation::NSError| (e.code(), e.localizedDescription().to_string());
    Some(error.as_deref().map_or_else(|| (0, "no description".to_owned()), text))
}
