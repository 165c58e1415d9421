//! A loaded model: weights, prepared plans, and one scratch arena that they share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use lily_device::compare::control;
use lily_device::session::{SessionTable, own_sequence};
use lily_device::{DeviceError, LoadedModel, PlanId, Sequence, trusted};
use lily_plan::buffer::BufferId;
use lily_plan::valid::ValidPlan;

use crate::executor::{Executor, OpTime, PreparedStep};
use crate::memory::{ALIGN, AlignedBytes, Memory, Span};
use crate::ops::{Active, Run, compile};
use crate::pool::Pool;
use crate::sequence::CpuSequence;
use crate::simd::Isa;
use crate::weights::WeightStore;

/// Weights in memory and the plans prepared for them.
pub struct CpuModel {
    weights: WeightStore,
    isa: Isa,
    pool: Arc<Pool>,
    session: Arc<SessionTable>,
    plans: Vec<PreparedPlan>,
    running: Mutex<Running>,
}

/// What a run needs to itself.
struct Running {
    executor: Executor,
    arena: AlignedBytes,
    spans: Vec<Span>,
}

/// Where a plan's buffer lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Bytes from the start of the arena.
    Arena(u64),
    /// Bytes from the start of the plan's inputs and outputs.
    Ports(u64),
    /// Index into the session table.
    Session(usize),
}

struct PreparedPlan {
    plan: ValidPlan,
    steps: Vec<PreparedStep>,
    places: Vec<Place>,
    ports: AlignedBytes,
}

impl std::fmt::Debug for CpuModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuModel")
            .field("isa", &self.isa)
            .field("plans", &self.plans.len())
            .finish()
    }
}

impl CpuModel {
    pub(crate) fn new(
        weights: WeightStore,
        isa: Isa,
        pool: Arc<Pool>,
    ) -> Result<Self, DeviceError> {
        let running = Running {
            executor: Executor::new(pool.threads()),
            arena: AlignedBytes::zeroed("scratch", 0)?,
            spans: Vec::new(),
        };
        Ok(CpuModel {
            weights,
            isa,
            pool,
            session: Arc::default(),
            plans: Vec::new(),
            running: Mutex::new(running),
        })
    }

    /// Starts or stops taking times by kind of operation; while on, steps of one stage do not
    /// overlap, so runs are a little slower.
    pub fn set_profiling(&self, on: bool) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.executor.set_profiling(on);
    }

    /// Times by kind of operation since profiling was started, in order of first use.
    pub fn profile(&self) -> Vec<OpTime> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).executor.profile()
    }

    /// Runs a plan in the given stages, which must respect its dependencies.
    fn run_stages(
        &self,
        plan: PlanId,
        stages: &[Vec<usize>],
        sequence: &mut dyn Sequence,
        (tokens, position): (&[u32], usize),
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let prepared = &self.plans[plan.0];
        let made_for = |own: &CpuSequence| own.matches(&self.session);
        let sequence = own_sequence(sequence, "cpu", made_for)?;
        trusted(prepared.plan.plan().check_run(tokens.len(), position));
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Running { executor, arena, spans } = &mut *running;
        prepared.locate(arena, sequence, spans);
        // SAFETY: the spans are disjoint and aligned, arena, ports and session buffers live until
        // the end of this function, and the lock and `&mut` sequence keep others from them.
        let memory = unsafe { Memory::new(spans) };
        prepared.write_input(memory, tokens, position);
        let active = Active { position, rows: tokens.len() };
        let run = Run { memory, active, threads: self.pool.threads(), isa: self.isa };
        let ran = catch_unwind(AssertUnwindSafe(|| {
            executor.run(&self.pool, &prepared.steps, stages, &run);
        }));
        if let Err(payload) = ran {
            let step = executor.blamed().map_or("start", |step| &prepared.steps[step].name);
            let message = message(&*payload);
            return Err(DeviceError::Lost { device: "cpu", step: step.to_owned(), message });
        }
        prepared.read_logits(memory, tokens.len(), logits);
        Ok(())
    }
}

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

impl PreparedPlan {
    /// Fills `spans` with the places of all buffers.
    fn locate(&self, arena: &AlignedBytes, sequence: &mut CpuSequence, spans: &mut Vec<Span>) {
        spans.clear();
        for (buffer, place) in self.plan.plan().buffers.iter().zip(&self.places) {
            let (memory, offset) = match *place {
                Place::Session(index) => {
                    spans.push(sequence.span(index));
                    continue;
                }
                Place::Arena(offset) => (arena, offset),
                Place::Ports(offset) => (&self.ports, offset),
            };
            assert!(
                offset + buffer.bytes() <= memory.len() as u64,
                "{} is placed outside",
                buffer.name
            );
            // The assertion keeps the offset inside the allocation.
            let base = memory.base().wrapping_add(offset as usize);
            spans.push(Span { base, bytes: buffer.bytes() });
        }
    }

    fn write_input(&self, memory: Memory<'_>, tokens: &[u32], position: usize) {
        let ports = self.plan.plan().ports;
        // SAFETY: no task runs yet.
        unsafe {
            let control = memory.write::<u32>(&self.region(ports.control), 0..2);
            control.copy_from_slice(&[position as u32, tokens.len() as u32]);
            memory.write(&self.region(ports.tokens), 0..tokens.len()).copy_from_slice(tokens);
        }
    }

    fn read_logits(&self, memory: Memory<'_>, rows: usize, logits: &mut Vec<f32>) {
        let plan = self.plan.plan();
        let len = plan.logits_len(rows);
        // SAFETY: all tasks have ended.
        let values = unsafe { memory.read::<f32>(&self.region(plan.ports.logits), 0..len) };
        logits.clear();
        logits.extend_from_slice(values);
    }

    fn region(&self, id: BufferId) -> lily_plan::buffer::Region {
        lily_plan::buffer::Region { buffer: id, bytes: 0..self.plan.plan().buffer(id).bytes() }
    }
}

impl LoadedModel for CpuModel {
    fn prepare(&mut self, plan: ValidPlan) -> Result<PlanId, DeviceError> {
        let session = trusted(self.session.with(plan.plan()));
        let weights = self.weights.of(plan.plan());
        let steps =
            plan.plan().steps.iter().map(|step| {
                Ok(PreparedStep::new(&step.name, &step.op, compile(&step.op, &weights)?))
            });
        let steps = steps.collect::<Result<Vec<_>, DeviceError>>()?;
        let mut port_bytes = 0;
        let places =
            plan.plan().buffers.iter().zip(plan.placements()).map(|(buffer, placement)| {
                if let Some(index) = session.index_of(buffer) {
                    return Place::Session(index);
                }
                if let Some(placement) = placement {
                    return Place::Arena(placement.offset);
                }
                let offset = port_bytes;
                port_bytes += buffer.bytes().next_multiple_of(ALIGN as u64);
                Place::Ports(offset)
            });
        let places = places.collect();
        let ports = AlignedBytes::zeroed("inputs and logits", port_bytes)?;
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if plan.arena_bytes() > running.arena.len() as u64 {
            running.arena = AlignedBytes::zeroed("scratch", plan.arena_bytes())?;
        }
        running.executor.reserve(plan.stages().iter().map(Vec::len).max().unwrap_or(0));
        running.spans.reserve(plan.plan().buffers.len());
        if session != *self.session {
            self.session = Arc::new(session);
        }
        self.plans.push(PreparedPlan { plan, steps, places, ports });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn new_sequence(&self) -> Result<Box<dyn Sequence>, DeviceError> {
        Ok(Box::new(CpuSequence::new(Arc::clone(&self.session))?))
    }

    fn run(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        tokens: &[u32],
        position: usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let stages = self.plans[plan.0].plan.stages();
        self.run_stages(plan, stages, sequence, (tokens, position), logits)
    }

    fn probe(&self, plan: PlanId, step: usize, buffers: &mut [Vec<u8>]) -> Result<(), DeviceError> {
        let prepared = &self.plans[plan.0];
        let (position, rows) = control(prepared.plan.plan(), buffers);
        let active = Active { position, rows };
        let copies = buffers.iter().map(|bytes| AlignedBytes::copy_of(bytes));
        let mut copies = copies.collect::<Result<Vec<_>, _>>()?;
        let span = |copy: &AlignedBytes| Span { base: copy.base(), bytes: copy.len() as u64 };
        let spans: Vec<Span> = copies.iter().map(span).collect();
        // SAFETY: the copies are aligned, disjoint, outlive the run and are reached only by it.
        let memory = unsafe { Memory::new(&spans) };
        let run = Run { memory, active, threads: self.pool.threads(), isa: self.isa };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            running.executor.run(&self.pool, &prepared.steps, &[vec![step]], &run);
        }));
        if let Err(payload) = ran {
            let step = prepared.steps[step].name.clone();
            return Err(DeviceError::Lost { device: "cpu", step, message: message(&*payload) });
        }
        for (bytes, copy) in buffers.iter_mut().zip(&mut copies) {
            bytes.copy_from_slice(copy.bytes_mut());
        }
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }
}

#[cfg(test)]
mod tests;
