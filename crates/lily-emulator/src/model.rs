//! A loaded model: weights, prepared plans, one scratch arena.

use std::sync::{Arc, Mutex, PoisonError};

use lily_checkpoint::Checkpoint;
use lily_checkpoint::manifest::Manifest;
use lily_device::compare::control;
use lily_device::session::{SessionTable, own_sequence};
use lily_device::{DeviceError, LoadedModel, PlanId, Progress, Sequence, one_by_one, trusted};
use lily_kernels::launch::Launch;
use lily_kernels::lower;
use lily_plan::buffer::{Buffer, BufferId};
use lily_plan::op::NO_TOKEN;
use lily_plan::valid::{Placement, ValidPlan};

use crate::cache::{Entry, KernelCache};
use crate::compute::Random;
use crate::device::EmulatorOptions;
use crate::error::{EmulatorError, KIND};
use crate::kernels::Kernels;
use crate::memory::AlignedBytes;
use crate::sequence::EmulatorSequence;
use crate::step::{Span, StepRun, run_step};
use crate::weights::WeightStore;

/// Weights in memory and the plans prepared for them.
#[derive(Debug)]
pub struct EmulatorModel {
    manifest: Manifest,
    weights: WeightStore,
    options: EmulatorOptions,
    kernels: Kernels,
    session: Arc<SessionTable>,
    plans: Vec<PreparedPlan>,
    running: Mutex<Running>,
}

/// What a run needs to itself.
#[derive(Debug)]
struct Running {
    arena: AlignedBytes,
    random: Random,
}

#[derive(Debug)]
struct PreparedPlan {
    plan: ValidPlan,
    /// By step; `None` where it was left out.
    steps: Vec<Option<(Launch, Entry)>>,
    places: Vec<Place>,
    /// Inputs and outputs, by their order in the plan.
    ports: Mutex<Vec<AlignedBytes>>,
}

/// Where a plan's buffer lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Bytes from the start of the arena.
    Arena(u64),
    /// Index into the plan's ports.
    Port(usize),
    /// Index into the session table.
    Session(usize),
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EmulatorModel {
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
        cache: KernelCache,
        options: EmulatorOptions,
    ) -> Result<Self, DeviceError> {
        let running = Running { arena: AlignedBytes::zeroed(0), random: Random(options.seed) };
        Ok(EmulatorModel {
            manifest: checkpoint.manifest().clone(),
            weights: WeightStore::load(checkpoint, progress)?,
            kernels: Kernels::new(cache, options.edits.clone()),
            options,
            session: Arc::default(),
            plans: Vec::new(),
            running: Mutex::new(running),
        })
    }

    /// The launch of a step, unless it was left out.
    pub fn launch(&self, plan: PlanId, step: usize) -> Option<&Launch> {
        self.plans[plan.0].steps[step].as_ref().map(|(launch, _)| launch)
    }

    /// As [`LoadedModel::prepare`], for probing: steps that `wanted` refuses are left out, and so are
    /// those without a kernel or with one that does not compile; these reasons are returned.
    pub fn prepare_steps(
        &mut self,
        plan: ValidPlan,
        wanted: &dyn Fn(usize, &Launch) -> bool,
    ) -> (PlanId, Vec<EmulatorError>) {
        let (mut launches, mut reasons) = (Vec::new(), Vec::new());
        for index in 0..plan.plan().steps.len() {
            match lower::step(&plan, &self.manifest, &self.options.tuning, index) {
                Ok(launch) => launches.push(Some(launch).filter(|l| wanted(index, l))),
                Err(error) => {
                    launches.push(None);
                    reasons.push(error.into());
                }
            }
        }
        let (id, errors) = self.prepare_launches(plan, launches);
        reasons.extend(errors);
        (id, reasons)
    }

    fn prepare_launches(
        &mut self,
        plan: ValidPlan,
        launches: Vec<Option<Launch>>,
    ) -> (PlanId, Vec<EmulatorError>) {
        let wanted = launches.iter().flatten().map(|launch| &launch.kernel);
        let errors = self.kernels.require(wanted);
        let with_entry = |launch: Launch| {
            let entry = self.kernels.entry(&launch.kernel)?;
            Some((launch, entry))
        };
        let steps = launches.into_iter().map(|launch| launch.and_then(with_entry)).collect();
        let session = trusted(self.session.with(plan.plan()));
        let mut ports = Vec::new();
        let place = |(buffer, placement): (&Buffer, &Option<Placement>)| {
            if let Some(index) = session.index_of(buffer) {
                return Place::Session(index);
            }
            if let Some(placement) = placement {
                return Place::Arena(placement.offset);
            }
            ports.push(AlignedBytes::zeroed(buffer.bytes() as usize));
            Place::Port(ports.len() - 1)
        };
        let places = plan.plan().buffers.iter().zip(plan.placements()).map(place).collect();
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if plan.arena_bytes() > running.arena.len() as u64 {
            running.arena = AlignedBytes::zeroed(plan.arena_bytes() as usize);
        }
        if session != *self.session {
            self.session = Arc::new(session);
        }
        self.plans.push(PreparedPlan { plan, steps, places, ports: Mutex::new(ports) });
        (PlanId(self.plans.len() - 1), errors)
    }

    /// A sequence as this model's.
    fn own<'s>(
        &self,
        sequence: &'s mut dyn Sequence,
    ) -> Result<&'s mut EmulatorSequence, DeviceError> {
        own_sequence(sequence, KIND, |own: &EmulatorSequence| own.matches(&self.session))
    }

    /// Runs all steps of a plan on what its inputs hold.
    fn replay(
        &self,
        prepared: &PreparedPlan,
        running: &mut Running,
        ports: &mut [AlignedBytes],
        sequence: &mut EmulatorSequence,
        rows: usize,
    ) -> Result<(), DeviceError> {
        let Running { arena, random } = running;
        let plan = prepared.plan.plan();
        let spans = prepared.spans(arena, ports, sequence);
        for stage in prepared.plan.stages() {
            let mut stage = stage.clone();
            random.shuffle(&mut stage);
            for index in stage {
                let (launch, entry) = prepared.step(index)?;
                let step = StepRun {
                    plan,
                    step: &plan.steps[index],
                    launch,
                    entry,
                    weights: &self.weights,
                    rows,
                    seed: random.next(),
                    workers: self.options.workers,
                };
                // SAFETY: arena, ports and session buffers are borrowed exclusively until the end of
                // this function, and nothing else is reached through the spans.
                unsafe { run_step(&step, &spans) }?;
            }
        }
        Ok(())
    }
}

impl PreparedPlan {
    /// Where each buffer lies during a run.
    fn spans(
        &self,
        arena: &mut AlignedBytes,
        ports: &mut [AlignedBytes],
        sequence: &mut EmulatorSequence,
    ) -> Vec<Span> {
        let buffers = self.plan.plan().buffers.iter().zip(&self.places);
        let span = |(buffer, place): (&Buffer, &Place)| match *place {
            Place::Session(index) => Span::of(sequence.buffer(index)),
            Place::Port(index) => Span::of(&mut ports[index]),
            Place::Arena(offset) => Span::part(arena, offset, buffer.bytes()),
        };
        buffers.map(span).collect()
    }

    fn step(&self, index: usize) -> Result<&(Launch, Entry), DeviceError> {
        let left_out = || DeviceError::Unsupported {
            what: format!("step {}", self.plan.plan().steps[index].name),
        };
        self.steps[index].as_ref().ok_or_else(left_out)
    }

    fn write_input(&self, ports: &mut [AlignedBytes], tokens: &[u32], position: usize) {
        let ids = self.plan.plan().ports;
        let control = [position as u32, tokens.len() as u32];
        for (id, values) in [(ids.control, &control[..]), (ids.tokens, tokens)] {
            for (word, value) in ports[self.port(id)].chunks_exact_mut(4).zip(values) {
                word.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }

    fn port(&self, id: BufferId) -> usize {
        match self.places[id.0 as usize] {
            Place::Port(index) => index,
            _ => panic!("{} is no port", self.plan.plan().buffer(id).name),
        }
    }
}

impl LoadedModel for EmulatorModel {
    fn prepare(&mut self, plan: ValidPlan) -> Result<PlanId, DeviceError> {
        let program = lower::lower(&plan, &self.manifest, &self.options.tuning);
        let program = program.map_err(EmulatorError::from)?;
        let launches = program.launches.into_iter().map(Some).collect();
        let (id, errors) = self.prepare_launches(plan, launches);
        errors.into_iter().next().map_or(Ok(id), |error| Err(error.into()))
    }

    fn new_sequence(&self) -> Result<Box<dyn Sequence>, DeviceError> {
        Ok(Box::new(EmulatorSequence::new(Arc::clone(&self.session))))
    }

    fn run(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        tokens: &[u32],
        position: usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let prepared = &self.plans[plan.0];
        let sequence = self.own(sequence)?;
        let plan = prepared.plan.plan();
        trusted(plan.check_run(tokens.len(), position));
        let (mut running, mut ports) = (lock(&self.running), lock(&prepared.ports));
        prepared.write_input(&mut ports, tokens, position);
        self.replay(prepared, &mut running, &mut ports, sequence, tokens.len())?;
        let all = ports[prepared.port(plan.ports.logits)].to_f32();
        logits.clear();
        logits.extend_from_slice(&all[..plan.logits_len(tokens.len())]);
        Ok(())
    }

    fn run_ahead(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        token: u32,
        position: usize,
        steps: usize,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, DeviceError> {
        let prepared = &self.plans[plan.0];
        let Some(ring) = prepared.plan.plan().ring() else {
            let run = |token, position, logits: &mut Vec<f32>| {
                self.run(plan, &mut *sequence, &[token], position, logits)
            };
            return one_by_one(run, token, position, steps, on_token);
        };
        let sequence = self.own(sequence)?;
        if steps == 0 {
            return Ok(0);
        }
        trusted(prepared.plan.plan().check_run(1, position + steps - 1));
        let (mut running, mut ports) = (lock(&self.running), lock(&prepared.ports));
        prepared.write_input(&mut ports, &[token], position);
        for step in 0..steps {
            self.replay(prepared, &mut running, &mut ports, sequence, 1)?;
            let slots = ports[prepared.port(ring.buffer)].to_u32();
            let token = slots[ring.slot(position + step)];
            if !on_token(token) || token == NO_TOKEN {
                return Ok(step + 1);
            }
        }
        Ok(steps)
    }

    fn probe(&self, plan: PlanId, step: usize, buffers: &mut [Vec<u8>]) -> Result<(), DeviceError> {
        let prepared = &self.plans[plan.0];
        let plan = prepared.plan.plan();
        let (_, rows) = control(plan, buffers);
        let (launch, entry) = prepared.step(step)?;
        let step = StepRun {
            plan,
            step: &plan.steps[step],
            launch,
            entry,
            weights: &self.weights,
            rows,
            seed: lock(&self.running).random.next(),
            workers: self.options.workers,
        };
        let mut memory: Vec<_> = buffers.iter().map(|bytes| AlignedBytes::of(bytes)).collect();
        let spans: Vec<Span> = memory.iter_mut().map(Span::of).collect();
        // SAFETY: the copies live until the end of this function and are reached only by the step.
        unsafe { run_step(&step, &spans) }?;
        for (bytes, memory) in buffers.iter_mut().zip(&memory) {
            bytes.copy_from_slice(memory);
        }
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }
}
