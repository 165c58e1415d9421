//! The validator's seal: a [`ValidPlan`] can only come from [`ValidPlan::new`].

use crate::buffer::{BufferClass, BufferId, Region};
use crate::check;
use crate::error::PlanError;
use crate::hazard::{Hazard, Tracker};
use crate::memory;
use crate::plan::Plan;
use crate::stage;

/// Where a scratch buffer lies in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Bytes from the arena's start; a multiple of 64.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A plan whose shapes, ranges, hazards and memory were checked. Devices trust it.
///
/// With scratch buffers at their placements, a device may run the steps in stage order, or in any
/// order that respects [`ValidPlan::edges`]. The recorded program order is *not* such an order:
/// placements follow stages.
#[derive(Clone, Debug)]
pub struct ValidPlan {
    plan: Plan,
    hazards: Vec<Hazard>,
    /// Step indices by stage.
    stages: Vec<Vec<usize>>,
    /// By buffer index; `None` for buffers that are not scratch.
    placements: Vec<Option<Placement>>,
    arena_bytes: u64,
    live_bytes: u64,
    edges: Vec<Hazard>,
}

impl ValidPlan {
    /// Checks a recorded plan, finds its hazards and stages, and places its scratch buffers.
    ///
    /// # Errors
    /// The first broken rule, with the step and the operand that break it.
    pub fn new(plan: Plan) -> Result<Self, PlanError> {
        check::plan(&plan)?;
        let hazards = data_hazards(&plan)?;
        let stages = stage::stages(plan.steps.len(), &hazards);
        let lifetimes = memory::lifetimes(&plan, &stages);
        let (placements, arena_bytes) = memory::place(&plan, &lifetimes);
        memory::check(&plan, &lifetimes, &placements)?;
        let live_bytes = memory::live_peak(&plan, &lifetimes);
        let edges = placed_hazards(&plan, &stages, &placements);
        Ok(ValidPlan { plan, hazards, stages, placements, arena_bytes, live_bytes, edges })
    }

    /// The recorded plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
    /// Data hazards between steps, by program order, as if every buffer had its own memory.
    pub fn hazards(&self) -> &[Hazard] {
        &self.hazards
    }
    /// What a device that builds a graph has to keep: the data hazards and, on top of them, the
    /// reuse of arena bytes ([`crate::hazard::HazardKind::Reuse`]). Sorted, without duplicates.
    pub fn edges(&self) -> &[Hazard] {
        &self.edges
    }
    /// Step indices by stage: steps of one stage may overlap, a barrier stands between stages.
    pub fn stages(&self) -> &[Vec<usize>] {
        &self.stages
    }
    /// Where each scratch buffer lies, by buffer index; `None` also for scratch nobody touches.
    pub fn placements(&self) -> &[Option<Placement>] {
        &self.placements
    }
    /// Size of the scratch arena in bytes.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }
    /// The most scratch bytes that live in one stage: a lower bound of [`ValidPlan::arena_bytes`].
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
}

/// Checks every step and follows the bytes in program order.
fn data_hazards(plan: &Plan) -> Result<Vec<Hazard>, PlanError> {
    let mut trackers = vec![Tracker::default(); plan.buffers.len()];
    let mut hazards = Vec::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let signature = step.op.signature();
        check::step(plan, &step.name, &signature)?;
        for operand in signature.operands.iter().filter(|o| o.access.reads()) {
            let Region { buffer, bytes } = operand.region;
            let tracker = &mut trackers[buffer.0 as usize];
            let named = plan.buffer(*buffer);
            if matches!(named.class, BufferClass::Scratch | BufferClass::Output)
                && let Some(bytes) = tracker.unwritten(bytes)
            {
                let (step, operand) = (step.name.clone(), operand.name);
                let buffer = named.name.clone();
                return Err(PlanError::Uninitialised { step, operand, buffer, bytes });
            }
            tracker.read((index, *buffer), bytes, &mut hazards);
        }
        for operand in signature.operands.iter().filter(|o| o.access.writes()) {
            let Region { buffer, bytes } = operand.region;
            trackers[buffer.0 as usize].write((index, *buffer), bytes, &mut hazards);
        }
    }
    for (buffer, tracker) in plan.buffers.iter().zip(&trackers) {
        if buffer.class == BufferClass::Output
            && let Some(bytes) = tracker.unwritten(&(0..buffer.bytes()))
        {
            return Err(PlanError::UnwrittenOutput { buffer: buffer.name.clone(), bytes });
        }
    }
    hazards.sort_unstable();
    hazards.dedup();
    Ok(hazards)
}

/// Follows the bytes once more in stage order, scratch at its place in the arena.
fn placed_hazards(
    plan: &Plan,
    stages: &[Vec<usize>],
    placements: &[Option<Placement>],
) -> Vec<Hazard> {
    let mut own = vec![Tracker::default(); plan.buffers.len()];
    let mut arena = Tracker::default();
    let mut edges = Vec::new();
    for &index in stages.iter().flatten() {
        let signature = plan.steps[index].op.signature();
        let accesses = signature.operands.iter();
        let reads = accesses.clone().filter(|o| o.access.reads()).map(|o| (o.region, false));
        let writes = accesses.filter(|o| o.access.writes()).map(|o| (o.region, true));
        for (region, is_write) in reads.chain(writes) {
            let BufferId(id) = region.buffer;
            let (tracker, base) = match placements[id as usize] {
                Some(placement) => (&mut arena, placement.offset),
                None => (&mut own[id as usize], 0),
            };
            let bytes = base + region.bytes.start..base + region.bytes.end;
            let touch = (index, region.buffer);
            match is_write {
                true => tracker.write(touch, &bytes, &mut edges),
                false => tracker.read(touch, &bytes, &mut edges),
            }
        }
    }
    edges.sort_unstable();
    edges.dedup();
    edges
}
