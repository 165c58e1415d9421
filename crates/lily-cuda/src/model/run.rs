//! Runs of a prepared plan.

use std::sync::{MutexGuard, PoisonError};

use cudarc::driver::CudaStream;
use lily_device::session::own_sequence;
use lily_device::{DeviceError, PlanId, Sequence, trusted};
use lily_plan::op::NO_TOKEN;

use crate::error::{CudaError, driver};
use crate::model::ports::Ports;
use crate::model::{CudaModel, PreparedPlan};
use crate::options::Submission;
use crate::sequence::CudaSequence;

impl CudaModel {
    /// One run, and its logits.
    pub(super) fn run_plan(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        (tokens, position): (&[u32], usize),
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let sequence = self.own(sequence)?;
        let prepared = &self.plans[plan.0];
        trusted(prepared.plan.plan().check_run(tokens.len(), position));
        let n_logits = prepared.plan.plan().logits_len(tokens.len());
        let _running = self.lock();
        let mut ports = prepared.ports();
        self.context.bind_to_thread().map_err(driver("cuCtxSetCurrent")).map_err(start)?;
        let _drain = Drain(&self.stream);
        ports.send(tokens, position, &self.stream).map_err(start)?;
        self.submit(plan, sequence)?;
        ports.fetch(n_logits, &self.stream).map_err(start)?;
        self.wait(prepared)?;
        ports.logits(n_logits, logits);
        Ok(())
    }

    /// Decode steps that feed each other on the device; see [`lily_device::LoadedModel::run_ahead`].
    pub(super) fn run_plan_ahead(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        (token, position): (u32, usize),
        steps: usize,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, DeviceError> {
        let sequence = self.own(sequence)?;
        let prepared = &self.plans[plan.0];
        if steps == 0 {
            return Ok(0);
        }
        trusted(prepared.plan.plan().check_run(1, position + steps - 1));
        let _running = self.lock();
        let mut ports = prepared.ports();
        self.context.bind_to_thread().map_err(driver("cuCtxSetCurrent")).map_err(start)?;
        let _drain = Drain(&self.stream);
        ports.send(&[token], position, &self.stream).map_err(start)?;
        let ring = ports.ring.as_ref().expect("the caller has asked for it");
        let within = |error: CudaError| error.at(prepared.label());
        let (mut fed, mut seen, mut more) = (0, 0, true);
        while more {
            while fed < steps && fed - seen < ring.flight() {
                self.submit(plan, sequence)?;
                ring.mark(fed, &self.stream).map_err(within)?;
                fed += 1;
            }
            let token = ring.take(seen, position + seen).map_err(within)?;
            seen += 1;
            more = on_token(token) && token != NO_TOKEN && seen < steps;
        }
        self.wait(prepared)?;
        Ok(fed)
    }

    /// The sequence as this device's own, if it was made for the prepared plans.
    fn own<'s>(&self, sequence: &'s mut dyn Sequence) -> Result<&'s mut CudaSequence, DeviceError> {
        let made_for = |own: &CudaSequence| own.matches(&self.session);
        let own = own_sequence(sequence, "cuda", made_for)?;
        match own.failed.take() {
            Some(error) => Err(error),
            None => Ok(own),
        }
    }

    /// Submits a plan's steps.
    fn submit(&self, plan: PlanId, sequence: &CudaSequence) -> Result<(), DeviceError> {
        let checked = self.options.submission == Submission::Checked;
        let executable = &sequence.executables[plan.0];
        // SAFETY: weights and arena live as long as the model, ports as long as the plan, session
        // buffers as long as the sequence, whose `drop` waits for the stream; the lock that every
        // caller holds keeps other runs away.
        unsafe { executable.submit(&self.stream, checked) }
            .map_err(|(step, error)| error.at(step.unwrap_or(self.plans[plan.0].label())))
    }

    /// Waits for everything submitted.
    fn wait(&self, prepared: &PreparedPlan) -> Result<(), DeviceError> {
        let waited = self.stream.synchronize().map_err(driver("cuStreamSynchronize"));
        waited.map_err(|error| error.at(prepared.label()))
    }
}

/// Waits for everything submitted before the lock of a run is given up, also on an error or a panic of
/// the caller's function: the next run writes the same pinned memory.
struct Drain<'a>(&'a CudaStream);

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        // A failure was reported by the run, or will be by the next.
        let _ = self.0.synchronize();
    }
}

fn start(error: CudaError) -> DeviceError {
    error.at("start")
}

impl PreparedPlan {
    /// Whether its steps choose the next token by themselves.
    pub(super) fn has_ring(&self) -> bool {
        self.ports().ring.is_some()
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In place of a step's name where only the plan is known; `checked` submission finds the step.
    fn label(&self) -> &'static str {
        use lily_plan::plan::Phase;
        match self.plan.plan().phase {
            Phase::Prefill => "somewhere in prefill",
            Phase::Decode => "somewhere in decode",
            Phase::Score => "somewhere in score",
        }
    }
}
