//! A loaded model: weights, prepared plans, and the scratch memory that they share.

mod run;
mod trial;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lily_checkpoint::Checkpoint;
use lily_checkpoint::manifest::Manifest;
use lily_device::session::{SessionTable, own_sequence};
use lily_device::{DeviceError, LoadedModel, PlanId, Progress, Sequence, trusted};
use lily_kernels::limits::{self, Footprint};
use lily_kernels::lower::{self, Tuning};
use lily_plan::plan::Plan;
use lily_plan::valid::ValidPlan;
use objc2::rc::autoreleasepool;

use crate::MetalError;
use crate::arena::Arenas;
use crate::device::{GpuFacts, MetalDevice};
use crate::encoding::{CommandBuffer, command_buffers};
use crate::gate;
use crate::kernels::KernelStore;
use crate::launch::PreparedLaunch;
use crate::mapped::Mapped;
use crate::memory::{Heap, SharedArenas, SharedBuffer};
use crate::options::MetalOptions;
use crate::places::Places;
use crate::queue::Queue;
use crate::residency;
use crate::sequence::MetalSequence;
use crate::weights;

pub(crate) use trial::trial;

/// Weights in device memory and the plans prepared for them.
#[derive(Debug)]
pub(crate) struct MetalModel {
    manifest: Manifest,
    facts: Arc<GpuFacts>,
    options: MetalOptions,
    tuning: Tuning,
    queue: Queue,
    heap: Arc<Heap>,
    weights: Arc<SharedArenas>,
    kernels: KernelStore,
    session: Arc<SessionTable>,
    plans: Vec<PreparedPlan>,
    scratch: Arc<SharedBuffer>,
    /// Held during a run: scratch and ports belong to one at a time.
    running: Mutex<()>,
    /// The GPU did not answer once; what it still does to scratch and ports is unknown.
    silent: AtomicBool,
}

#[derive(Debug)]
struct PreparedPlan {
    plan: ValidPlan,
    /// By step.
    launches: Arc<[PreparedLaunch]>,
    commands: Vec<CommandBuffer>,
    places: Places,
    ports: Arc<SharedBuffer>,
}

impl MetalModel {
    /// Reads the weights of a checkpoint, or uses those of a `.lily` file where it is mapped.
    pub(crate) fn load(
        device: &MetalDevice,
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<Self, DeviceError> {
        let manifest = checkpoint.manifest();
        let weights = |heap: &Arc<Heap>| {
            if let Some(mapped) = Mapped::of(checkpoint, heap.cap()) {
                mapped.touch(manifest.bytes(), progress);
                return SharedArenas::mapped(heap, "weights", mapped).map_err(|e| e.at("load"));
            }
            filled(heap, manifest, |layout, buffers| {
                weights::fill(checkpoint, layout, buffers, progress)
            })
        };
        let tuning = Tuning { tensor_units: device.tensor_units(), ..Tuning::default() };
        MetalModel::new(device, manifest.clone(), tuning, weights)
    }

    /// A model whose weights `weights` puts into device memory.
    fn new(
        device: &MetalDevice,
        manifest: Manifest,
        tuning: Tuning,
        weights: impl FnOnce(&Arc<Heap>) -> Result<SharedArenas, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let at_load = |error: MetalError| error.at("load");
        let facts = Arc::clone(&device.facts);
        let queue = Queue::new(&device.raw, device.options.step_by_step).map_err(at_load)?;
        let total = Footprint::of(&manifest, &[]).weights;
        let set_bytes = residency::set_bytes(facts.limits.working_set_bytes, total);
        let set_bytes = set_bytes.min(facts.limits.buffer_bytes);
        let sets = !gate::is_paravirtual(&facts.name);
        let heap = Heap::new(device.raw.clone(), queue.raw().clone(), sets, set_bytes);
        let weights = weights(&heap)?;
        let scratch = Arc::new(heap.allocate("scratch", 0).map_err(at_load)?);
        Ok(MetalModel {
            manifest,
            facts,
            options: device.options,
            tuning,
            queue,
            heap,
            weights: Arc::new(weights),
            kernels: KernelStore::new(device.raw.clone()),
            session: Arc::default(),
            plans: Vec::new(),
            scratch,
            running: Mutex::new(()),
            silent: AtomicBool::new(false),
        })
    }

    fn prepare_plan(&mut self, plan: ValidPlan) -> Result<PlanId, MetalError> {
        self.check_footprint(&plan)?;
        let limits = self.facts.limits;
        let program = lower::lower(&plan, &self.manifest, &self.tuning)
            .map_err(|error| MetalError::Lower { message: error.to_string() })?;
        limits::check(&program, &plan, &self.manifest, &limits)?;
        self.kernels.load(&program, plan.plan(), &limits)?;
        let launches = program.launches.iter().map(|launch| {
            let pipeline = self.kernels.get(&launch.kernel).clone();
            PreparedLaunch::new(launch, pipeline, |id| self.weight(plan.plan(), id))
        });
        let launches = launches.collect();
        let session = trusted(self.session.with(plan.plan()));
        let places = Places::of(&plan, &session);
        let ports = Arc::new(self.heap.allocate("inputs and logits", places.port_bytes)?);
        if plan.arena_bytes() > self.scratch.len() {
            // The old memory first, so that both need not fit.
            self.scratch = Arc::new(self.heap.allocate("scratch", 0)?);
            self.scratch = Arc::new(self.heap.allocate("scratch", plan.arena_bytes())?);
        }
        let commands = command_buffers(&plan, self.options.step_by_step);
        if session != *self.session {
            self.session = Arc::new(session);
        }
        self.plans.push(PreparedPlan { plan, launches, commands, places, ports });
        Ok(PlanId(self.plans.len() - 1))
    }

    /// Refuses what could only run by paging.
    fn check_footprint(&self, plan: &ValidPlan) -> Result<(), MetalError> {
        let plans: Vec<_> = self.plans.iter().map(|p| &p.plan).chain([plan]).collect();
        let need = Footprint::of(&self.manifest, &plans);
        if need.excess(&self.facts.limits).is_none() {
            return Ok(());
        }
        let granted = self.facts.limits.working_set_bytes;
        let what = format!("weights, plans and a session (the GPU may hold {granted} bytes)");
        Err(MetalError::Memory { what, bytes: need.total() })
    }

    fn weight(&self, plan: &Plan, id: lily_plan::buffer::WeightId) -> usize {
        let name = &plan.weight(id).name;
        let position = self.manifest.position(name);
        position
            .unwrap_or_else(|| panic!("the plan names weight {name}, which the checkpoint lacks"))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sequence as this device's own, if it was made for the prepared plans.
    fn own<'s>(
        &self,
        sequence: &'s mut dyn Sequence,
    ) -> Result<&'s mut MetalSequence, DeviceError> {
        if self.silent.load(Ordering::Relaxed) {
            let message = "the GPU has not answered an earlier run".to_owned();
            return Err(DeviceError::Lost { device: "metal", step: "start".to_owned(), message });
        }
        own_sequence(sequence, "metal", |own: &MetalSequence| own.matches(&self.session))
    }
}

/// Memory for the weights of a manifest, which `fill` writes.
fn filled(
    heap: &Arc<Heap>,
    manifest: &Manifest,
    fill: impl FnOnce(&Arenas, Vec<&mut [u8]>) -> Result<(), DeviceError>,
) -> Result<SharedArenas, DeviceError> {
    let at_load = |error: MetalError| error.at("load");
    let overflow = || MetalError::Memory { what: "weights".to_owned(), bytes: u64::MAX };
    let layout = weights::layout(manifest, heap.cap()).ok_or_else(|| at_load(overflow()))?;
    let mut weights = SharedArenas::new(heap, "weights", layout).map_err(at_load)?;
    let SharedArenas { layout, buffers } = &mut weights;
    // SAFETY: no command knows the buffers yet.
    let bytes = buffers.iter_mut().map(|buffer| unsafe { buffer.bytes_mut() }).collect();
    fill(layout, bytes)?;
    Ok(weights)
}

impl LoadedModel for MetalModel {
    fn prepare(&mut self, plan: ValidPlan) -> Result<PlanId, DeviceError> {
        autoreleasepool(|_| self.prepare_plan(plan).map_err(|error| error.at("prepare")))
    }

    fn new_sequence(&self) -> Result<Box<dyn Sequence>, DeviceError> {
        let sequence = MetalSequence::new(&self.heap, Arc::clone(&self.session));
        Ok(Box::new(sequence.map_err(|error| error.at("new sequence"))?))
    }

    fn run(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        tokens: &[u32],
        position: usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let sequence = self.own(sequence)?;
        self.run_plan(&self.plans[plan.0], sequence, (tokens, position), logits)
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
        let sequence = self.own(sequence)?;
        let prepared = &self.plans[plan.0];
        self.run_plan_ahead(prepared, sequence, (token, position), steps, on_token)
    }

    fn probe(&self, plan: PlanId, step: usize, buffers: &mut [Vec<u8>]) -> Result<(), DeviceError> {
        self.probe_step(&self.plans[plan.0], step, buffers)
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.layout.bytes()
    }
}
