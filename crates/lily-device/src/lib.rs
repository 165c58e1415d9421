//! The boundary between the engine and the machines that run plans.
//!
//! The one idea: the cut is the plan, not the operation. A device loads weights once, prepares
//! validated plans once, and replays them; calls are coarse, so dynamic dispatch is free.
//!
//! Who validates: `lily-checkpoint` has checked every weight, `lily-plan` every shape, range and
//! hazard; a device that still meets a contradiction may panic with the step's name. [`DeviceError`]
//! is only for what the caller could not foresee.
//!
//! What it deliberately lacks: any one device's words.
#![forbid(unsafe_code)]

mod ahead;
pub mod compare;
pub mod session;

pub use ahead::one_by_one;

use std::any::Any;

use lily_checkpoint::Checkpoint;
use lily_plan::buffer::Elem;
use lily_plan::valid::ValidPlan;

/// What a device is, for logs and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// `cpu`, `metal` or `cuda`.
    pub kind: &'static str,
    /// Instruction set or chip, for example `AVX2`.
    pub name: String,
    /// Worker threads or compute units.
    pub parallelism: usize,
    /// What plans for this device should feed matrix products of several rows.
    pub activations: Elem,
    /// Prompt tokens of a prefill chunk that pay on it, where memory is no concern.
    pub prefill_chunk: usize,
    /// Whether decode plans for this device should choose their own next token
    /// ([`lily_plan::op::Advance`]), so that [`LoadedModel::run_ahead`] need not wait for the host.
    pub token_slot: bool,
}

/// Bytes loaded so far, called from any thread.
pub trait Progress: Sync {
    /// `done` of `total` bytes are in device memory.
    fn advance(&self, done: u64, total: u64);
}

/// Reports nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn advance(&self, _done: u64, _total: u64) {}
}

/// A machine.
pub trait Device: Send + Sync {
    /// What it is.
    fn facts(&self) -> DeviceFacts;

    /// Brings all weights of the checkpoint's manifest to the device, which may use those of a `.lily`
    /// file where it is mapped.
    ///
    /// # Errors
    /// [`DeviceError::Read`] when a file fails, [`DeviceError::Memory`] when memory runs out.
    fn load(
        &self,
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<Box<dyn LoadedModel>, DeviceError>;
}

/// What a check of plans and runs gave. Both were checked before they reached the device, so an error
/// is a contradiction.
///
/// # Panics
/// With the error's own words.
#[track_caller]
pub fn trusted<T>(checked: Result<T, impl std::error::Error>) -> T {
    checked.unwrap_or_else(|error| panic!("{error}"))
}

/// Index of a prepared plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId(pub usize);

/// Weights in device memory and the plans prepared for them.
pub trait LoadedModel: Send + Sync {
    /// Resolves a plan's weights by name and reserves its scratch memory; plans share one arena.
    ///
    /// # Errors
    /// [`DeviceError::Memory`] when memory runs out.
    ///
    /// # Panics
    /// When the plan contradicts the weights or, in its session buffers, an earlier plan.
    fn prepare(&mut self, plan: ValidPlan) -> Result<PlanId, DeviceError>;

    /// Allocates zeroed session buffers (KV cache and recurrent state) of all prepared plans.
    ///
    /// # Errors
    /// [`DeviceError::Memory`] when memory runs out.
    fn new_sequence(&self) -> Result<Box<dyn Sequence>, DeviceError>;

    /// Runs one prepared plan over `tokens` (1 ..= the plan's rows) whose first position is
    /// `position`, and fills `logits` with `vocab` values per logits row (one row, or one per token
    /// for score plans). Calls on one model are serialised by the device.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when the device failed; the sequence must then be dropped.
    ///
    /// # Panics
    /// When the tokens do not fit the plan ([`lily_plan::plan::Plan::check_run`]).
    fn run(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        tokens: &[u32],
        position: usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError>;

    /// Greedy decode steps without the host between them: feeds `token` at `position` to a decode
    /// plan, then the most probable token of each step (ties: lower id), for at most `steps` steps.
    ///
    /// Hands each token chosen to `on_token`, in order; no more steps follow once it returns `false`.
    /// Where the logits of a step are no numbers, the token is [`lily_plan::op::NO_TOKEN`] and the
    /// steps end. Returns how many tokens were fed: a device that submits steps ahead may have fed
    /// more than it handed out, and its recurrent state has then seen all of them.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when the device failed; the sequence must then be dropped.
    ///
    /// # Panics
    /// When the last of the steps does not fit the plan.
    fn run_ahead(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        token: u32,
        position: usize,
        steps: usize,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, DeviceError> {
        let feed = |token, position, logits: &mut Vec<f32>| {
            self.run(plan, &mut *sequence, &[token], position, logits)
        };
        ahead::one_by_one(feed, token, position, steps, on_token)
    }

    /// Runs one step of a prepared plan alone, to compare devices: `buffers[i]` holds the bytes of the
    /// plan's buffer `i` before the step, all [`lily_plan::buffer::Buffer::bytes`] of them, and
    /// afterwards. Scratch buffers do not share memory here. Position and active rows are those in
    /// the control block's buffer.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device cannot do this, [`DeviceError::Memory`] when
    /// memory runs out, [`DeviceError::Lost`] when the device failed.
    ///
    /// # Panics
    /// When the buffers are not those of the plan, or their control block does not fit it.
    fn probe(&self, plan: PlanId, step: usize, buffers: &mut [Vec<u8>]) -> Result<(), DeviceError> {
        let _ = (plan, step, buffers);
        Err(DeviceError::Unsupported { what: "running a step alone".to_owned() })
    }

    /// Bytes of weights in device memory.
    fn weight_bytes(&self) -> u64;
}

/// The session buffers of one token timeline, made by [`LoadedModel::new_sequence`].
pub trait Sequence: Send {
    /// Back to the empty context: recurrent state and KV cache count as zeroed.
    fn reset(&mut self);
    /// Bytes held.
    fn bytes(&self) -> u64;
    /// For the device that made it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// What a caller could not foresee.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A weight could not be read.
    #[error("cannot read weight {name}")]
    Read {
        /// Canonical name.
        name: String,
        /// Cause.
        #[source]
        source: Box<lily_checkpoint::CheckpointError>,
    },
    /// Memory ran out.
    #[error("not enough memory for {what}: {bytes} bytes")]
    Memory {
        /// What was to be allocated.
        what: String,
        /// Size in bytes.
        bytes: u64,
    },
    /// The device cannot do this at all.
    #[error("the device does not support {what}")]
    Unsupported {
        /// What it lacks.
        what: String,
    },
    /// The device stopped working.
    #[error("the {device} device failed at step {step}: {message}")]
    Lost {
        /// Device kind.
        device: &'static str,
        /// Step name.
        step: String,
        /// What it reported.
        message: String,
    },
}
