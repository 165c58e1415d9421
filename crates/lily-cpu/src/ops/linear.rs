//! Operations that are products with weight matrices: tasks are ranges of output tiles.

use std::ops::Range;
use std::sync::Arc;

use lily_plan::buffer::{Region, WeightId};
use lily_plan::op;

use super::{Kernel, Part, Run, Workspace, tasks_by_work};
use crate::matrix::{Matrix, Mode, OutRows, RowIndex, XRows};
use crate::pool::SharedSlice;
use crate::weights::Weights;

fn matrix(
    weights: &Weights<'_>,
    id: WeightId,
    n_experts: usize,
    n: usize,
    k: usize,
) -> Arc<Matrix> {
    let matrix = weights.matrix(id);
    let shape = matrix.shape();
    assert_eq!((shape.n_experts, shape.rows, shape.cols), (n_experts, n, k), "shape of {id:?}");
    matrix
}

/// Rows of a region that several tasks write, each its own columns.
///
/// # Safety
/// As for [`OutRows::new`].
unsafe fn out_rows<'a>(
    run: &Run<'a>,
    region: &Region,
    rows: usize,
    n: usize,
    index: RowIndex<'a>,
) -> OutRows<'a> {
    let elements = rows * n;
    // SAFETY: the location was checked for `elements` floats of initialised (zeroed) memory that
    // outlives the run; exclusivity is the caller's promise.
    unsafe {
        let shared = SharedSlice::from_raw_parts(run.memory.locate(region, 0..elements), elements);
        OutRows::new(shared, n, index)
    }
}

pub(super) struct Embed {
    op: op::Embed,
    table: Arc<Matrix>,
}

impl Embed {
    pub(super) fn new(op: op::Embed, weights: &Weights<'_>) -> Self {
        let table = weights.matrix(op.table);
        assert_eq!(table.shape().cols, op.dim, "width of the embedding");
        Embed { op, table }
    }
}

impl Kernel for Embed {
    fn tasks(&self, run: &Run<'_>) -> usize {
        tasks_by_work(run, run.active.rows, self.op.dim)
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let (op, rows) = (&self.op, part.of(run.active.rows));
        // SAFETY: nothing writes the tokens in this stage.
        let tokens = unsafe { run.memory.read::<u32>(&op.tokens, rows.clone()) };
        // SAFETY: these rows are this task's own.
        let out =
            unsafe { run.memory.write::<f32>(&op.out, rows.start * op.dim..rows.end * op.dim) };
        for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(op.dim)) {
            self.table.row_to_f32(0, token as usize, out);
        }
    }
}

/// Tiles of the `index`-th of equal pieces of `per_task` tiles.
fn tiles_of(matrix: &Matrix, per_task: usize, index: usize) -> Range<usize> {
    let n_tiles = matrix.n_tiles();
    (index * per_task).min(n_tiles)..((index + 1) * per_task).min(n_tiles)
}

pub(super) struct Linear {
    op: op::Linear,
    weight: Arc<Matrix>,
}

impl Linear {
    pub(super) fn new(op: op::Linear, weights: &Weights<'_>) -> Self {
        let weight = matrix(weights, op.weight, 1, op.n, op.k);
        Linear { op, weight }
    }
}

impl Kernel for Linear {
    fn tasks(&self, run: &Run<'_>) -> usize {
        self.weight.n_tiles().div_ceil(self.weight.tiles_per_task(1, run.threads))
    }

    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace) {
        let (op, rows) = (&self.op, run.rows(self.op.rows));
        let index = RowIndex::Contiguous { first: 0, count: rows };
        // SAFETY: the plan's hazards exclude writers of `x` in this stage.
        let x = unsafe { run.memory.read::<f32>(&op.x, 0..rows * op.k) };
        // SAFETY: tasks have disjoint tiles, so disjoint columns.
        let out = unsafe { out_rows(run, &op.out, rows, op.n, index) };
        let per_task = self.weight.tiles_per_task(1, run.threads);
        let mode = if op.accumulate { Mode::Accumulate } else { Mode::Overwrite };
        let tiles = tiles_of(&self.weight, per_task, part.index);
        let x = XRows::new(x, op.k, index);
        self.weight.multiply(0, tiles, &x, &out, mode, &mut workspace.matrix);
    }
}

pub(super) struct GatedLinear {
    op: op::GatedLinear,
    gate: Arc<Matrix>,
    up: Arc<Matrix>,
}

impl GatedLinear {
    pub(super) fn new(op: op::GatedLinear, weights: &Weights<'_>) -> Self {
        let gate = matrix(weights, op.gate, 1, op.n, op.k);
        let up = matrix(weights, op.up, 1, op.n, op.k);
        GatedLinear { op, gate, up }
    }
}

impl Kernel for GatedLinear {
    fn tasks(&self, run: &Run<'_>) -> usize {
        self.gate.n_tiles().div_ceil(self.gate.tiles_per_task(2, run.threads))
    }

    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace) {
        let (op, rows) = (&self.op, run.rows(self.op.rows));
        let index = RowIndex::Contiguous { first: 0, count: rows };
        // SAFETY: the plan's hazards exclude writers of `x` in this stage.
        let x = unsafe { run.memory.read::<f32>(&op.x, 0..rows * op.k) };
        // SAFETY: tasks have disjoint tiles, so disjoint columns.
        let out = unsafe { out_rows(run, &op.out, rows, op.n, index) };
        let tiles = tiles_of(&self.gate, self.gate.tiles_per_task(2, run.threads), part.index);
        let x = XRows::new(x, op.k, index);
        Matrix::multiply_gated(&self.gate, &self.up, 0, tiles, &x, &out, &mut workspace.matrix);
    }
}

/// The slots of a run by expert, as [`op::GroupByExpert`] left them.
struct Routing<'a> {
    offsets: &'a [u32],
    order: &'a [u32],
}

impl<'a> Routing<'a> {
    fn read(
        run: &Run<'a>,
        offsets: &Region,
        order: &Region,
        n_experts: usize,
        top_k: usize,
    ) -> Self {
        // SAFETY: an earlier stage wrote both; the plan's hazards exclude writers in this one.
        unsafe {
            Routing {
                offsets: run.memory.read(offsets, 0..n_experts + 1),
                order: run.memory.read(order, 0..run.active.rows * top_k),
            }
        }
    }

    /// Experts that have slots, with them.
    fn used(&self) -> impl Iterator<Item = (usize, &'a [u32])> {
        let (offsets, order) = (self.offsets, self.order);
        (0..offsets.len() - 1)
            .map(move |expert| {
                (expert, &order[offsets[expert] as usize..offsets[expert + 1] as usize])
            })
            .filter(|(_, slots)| !slots.is_empty())
    }

    /// The expert, its slots, and the piece of the matrix that task `index` takes when each used
    /// expert is cut into `pieces`.
    fn piece(&self, index: usize, pieces: usize) -> (usize, &'a [u32], usize) {
        let (expert, slots) = self.used().nth(index / pieces).expect("as many as were counted");
        (expert, slots, index % pieces)
    }
}

/// Tiles per task and pieces per expert when `used` experts run `products` products each.
fn pieces(matrix: &Matrix, used: usize, products: usize, threads: usize) -> (usize, usize) {
    let per_task = matrix.tiles_per_task(used.max(1) * products, threads);
    (per_task, matrix.n_tiles().div_ceil(per_task))
}

pub(super) struct ExpertLinear {
    op: op::ExpertLinear,
    weight: Arc<Matrix>,
}

impl ExpertLinear {
    pub(super) fn new(op: op::ExpertLinear, weights: &Weights<'_>) -> Self {
        let weight = matrix(weights, op.weight, op.n_experts, op.n, op.k);
        ExpertLinear { op, weight }
    }

    fn routing<'a>(&self, run: &Run<'a>) -> Routing<'a> {
        let op = &self.op;
        Routing::read(run, &op.offsets, &op.order, op.n_experts, op.top_k)
    }
}

impl Kernel for ExpertLinear {
    fn tasks(&self, run: &Run<'_>) -> usize {
        let used = self.routing(run).used().count();
        used * pieces(&self.weight, used, 1, run.threads).1
    }

    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace) {
        let (op, routing) = (&self.op, self.routing(run));
        let (per_task, pieces) = pieces(&self.weight, routing.used().count(), 1, run.threads);
        let (expert, slots, piece) = routing.piece(part.index, pieces);
        let slot_rows = run.active.rows * op.top_k;
        let x_rows = if op.per_slot { slot_rows } else { run.active.rows };
        let divisor = if op.per_slot { 1 } else { op.top_k as u32 };
        // SAFETY: the plan's hazards exclude writers of `x` in this stage.
        let x = unsafe { run.memory.read::<f32>(&op.x, 0..x_rows * op.k) };
        let out_index = RowIndex::Listed { list: slots, divisor: 1 };
        // SAFETY: a slot has one expert, and tasks of one expert have disjoint tiles.
        let out = unsafe { out_rows(run, &op.out, slot_rows, op.n, out_index) };
        let x = XRows::new(x, op.k, RowIndex::Listed { list: slots, divisor });
        let tiles = tiles_of(&self.weight, per_task, piece);
        self.weight.multiply(expert, tiles, &x, &out, Mode::Overwrite, &mut workspace.matrix);
    }
}

pub(super) struct ExpertGatedLinear {
    op: op::ExpertGatedLinear,
    gate: Arc<Matrix>,
    up: Arc<Matrix>,
}

impl ExpertGatedLinear {
    pub(super) fn new(op: op::ExpertGatedLinear, weights: &Weights<'_>) -> Self {
        let gate = matrix(weights, op.gate, op.n_experts, op.n, op.k);
        let up = matrix(weights, op.up, op.n_experts, op.n, op.k);
        ExpertGatedLinear { op, gate, up }
    }

    fn routing<'a>(&self, run: &Run<'a>) -> Routing<'a> {
        let op = &self.op;
        Routing::read(run, &op.offsets, &op.order, op.n_experts, op.top_k)
    }
}

impl Kernel for ExpertGatedLinear {
    fn tasks(&self, run: &Run<'_>) -> usize {
        let used = self.routing(run).used().count();
        used * pieces(&self.gate, used, 2, run.threads).1
    }

    fn task(&self, run: &Run<'_>, part: Part, workspace: &mut Workspace) {
        let (op, routing) = (&self.op, self.routing(run));
        let (per_task, pieces) = pieces(&self.gate, routing.used().count(), 2, run.threads);
        let (expert, slots, piece) = routing.piece(part.index, pieces);
        // SAFETY: the plan's hazards exclude writers of `x` in this stage.
        let x = unsafe { run.memory.read::<f32>(&op.x, 0..run.active.rows * op.k) };
        let out_index = RowIndex::Listed { list: slots, divisor: 1 };
        // SAFETY: a slot has one expert, and tasks of one expert have disjoint tiles.
        let out = unsafe { out_rows(run, &op.out, run.active.rows * op.top_k, op.n, out_index) };
        let x = XRows::new(x, op.k, RowIndex::Listed { list: slots, divisor: op.top_k as u32 });
        let tiles = tiles_of(&self.gate, per_task, piece);
        let scratch = &mut workspace.matrix;
        Matrix::multiply_gated(&self.gate, &self.up, expert, tiles, &x, &out, scratch);
    }
}
