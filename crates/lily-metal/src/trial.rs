//! A trial of the tensor units: the products of a made-up model of real size, step by step against
//! the simdgroup kernels.
//!
//! Compilers have turned correct tensor code into wrong numbers, and small probes did not show it: so
//! the rows are many and ragged, and so are the outputs.

use lily_checkpoint::manifest::{
    Dtype, Manifest, MatrixFormat, MatrixShape, WeightInfo, WeightShape,
};
use lily_checkpoint::packed::PackedMatrix;
use lily_device::compare::{Difference, Start};
use lily_plan::buffer::{BufferClass, Elem, Region, WeightDecl, WeightId};
use lily_plan::op::{
    Embed, ExpertGatedLinear, ExpertLinear, GatedLinear, GroupByExpert, Linear, Op, RmsNorm, Route,
};
use lily_plan::plan::{Phase, Plan, PlanBuilder, Ports};

use crate::arena::Arenas;

/// Token rows: no multiple of any block.
const ROWS: usize = 1000;
/// Width of the residual stream, as in the model that matters most.
const HIDDEN: usize = 2048;
/// Outputs that end within a block.
const OUTPUTS: usize = 2000;
const VOCAB: usize = 512;
const EXPERTS: usize = 16;
const TOP_K: usize = 4;
/// A width that is whole groups of 32, but not of 64.
const EXPERT_WIDTH: usize = 544;
const EXPERT_OUTPUTS: usize = 520;

/// How far a written operand may be from the simdgroup kernel's: bfloat outputs are rounded, sums may
/// be in another order.
const TOLERANCE: f64 = 4e-3;

/// Where the comparison starts.
pub(crate) const START: Start = Start { position: 0, rows: ROWS, vocab: VOCAB, seed: 7 };

/// The weights and the steps.
pub(crate) fn model() -> (Manifest, Plan) {
    let mut made = Made::default();
    let control = made.plan.buffer("control", Elem::U32, 2, BufferClass::Input);
    let tokens = made.plan.buffer("tokens", Elem::U32, ROWS as u64, BufferClass::Input);
    let logits = (ROWS * OUTPUTS) as u64;
    let logits = made.plan.buffer("logits", Elem::F32, logits, BufferClass::Output);
    let ports = Ports { control: control.buffer, tokens: tokens.buffer, logits: logits.buffer };
    let (rows, dim) = (ROWS, HIDDEN);

    let x = made.scratch("x", Elem::F32, HIDDEN);
    let table = made.matrix("table", 1, VOCAB, HIDDEN, 64);
    made.push("embed", Op::Embed(Embed { tokens, table, out: x.clone(), rows, dim }));
    let h = made.scratch("h", Elem::Bf16, HIDDEN);
    let weight = made.vector("norm", HIDDEN);
    let norm = RmsNorm { x: x.clone(), weight, out: h.clone(), rows, dim, eps: 1e-6 };
    made.push("norm", Op::RmsNorm(norm));
    made.linear("head", &h, &logits, (OUTPUTS, HIDDEN), false);

    let (gate, up) =
        (made.matrix("gate", 1, HIDDEN, HIDDEN, 64), made.matrix("up", 1, HIDDEN, HIDDEN, 64));
    let mid = made.scratch("mid", Elem::Bf16, HIDDEN);
    let (n, k) = (HIDDEN, HIDDEN);
    let gated = GatedLinear { x: h.clone(), norm: None, gate, up, out: mid.clone(), rows, n, k };
    made.push("gated", Op::GatedLinear(gated));
    made.linear("down", &mid, &x, (HIDDEN, HIDDEN), true);
    made.experts(&h);
    let plan = made.plan.finish(Phase::Score, ROWS, ROWS, ports);
    (Manifest::new(made.weights), plan)
}

#[derive(Default)]
struct Made {
    plan: PlanBuilder,
    weights: Vec<WeightInfo>,
}

impl Made {
    fn experts(&mut self, h: &Region) {
        let (rows, n_experts, top_k) = (ROWS, EXPERTS, TOP_K);
        let scores = self.scratch("router", Elem::F32, EXPERTS);
        self.linear("router", h, &scores, (EXPERTS, HIDDEN), false);
        let experts = self.scratch("experts", Elem::U32, TOP_K);
        let weights = self.scratch("expert weights", Elem::F32, TOP_K);
        let (logits, chosen) = (scores, experts.clone());
        let route = Route { logits, experts: chosen, weights, rows, n_experts, top_k };
        self.push("route", Op::Route(route));
        let len = EXPERTS as u64 + 1;
        let offsets = self.plan.buffer("offsets", Elem::U32, len, BufferClass::Scratch);
        let order = self.scratch("order", Elem::U32, TOP_K);
        let (starts, slots) = (offsets.clone(), order.clone());
        let group = GroupByExpert { experts, offsets, order, rows, n_experts, top_k };
        self.push("group", Op::GroupByExpert(group));

        let gate = self.matrix("experts.gate", EXPERTS, EXPERT_WIDTH, HIDDEN, 64);
        let up = self.matrix("experts.up", EXPERTS, EXPERT_WIDTH, HIDDEN, 64);
        let mid = self.scratch("expert mid", Elem::Bf16, TOP_K * EXPERT_WIDTH);
        let gated = ExpertGatedLinear {
            x: h.clone(),
            offsets: starts.clone(),
            order: slots.clone(),
            gate,
            up,
            out: mid.clone(),
            rows,
            n_experts,
            top_k,
            n: EXPERT_WIDTH,
            k: HIDDEN,
        };
        self.push("experts.gated", Op::ExpertGatedLinear(gated));
        let weight = self.matrix("experts.down", EXPERTS, EXPERT_OUTPUTS, EXPERT_WIDTH, 32);
        let out = self.scratch("expert out", Elem::F32, TOP_K * EXPERT_OUTPUTS);
        let down = ExpertLinear {
            x: mid,
            offsets: starts,
            order: slots,
            weight,
            out,
            rows,
            n_experts,
            top_k,
            n: EXPERT_OUTPUTS,
            k: EXPERT_WIDTH,
            per_slot: true,
        };
        self.push("experts.down", Op::ExpertLinear(down));
    }

    fn push(&mut self, name: &str, op: Op) {
        self.plan.push(name, op);
    }

    /// `width` elements per row.
    fn scratch(&mut self, name: &str, elem: Elem, width: usize) -> Region {
        self.plan.buffer(name, elem, (ROWS * width) as u64, BufferClass::Scratch)
    }

    fn linear(
        &mut self,
        name: &str,
        x: &Region,
        out: &Region,
        (n, k): (usize, usize),
        accumulate: bool,
    ) {
        let weight = self.matrix(name, 1, n, k, 64);
        let (x, out, rows) = (x.clone(), out.clone(), ROWS);
        self.push(name, Op::Linear(Linear { x, weight, out, rows, n, k, accumulate }));
    }

    fn matrix(
        &mut self,
        name: &str,
        n_experts: usize,
        rows: usize,
        cols: usize,
        group_size: usize,
    ) -> WeightId {
        let format = MatrixFormat::Affine { bits: 4, group_size, scale: Dtype::Bf16 };
        let shape = MatrixShape { n_experts, rows, cols, format };
        self.weight(name, WeightShape::Matrix(shape), (n_experts, rows, cols))
    }

    fn vector(&mut self, name: &str, len: usize) -> WeightId {
        let shape = WeightShape::Vector { len, dtype: Dtype::F32 };
        self.weight(name, shape, (1, len, 1))
    }

    fn weight(
        &mut self,
        name: &str,
        shape: WeightShape,
        (n_experts, rows, cols): (usize, usize, usize),
    ) -> WeightId {
        let (info, name) = (WeightInfo { name: name.to_owned(), shape }, name.to_owned());
        self.weights.push(info);
        self.plan.weight(WeightDecl { name, n_experts, rows, cols, bytes: shape.bytes() })
    }
}

/// Weights that give outputs of ordinary size: any words, scales of a few hundredths, biases that
/// centre the values.
pub(crate) fn fill(manifest: &Manifest, layout: &Arenas, mut buffers: Vec<&mut [u8]>) {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 32) as u32
    };
    for (info, slot) in manifest.weights().iter().zip(&layout.slots) {
        let start = slot.offset as usize;
        let bytes = &mut buffers[slot.buffer][start..start + slot.bytes as usize];
        let (words, sides) = match info.shape {
            WeightShape::Matrix(shape) => {
                let packed = PackedMatrix::of(&shape).expect("laid out before");
                bytes.split_at_mut(packed.side_offset as usize)
            }
            _ => {
                bytes.chunks_exact_mut(4).for_each(|v| v.copy_from_slice(&1.0f32.to_le_bytes()));
                continue;
            }
        };
        words.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&next().to_le_bytes()));
        for pair in sides.chunks_exact_mut(4) {
            let scale = 0.01 + 0.02 * (next() >> 16) as f32 / 65536.0;
            // The upper half of a float is a bfloat16.
            let upper = |value: f32| value.to_bits() >> 16;
            let word = upper(scale) | upper(-7.5 * scale) << 16;
            pair.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// What is wrong with a written operand, if anything is.
pub(crate) fn judge(difference: &Difference) -> Result<(), String> {
    let Difference { step, operand, relative, .. } = difference;
    // Also where it is not a number.
    if *relative <= TOLERANCE {
        return Ok(());
    }
    Err(format!("{operand} of {step} differs from the simdgroup kernel's by {relative:.1e}"))
}

#[cfg(test)]
mod tests {
    use lily_kernels::launch::{Launch, Module};
    use lily_kernels::limits::{Limits, check};
    use lily_kernels::lower::{Tuning, lower};
    use lily_plan::valid::ValidPlan;

    use super::*;

    #[test]
    fn every_tensor_kernel_is_tried_against_its_twin() {
        let (manifest, plan) = model();
        let plan = ValidPlan::new(plan).unwrap();
        let program = |tensor_units| {
            let tuning = Tuning { tensor_units, ..Tuning::default() };
            let program = lower(&plan, &manifest, &tuning).unwrap();
            check(&program, &plan, &manifest, &Limits::apple(1 << 30, 4 << 30)).unwrap();
            program
        };
        let (plain, tensor) = (program(false), program(true));
        let on_tensor = |launch: &&Launch| launch.kernel.module == Module::Tensor;
        assert_eq!(plain.launches.iter().filter(on_tensor).count(), 0);
        let mut tried: Vec<_> =
            tensor.launches.iter().filter(on_tensor).map(|launch| launch.kernel.template).collect();
        tried.sort_unstable();
        tried.dedup();
        assert_eq!(
            tried,
            [
                "tensor_expert_gated_matmul",
                "tensor_expert_matmul",
                "tensor_gated_matmul",
                "tensor_matmul"
            ]
        );
        for (plain, tensor) in plain.launches.iter().zip(&tensor.launches) {
            assert_eq!(plain.bindings, tensor.bindings);
            assert_eq!((plain.grid, plain.threads), (tensor.grid, tensor.threads));
        }
    }

    #[test]
    fn weights_are_filled_with_scales_and_biases_of_ordinary_size() {
        let (manifest, _) = model();
        let layout = crate::weights::layout(&manifest, 1 << 22).unwrap();
        let mut memory: Vec<Vec<u8>> =
            layout.buffers.iter().map(|&bytes| vec![0xff; bytes as usize]).collect();
        fill(&manifest, &layout, memory.iter_mut().map(Vec::as_mut_slice).collect());
        for (info, slot) in manifest.weights().iter().zip(&layout.slots) {
            let WeightShape::Matrix(shape) = info.shape else { continue };
            let side = PackedMatrix::of(&shape).unwrap().side_offset;
            let at = (slot.offset + side) as usize;
            let pair = u32::from_le_bytes(memory[slot.buffer][at..at + 4].try_into().unwrap());
            let (scale, bias) = (f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000));
            assert!((0.009..0.04).contains(&scale), "{}: {scale}", info.name);
            assert!((-0.3..-0.06).contains(&bias), "{}: {bias}", info.name);
        }
    }

    #[test]
    fn a_wrong_number_or_none_is_a_reason_that_names_the_step() {
        let difference = |relative| Difference {
            step: "experts.down".to_owned(),
            op: "expert_linear",
            operand: "out",
            elem: Elem::F32,
            elements: 1,
            unequal: 1,
            relative,
            largest: relative,
        };
        assert_eq!(judge(&difference(1e-3)), Ok(()));
        for relative in [0.1, f64::INFINITY, f64::NAN] {
            let reason = judge(&difference(relative)).unwrap_err();
            assert!(reason.contains("experts.down"), "{reason}");
        }
    }
}
