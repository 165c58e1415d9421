//! Runs of a prepared plan.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lily_device::compare::control;
use lily_device::{DeviceError, trusted};
use lily_plan::buffer::BufferId;
use lily_plan::op::NO_TOKEN;
use lily_plan::plan::Plan;

use crate::MetalError;
use crate::encoding::Command;
use crate::launch::{Memory, PreparedLaunch};
use crate::memory::{SharedArenas, SharedBuffer};
use crate::model::{MetalModel, PreparedPlan};
use crate::places::{Place, Places};
use crate::queue::Submitted;
use crate::sequence::MetalSequence;

/// Steps that are submitted before the host has seen the token of the first of them: enough to hide
/// the host's part, few enough that a stop wastes little.
const AHEAD: usize = 2;

/// Everything that the commands of a run may touch; lives until the last of them has ended.
struct Keep {
    places: Places,
    launches: Arc<[PreparedLaunch]>,
    weights: Arc<SharedArenas>,
    scratch: Arc<SharedBuffer>,
    ports: Arc<SharedBuffer>,
    session: Option<Arc<SharedArenas>>,
}

impl Keep {
    fn memory(&self) -> Memory<'_> {
        Memory {
            places: &self.places,
            weights: &self.weights,
            scratch: &self.scratch,
            ports: &self.ports,
            session: self.session.as_deref(),
        }
    }

    /// Bytes of a port, checked to be one.
    fn port(&self, id: BufferId) -> u64 {
        match self.places.buffers[id.0 as usize] {
            Place::Port(offset) => offset,
            place => panic!("buffer {} is at {place:?}", id.0),
        }
    }

    /// Control block and tokens, as a run finds them.
    ///
    /// # Safety
    /// No command that touches the ports may be in flight.
    unsafe fn write_input(&self, plan: &Plan, tokens: &[u32], position: usize) {
        let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        let position = u32::try_from(position).expect("the plan's capacity fits");
        let control = bytes(&[position, tokens.len() as u32]);
        // SAFETY: as the caller promises; the run holds the model's lock, so no other thread does.
        unsafe {
            self.ports.write(self.port(plan.ports.control), &control);
            self.ports.write(self.port(plan.ports.tokens), &bytes(tokens));
        }
    }
}

/// Steps that run while the host is elsewhere. They are waited for before the lock of their run is
/// given up, also on an error or a panic of the caller's function: the next run writes the same ports.
/// (A step whose encoding panics is lost with its command buffers: that is a fault of this program.)
struct Flight<'m> {
    model: &'m MetalModel,
    steps: VecDeque<Submitted>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        for step in self.steps.drain(..) {
            // A device that has fallen silent is not waited for again: the model refuses every later
            // run, and what the device may still touch is kept by its command buffers.
            if self.model.silent.load(Ordering::Relaxed) {
                return;
            }
            // The first failure is the one that was reported.
            drop(self.model.wait(step));
        }
    }
}

impl MetalModel {
    fn keep(&self, prepared: &PreparedPlan, sequence: &MetalSequence) -> Arc<Keep> {
        Arc::new(Keep {
            places: prepared.places.clone(),
            launches: Arc::clone(&prepared.launches),
            weights: Arc::clone(&self.weights),
            scratch: Arc::clone(&self.scratch),
            ports: Arc::clone(&prepared.ports),
            session: Some(Arc::clone(sequence.memory())),
        })
    }

    /// One run, and its logits.
    pub(super) fn run_plan(
        &self,
        prepared: &PreparedPlan,
        sequence: &mut MetalSequence,
        (tokens, position): (&[u32], usize),
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        trusted(prepared.plan.plan().check_run(tokens.len(), position));
        let _running = self.lock();
        let keep = self.keep(prepared, sequence);
        // SAFETY: the lock is held, and every run waits for its commands before it lets go.
        unsafe { keep.write_input(prepared.plan.plan(), tokens, position) };
        let submitted = self.submit(prepared, &keep, tokens.len())?;
        self.wait(submitted)?;
        prepared.read_logits(&keep, tokens.len(), logits);
        Ok(())
    }

    /// Decode steps that feed each other on the device; see [`lily_device::LoadedModel::run_ahead`].
    pub(super) fn run_plan_ahead(
        &self,
        prepared: &PreparedPlan,
        sequence: &mut MetalSequence,
        (token, position): (u32, usize),
        steps: usize,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, DeviceError> {
        let Some(ring) = prepared.plan.plan().ring() else {
            let what = "steps ahead with a plan that does not choose its tokens".to_owned();
            return Err(DeviceError::Unsupported { what });
        };
        if steps == 0 {
            return Ok(0);
        }
        trusted(prepared.plan.plan().check_run(1, position + steps - 1));
        let _running = self.lock();
        let keep = self.keep(prepared, sequence);
        // SAFETY: the lock is held, and every run waits for its commands before it lets go.
        unsafe { keep.write_input(prepared.plan.plan(), &[token], position) };
        let mut flight = Flight { model: self, steps: VecDeque::new() };
        let (mut fed, mut seen) = (0, 0);
        let mut more = true;
        loop {
            // A slot must be read before the step that writes it anew is submitted.
            while more && fed < steps && flight.steps.len() < (AHEAD + 1).min(ring.slots) {
                flight.steps.push_back(self.submit(prepared, &keep, 1)?);
                fed += 1;
            }
            let Some(oldest) = flight.steps.pop_front() else { return Ok(fed) };
            self.wait(oldest)?;
            if more {
                let slot = keep.port(ring.buffer) + 4 * ring.slot(position + seen) as u64;
                let mut bytes = [0; 4];
                // SAFETY: the step that wrote the slot has completed, and no step in flight writes it:
                // there are fewer of them than slots.
                unsafe { keep.ports.read(slot, &mut bytes) };
                let token = u32::from_ne_bytes(bytes);
                seen += 1;
                more = on_token(token) && token != NO_TOKEN && seen < steps;
            }
        }
    }

    /// One step alone, on memory of its own; see [`lily_device::LoadedModel::probe`].
    pub(super) fn probe_step(
        &self,
        prepared: &PreparedPlan,
        step: usize,
        buffers: &mut [Vec<u8>],
    ) -> Result<(), DeviceError> {
        let plan = prepared.plan.plan();
        assert_eq!(buffers.len(), plan.buffers.len(), "one array of bytes per buffer");
        let places = Places::apart(plan);
        let at_probe = |error: MetalError| error.at(&plan.steps[step].name);
        let ports = self.heap.allocate("a step alone", places.port_bytes).map_err(at_probe)?;
        let keep = Keep {
            places,
            launches: Arc::clone(&prepared.launches),
            weights: Arc::clone(&self.weights),
            scratch: Arc::clone(&self.scratch),
            ports: Arc::new(ports),
            session: None,
        };
        let offsets: Vec<u64> =
            (0..plan.buffers.len() as u32).map(|i| keep.port(BufferId(i))).collect();
        for (bytes, &offset) in buffers.iter().zip(&offsets) {
            // SAFETY: nobody else knows the memory.
            unsafe { keep.ports.write(offset, bytes) };
        }
        let (_, rows) = control(plan, buffers);
        let keep = Arc::new(keep);
        let mut submitted = Submitted::new();
        let (label, owner) =
            (plan.steps[step].name.clone(), Arc::clone(&keep) as Arc<dyn Any + Send + Sync>);
        let _running = self.lock();
        let encoded = self.queue.submit(&mut submitted, label, owner, |encoder| {
            // SAFETY: `keep` lives until the command buffer has ended; the memory has all buffers of
            // the plan in their full size.
            unsafe { keep.launches[step].encode(encoder.raw(), &keep.memory(), rows as u32) };
        });
        self.wait(submitted)?;
        encoded.map_err(at_probe)?;
        for (bytes, &offset) in buffers.iter_mut().zip(&offsets) {
            // SAFETY: the command has completed, and nobody else knows the memory.
            unsafe { keep.ports.read(offset, bytes) };
        }
        Ok(())
    }

    /// Submits a plan's command buffers; they run while later ones are still encoded.
    fn submit(
        &self,
        prepared: &PreparedPlan,
        keep: &Arc<Keep>,
        rows: usize,
    ) -> Result<Submitted, DeviceError> {
        let rows = u32::try_from(rows).expect("a plan has fewer rows than 2^32");
        let plan = prepared.plan.plan();
        let mut submitted = Submitted::new();
        for commands in &prepared.commands {
            let owner = Arc::clone(keep) as Arc<dyn Any + Send + Sync>;
            let label = commands.label(plan);
            let encoded = self.queue.submit(&mut submitted, label, owner, |encoder| {
                for command in &commands.commands {
                    match *command {
                        Command::Barrier => encoder.barrier(),
                        // SAFETY: `keep` lives until the command buffer has ended; its memory is
                        // placed for this plan.
                        Command::Dispatch(step) => unsafe {
                            keep.launches[step].encode(encoder.raw(), &keep.memory(), rows);
                        },
                    }
                }
            });
            if let Err(error) = encoded {
                // The first ones are on their way; their own failure says more.
                self.wait(submitted)?;
                return Err(error.at(&commands.label(plan)));
            }
        }
        Ok(submitted)
    }

    fn wait(&self, submitted: Submitted) -> Result<(), DeviceError> {
        submitted.wait().map_err(|error| {
            if matches!(error, MetalError::Silent { .. }) {
                self.silent.store(true, Ordering::Relaxed);
            }
            error.at("run")
        })
    }
}

impl PreparedPlan {
    fn read_logits(&self, keep: &Keep, rows: usize, logits: &mut Vec<f32>) {
        let plan = self.plan.plan();
        logits.resize(plan.logits_len(rows), 0.0);
        // SAFETY: the run's commands have completed, and its lock is still held.
        unsafe { keep.ports.read_floats(keep.port(plan.ports.logits), logits) };
    }
}
