//! Small plans for tests.
#![allow(dead_code, reason = "every test binary uses its own part")]

use lily_plan::buffer::{BufferClass, Elem, Region, WeightDecl};
use lily_plan::op::{Add, Embed, Linear, Op, RmsNorm};
use lily_plan::plan::{Phase, Plan, PlanBuilder, Ports};

/// Records plans of one row whose buffers are `f32` vectors.
pub(crate) struct Toy {
    pub(crate) plan: PlanBuilder,
    pub(crate) control: Region,
    pub(crate) tokens: Region,
    pub(crate) logits: Region,
    steps: usize,
}

impl Toy {
    /// A recording whose logits have `vocab` elements, filled by the first step.
    pub(crate) fn new(vocab: usize) -> Self {
        let mut plan = PlanBuilder::new();
        let control = plan.buffer("control", Elem::U32, 2, BufferClass::Input);
        let tokens = plan.buffer("tokens", Elem::U32, 1, BufferClass::Input);
        let logits = plan.buffer("logits", Elem::F32, vocab as u64, BufferClass::Output);
        let mut toy = Toy { plan, control, tokens, logits: logits.clone(), steps: 0 };
        toy.fill(&logits);
        toy
    }

    pub(crate) fn scratch(&mut self, name: &str, len: u64) -> Region {
        self.plan.buffer(name, Elem::F32, len, BufferClass::Scratch)
    }

    pub(crate) fn state(&mut self, name: &str, len: u64) -> Region {
        self.plan.buffer(name, Elem::F32, len, BufferClass::State)
    }

    fn push(&mut self, op: Op) -> usize {
        self.plan.push(format!("step {}", self.steps), op);
        self.steps += 1;
        self.steps - 1
    }

    fn weight(&mut self, rows: usize, cols: usize) -> lily_plan::buffer::WeightId {
        let name = format!("weight {rows} {cols}");
        let bytes = 4 * (rows * cols) as u64;
        self.plan.weight(WeightDecl { name, n_experts: 1, rows, cols, bytes })
    }

    /// Writes the region, reads only the tokens.
    pub(crate) fn fill(&mut self, out: &Region) -> usize {
        let dim = elements(out);
        let table = self.weight(3, dim);
        let (tokens, out) = (self.tokens.clone(), out.clone());
        self.push(Op::Embed(Embed { tokens, table, out, rows: 1, dim }))
    }

    /// Writes `out`, reads `x`.
    pub(crate) fn copy(&mut self, x: &Region, out: &Region) -> usize {
        let dim = elements(out);
        let weight = self.weight(dim, 1);
        let (x, out) = (x.clone(), out.clone());
        self.push(Op::RmsNorm(RmsNorm { x, weight, out, rows: 1, dim, eps: 1e-6 }))
    }

    /// Updates `x`, reads `y`.
    pub(crate) fn add(&mut self, x: &Region, y: &Region) -> usize {
        let (x, y, dim) = (x.clone(), y.clone(), elements(x));
        self.push(Op::Add(Add { x, y, rows: 1, dim }))
    }

    /// Writes or updates `out`, reads `x` of another length.
    pub(crate) fn linear(&mut self, x: &Region, out: &Region, accumulate: bool) -> usize {
        let (n, k) = (elements(out), elements(x));
        let weight = self.weight(n, k);
        let (x, out) = (x.clone(), out.clone());
        self.push(Op::Linear(Linear { x, weight, out, rows: 1, n, k, accumulate }))
    }

    pub(crate) fn finish(self) -> Plan {
        let Toy { plan, control, tokens, logits, .. } = self;
        let ports = Ports { control: control.buffer, tokens: tokens.buffer, logits: logits.buffer };
        plan.finish(Phase::Decode, 1, 8, ports)
    }
}

/// Elements `range` of an `f32` buffer.
pub(crate) fn part(region: &Region, range: std::ops::Range<u64>) -> Region {
    let start = region.bytes.start;
    Region { buffer: region.buffer, bytes: start + 4 * range.start..start + 4 * range.end }
}

pub(crate) fn elements(region: &Region) -> usize {
    usize::try_from((region.bytes.end - region.bytes.start) / 4).expect("a small region")
}
