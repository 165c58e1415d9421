//! A loaded model: weights, prepared plans, and one scratch arena that they share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaStream};
use lily_checkpoint::manifest::Manifest;
use lily_device::session::SessionTable;
use lily_device::{DeviceError, LoadedModel, PlanId, Sequence, trusted};
use lily_kernels::launch::Program;
use lily_kernels::lower::lower;
use lily_plan::buffer::BufferClass;
use lily_plan::valid::ValidPlan;

use crate::ahead;
use crate::compile::Compiler;
use crate::device::Chip;
use crate::error::{CudaError, driver};
use crate::graph::Executable;
use crate::kernels::{self, KernelFacts, KernelStore};
use crate::launch::PreparedLaunch;
use crate::memory::{Address, DeviceMemory};
use crate::options::{CudaOptions, Submission};
use crate::order::Order;
use crate::sequence::CudaSequence;
use crate::weights::WeightStore;

mod ports;
mod probe;
mod ring;
mod run;
mod trace;

pub use trace::StepTrace;

use ports::Ports;
use trace::Records;

/// Weights in device memory and the plans prepared for them.
#[derive(Debug)]
pub struct CudaModel {
    manifest: Manifest,
    weights: Arc<WeightStore>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    options: CudaOptions,
    chip: Chip,
    kernels: KernelStore,
    session: Arc<SessionTable>,
    plans: Vec<PreparedPlan>,
    arena: DeviceMemory,
    /// Held during a run: the stream and the ports belong to one at a time.
    running: Mutex<()>,
}

/// Size of a plan as it is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanFacts {
    /// Kernels.
    pub steps: usize,
    /// Stages: the longest chain of steps that wait for each other.
    pub stages: usize,
    /// Edges of the graph.
    pub edges: usize,
    /// Edges of the plan, before those that follow from others are left out.
    pub hazards: usize,
}

/// Where a plan's buffer lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Bytes from the start of the arena.
    Arena(u64),
    /// In the plan's inputs and outputs.
    Port(Address),
    /// Index into the session table.
    Session(usize),
    /// Nowhere: no step touches it.
    Unused,
}

#[derive(Debug)]
struct PreparedPlan {
    plan: ValidPlan,
    launches: Vec<PreparedLaunch>,
    order: Order,
    places: Vec<Place>,
    ports: Mutex<Ports>,
    records: Option<Records>,
}

impl CudaModel {
    pub(crate) fn new(
        manifest: Manifest,
        weights: Arc<WeightStore>,
        context: Arc<CudaContext>,
        options: CudaOptions,
        chip: Chip,
    ) -> Result<Self, CudaError> {
        let compiler = Compiler::new(
            &chip.arch(),
            &options.cache,
            &kernels::defines(&options.tuning, options.trace),
        )?;
        Ok(CudaModel {
            manifest,
            weights,
            stream: context.new_stream().map_err(driver("cuStreamCreate"))?,
            kernels: KernelStore::new(Arc::clone(&context), compiler),
            options,
            chip,
            session: Arc::default(),
            plans: Vec::new(),
            arena: DeviceMemory::zeroed(&context, "scratch", 0)?,
            context,
            running: Mutex::new(()),
        })
    }

    /// A model without plans over the same weights, for measuring other options against these.
    /// [`CudaOptions::ordinal`] does not count: the weights are where they are.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::NoCompiler`].
    pub fn with_options(&self, options: CudaOptions) -> Result<CudaModel, CudaError> {
        let (weights, context) = (Arc::clone(&self.weights), Arc::clone(&self.context));
        CudaModel::new(self.manifest.clone(), weights, context, options, self.chip.clone())
    }

    /// What the compiler made of every kernel of the prepared plans, by name.
    pub fn kernels(&self) -> Vec<KernelFacts> {
        self.kernels.facts()
    }

    /// What a prepared plan became.
    pub fn plan(&self, plan: PlanId) -> PlanFacts {
        let prepared = &self.plans[plan.0];
        PlanFacts {
            steps: prepared.launches.len(),
            stages: prepared.plan.stages().len(),
            edges: prepared.order.edges(),
            hazards: prepared.plan.edges().len(),
        }
    }

    fn lower(&self, plan: &ValidPlan) -> Result<Program, CudaError> {
        let tuning = self.options.tuning();
        let tuning = match self.chip.has_clusters() {
            true => tuning,
            false => tuning.without_clusters(),
        };
        Ok(lower(plan, &self.manifest, &tuning)?)
    }

    fn prepare_plan(&mut self, plan: ValidPlan) -> Result<PlanId, CudaError> {
        let program = self.lower(&plan)?;
        // Steps of many rows run one after the other, each with what suits it best.
        let evenly = plan.plan().rows == 1 && self.chip.shares_evenly();
        let carveout = self.options.carveout.filter(|_| evenly);
        self.kernels.load(&program, carveout)?;
        let rows = u32::try_from(plan.plan().rows).expect("a plan has fewer rows than 2^32");
        let records = self.options.trace.then(|| Records::new(&self.context, &program, rows));
        let records = records.transpose()?;
        let mut launches = self.launches(&plan, &program, records.as_ref())?;
        let session = trusted(self.session.with(plan.plan()));
        let ports = Ports::new(&self.context, plan.plan())?;
        let places = places(&plan, &session, &ports);
        if plan.arena_bytes() > self.arena.len() {
            // The old arena first, so that both need not fit. The graphs of sequences made before know
            // its address: a new table refuses them, even where the allocation fails.
            self.session = Arc::new(SessionTable::clone(&self.session));
            self.arena = DeviceMemory::zeroed(&self.context, "scratch", 0)?;
            self.arena = DeviceMemory::zeroed(&self.context, "scratch", plan.arena_bytes())?;
        }
        let order = match self.options.submission {
            Submission::Chain => Order::chain(&plan),
            _ => Order::of(&plan),
        };
        if evenly {
            let bytes = self.chip.shared_bytes / 100 * u32::from(self.options.spread);
            for launch in &mut launches {
                launch.spread(bytes, self.chip.multiprocessors)?;
            }
        }
        if plan.plan().rows == 1 && self.options.ahead > 0 {
            let place = |name: &str| self.weights.place(name);
            let (plan, distance) = (plan.plan(), self.options.ahead);
            ahead::ask(&mut launches, &order, plan, &program, &self.manifest, distance, place);
        }
        // A new table even where nothing was added: sequences made before lack this plan, and the
        // arena may have moved.
        self.session = Arc::new(session);
        let ports = Mutex::new(ports);
        self.plans.push(PreparedPlan { plan, launches, order, places, ports, records });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn launches(
        &self,
        plan: &ValidPlan,
        program: &Program,
        records: Option<&Records>,
    ) -> Result<Vec<PreparedLaunch>, CudaError> {
        let plan = plan.plan();
        assert_eq!(plan.steps.len(), program.launches.len(), "one launch per step");
        let rows = u32::try_from(plan.rows).expect("a plan has fewer rows than 2^32");
        let weight = |id| self.weights.address(&plan.weight(id).name);
        let steps = plan.steps.iter().zip(&program.launches).enumerate();
        steps
            .map(|(index, (step, launch))| {
                let function = self.kernels.get(&launch.kernel);
                let records = records.map(|records| records.of(index));
                PreparedLaunch::new(&step.name, launch, rows, function, &self.chip, weight, records)
            })
            .collect()
    }

    fn sequence(&self) -> Result<CudaSequence, DeviceError> {
        let (stream, table) = (Arc::clone(&self.stream), Arc::clone(&self.session));
        let mut sequence = CudaSequence::new(&self.context, stream, table)?;
        for prepared in &self.plans {
            let executable = self.executable(prepared, &sequence).map_err(|e| e.at("start"))?;
            sequence.executables.push(executable);
        }
        Ok(sequence)
    }

    fn executable(
        &self,
        prepared: &PreparedPlan,
        sequence: &CudaSequence,
    ) -> Result<Executable, CudaError> {
        let buffers = prepared.plan.plan().buffers.iter().zip(&prepared.places);
        let buffers: Vec<Address> = buffers
            .map(|(buffer, place)| match *place {
                Place::Arena(offset) => self.arena.range(offset, buffer.bytes()),
                Place::Port(address) => address,
                Place::Session(index) => sequence.address(index),
                Place::Unused => 0,
            })
            .collect();
        let CudaOptions { submission, programmatic, .. } = self.options;
        let PreparedPlan { launches, order, .. } = prepared;
        let programmatic = programmatic.of_plan(prepared.plan.plan().rows);
        Executable::new(&self.context, launches, order, &buffers, submission, programmatic)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds a place for every buffer of a plan.
fn places(plan: &ValidPlan, session: &SessionTable, ports: &Ports) -> Vec<Place> {
    let buffers = plan.plan().buffers.iter().zip(plan.placements()).enumerate();
    buffers
        .map(|(index, (buffer, placement))| {
            if let Some(index) = session.index_of(buffer) {
                return Place::Session(index);
            }
            match placement {
                Some(placement) => Place::Arena(placement.offset),
                None if buffer.class == BufferClass::Scratch => Place::Unused,
                None => Place::Port(ports.address(index)),
            }
        })
        .collect()
}

impl LoadedModel for CudaModel {
    fn prepare(&mut self, plan: ValidPlan) -> Result<PlanId, DeviceError> {
        self.prepare_plan(plan).map_err(|error| error.at("prepare"))
    }

    fn new_sequence(&self) -> Result<Box<dyn Sequence>, DeviceError> {
        let _running = self.lock();
        Ok(Box::new(self.sequence()?))
    }

    fn run(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        tokens: &[u32],
        position: usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        self.run_plan(plan, sequence, (tokens, position), logits)
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
        if self.plans[plan.0].has_ring() {
            return self.run_plan_ahead(plan, sequence, (token, position), steps, on_token);
        }
        let feed = |token, position, logits: &mut Vec<f32>| {
            self.run(plan, &mut *sequence, &[token], position, logits)
        };
        lily_device::one_by_one(feed, token, position, steps, on_token)
    }

    fn probe(&self, plan: PlanId, step: usize, buffers: &mut [Vec<u8>]) -> Result<(), DeviceError> {
        self.probe_step(plan, step, buffers)
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }
}
