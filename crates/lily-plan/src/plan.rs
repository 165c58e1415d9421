//! Plans: what a builder records and what a device may run.

use crate::buffer::{Buffer, BufferClass, BufferId, Elem, Region, WeightDecl, WeightId};
use crate::op::Op;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A chunk of prompt tokens; logits of the last active row.
    Prefill,
    /// One token per session; its logits.
    Decode,
    /// A chunk of tokens; logits of every row (perplexity).
    Score,
}

/// One operation and its name in dumps, such as `layers.3.attn.rope`.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name.
    pub name: String,
    /// Operation.
    pub op: Op,
}

/// The well-known buffers through which a run is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// `U32[2]`, input: position of the first row, number of active rows (1 ..= rows).
    pub control: BufferId,
    /// `U32[rows]`, input.
    pub tokens: BufferId,
    /// `F32[1, vocab]` (prefill, decode) or `F32[rows, vocab]` (score), output.
    pub logits: BufferId,
}

/// A recorded forward pass, in program order; not yet validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it is for.
    pub phase: Phase,
    /// Token rows it was built for.
    pub rows: usize,
    /// Tokens its KV cache holds.
    pub capacity: usize,
    /// Buffers, by [`BufferId`].
    pub buffers: Vec<Buffer>,
    /// Weights, by [`WeightId`].
    pub weights: Vec<WeightDecl>,
    /// Steps in program order.
    pub steps: Vec<Step>,
    /// Driving buffers.
    pub ports: Ports,
}

impl Plan {
    /// The buffer of that index.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
    /// The weight of that index.
    pub fn weight(&self, id: WeightId) -> &WeightDecl {
        &self.weights[id.0 as usize]
    }
}

/// Records a plan.
#[derive(Debug)]
pub struct PlanBuilder {
    buffers: Vec<Buffer>,
    weights: Vec<WeightDecl>,
    steps: Vec<Step>,
}

impl Default for PlanBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl PlanBuilder {
    /// An empty recording.
    pub fn new() -> Self {
        PlanBuilder { buffers: Vec::new(), weights: Vec::new(), steps: Vec::new() }
    }
    /// Adds a buffer and returns a region that covers it.
    pub fn buffer(
        &mut self,
        name: impl Into<String>,
        elem: Elem,
        len: u64,
        class: BufferClass,
    ) -> Region {
        let id = BufferId(u32::try_from(self.buffers.len()).expect("fewer than 2^32 buffers"));
        let buffer = Buffer { name: name.into(), elem, len, class };
        let bytes = 0..buffer.bytes();
        self.buffers.push(buffer);
        Region { buffer: id, bytes }
    }
    /// Adds a weight, or returns the one already added under that name.
    pub fn weight(&mut self, decl: WeightDecl) -> WeightId {
        if let Some(i) = self.weights.iter().position(|w| w.name == decl.name) {
            return WeightId(i as u32);
        }
        self.weights.push(decl);
        WeightId(u32::try_from(self.weights.len() - 1).expect("fewer than 2^32 weights"))
    }
    /// Appends a step.
    pub fn push(&mut self, name: impl Into<String>, op: Op) {
        self.steps.push(Step { name: name.into(), op });
    }
    /// Ends the recording.
    pub fn finish(self, phase: Phase, rows: usize, capacity: usize, ports: Ports) -> Plan {
        let PlanBuilder { buffers, weights, steps } = self;
        Plan { phase, rows, capacity, buffers, weights, steps, ports }
    }
}
