//! The validator's seal: a [`ValidPlan`] can only come from [`ValidPlan::new`].

use crate::plan::Plan;

/// Where a scratch buffer lies in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Bytes from the arena's start; a multiple of 64.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A plan whose shapes, ranges, hazards and memory were checked. Devices trust it.
#[derive(Clone, Debug)]
pub struct ValidPlan {
    plan: Plan,
    /// Step indices by stage.
    stages: Vec<Vec<usize>>,
    /// By buffer index; `None` for buffers that are not scratch.
    placements: Vec<Option<Placement>>,
    arena_bytes: u64,
}

impl ValidPlan {
    /// The recorded plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
    /// Step indices by stage: steps of one stage may overlap, a barrier stands between stages.
    pub fn stages(&self) -> &[Vec<usize>] {
        &self.stages
    }
    /// Where each scratch buffer lies, by buffer index.
    pub fn placements(&self) -> &[Option<Placement>] {
        &self.placements
    }
    /// Size of the scratch arena in bytes.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }
}
