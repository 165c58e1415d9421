//! Operations of fused decode steps: what they ask of a plan.

mod common;

use common::Toy;
use lily_plan::buffer::{BufferClass, Elem, Region, WeightDecl, WeightId};
use lily_plan::hazard::HazardKind;
use lily_plan::op::{
    Advance, ArgmaxParts, FoldedNorm, GatedLinear, Linear, Op, RmsNorm, StackedLinear, StackedPart,
};
use lily_plan::{PlanError, ValidPlan};

const VOCAB: usize = 12;

fn matrix(toy: &mut Toy, name: &str, rows: usize, cols: usize) -> WeightId {
    let bytes = 4 * (rows * cols) as u64;
    toy.plan.weight(WeightDecl { name: name.to_owned(), n_experts: 1, rows, cols, bytes })
}

fn refusal(toy: Toy) -> String {
    ValidPlan::new(toy.finish()).expect_err("a refusal").to_string()
}

/// Projections of one input of 6 onto the buffers.
fn stacked(toy: &mut Toy, x: &Region, outs: &[Region]) -> StackedLinear {
    let part = |(i, out): (usize, &Region)| {
        let n = common::elements(out);
        StackedPart { weight: matrix(toy, &format!("part {i}"), n, 6), out: out.clone(), n }
    };
    let parts = outs.iter().enumerate().map(part).collect();
    let norm = Some(FoldedNorm { weight: matrix(toy, "norm", 6, 1), eps: 1e-6 });
    StackedLinear { x: x.clone(), norm, parts, rows: 1, k: 6 }
}

#[test]
fn a_stack_has_one_to_four_projections() {
    for n in 0..=5 {
        let mut toy = Toy::new(VOCAB);
        let x = toy.scratch("x", 6);
        toy.fill(&x);
        let outs: Vec<_> = (0..n).map(|i| toy.scratch(&format!("out {i}"), 3 + i)).collect();
        let op = stacked(&mut toy, &x, &outs);
        toy.plan.push("stack", Op::StackedLinear(op));
        if (1..=4).contains(&n) {
            ValidPlan::new(toy.finish()).expect("a valid plan");
        } else {
            let expected = format!("step stack: parts: expected 1 to 4, found {n}");
            assert_eq!(refusal(toy), expected);
        }
    }
}

#[test]
fn projections_of_a_stack_have_outputs_of_their_own() {
    let mut toy = Toy::new(VOCAB);
    let x = toy.scratch("x", 6);
    toy.fill(&x);
    let outs = toy.scratch("outs", 8);
    let overlapping = [common::part(&outs, 0..5), common::part(&outs, 4..8)];
    let op = stacked(&mut toy, &x, &overlapping);
    toy.plan.push("stack", Op::StackedLinear(op));
    assert_eq!(refusal(toy), "step stack: out0 overlaps out1");
}

#[test]
fn a_folded_norm_is_as_wide_as_the_input() {
    let mut toy = Toy::new(VOCAB);
    let (x, out) = (toy.scratch("x", 6), toy.scratch("out", 4));
    toy.fill(&x);
    let (gate, up) = (matrix(&mut toy, "gate", 4, 6), matrix(&mut toy, "up", 4, 6));
    let norm = Some(FoldedNorm { weight: matrix(&mut toy, "norm", 5, 1), eps: 1e-6 });
    let op = GatedLinear { x, norm, gate, up, out, rows: 1, n: 4, k: 6 };
    toy.plan.push("gated", Op::GatedLinear(op));
    assert_eq!(refusal(toy), "step gated: norm: expected [6, 1], found [5, 1] in weight norm");
}

#[test]
fn only_operands_that_feed_products_may_be_bf16() {
    let build = |x_elem, h_elem| {
        let mut toy = Toy::new(VOCAB);
        let x = toy.plan.buffer("x", x_elem, 6, BufferClass::State);
        let h = toy.plan.buffer("h", h_elem, 6, BufferClass::Scratch);
        let (weight, rows) = (matrix(&mut toy, "norm", 6, 1), 1);
        let op = RmsNorm { x, weight, out: h.clone(), rows, dim: 6, eps: 1e-6 };
        toy.plan.push("norm", Op::RmsNorm(op));
        let out = toy.scratch("out", 4);
        let (weight, accumulate) = (matrix(&mut toy, "weight", 4, 6), false);
        let op = Linear { x: h, weight, out, rows, n: 4, k: 6, accumulate };
        toy.plan.push("linear", Op::Linear(op));
        ValidPlan::new(toy.finish())
    };
    build(Elem::F32, Elem::Bf16).expect("a norm may feed a product in bf16");
    let error = build(Elem::Bf16, Elem::F32).expect_err("the residual stream is f32");
    assert!(matches!(error, PlanError::ElementType { operand: "x", .. }), "{error}");
}

/// A plan that ends in the choice of the next token, changed before it is recorded.
fn choosing(change: impl FnOnce(&mut Toy, &mut ArgmaxParts, &mut Advance)) -> Toy {
    let mut toy = Toy::new(VOCAB);
    let (rows, parts, ring_len) = (1, 4, 16);
    let values = toy.scratch("values", parts as u64);
    let ids = toy.plan.buffer("ids", Elem::U32, parts as u64, BufferClass::Scratch);
    let ring = toy.plan.buffer("ring", Elem::U32, ring_len as u64, BufferClass::Output);
    let (control, tokens, logits) = (toy.control.clone(), toy.tokens.clone(), toy.logits.clone());
    let (v, i) = (values.clone(), ids.clone());
    let mut argmax = ArgmaxParts { logits, values: v, ids: i, rows, vocab: VOCAB, parts };
    let mut advance = Advance { control, values, ids, tokens, ring, rows, parts, ring_len };
    change(&mut toy, &mut argmax, &mut advance);
    toy.plan.push("argmax", Op::ArgmaxParts(argmax));
    toy.plan.push("advance", Op::Advance(advance));
    toy
}

#[test]
fn the_choice_of_a_token_waits_for_all_that_read_the_last_one() {
    let valid = ValidPlan::new(choosing(|_, _, _| ()).finish()).expect("a valid plan");
    // Step 0 embeds the token that step 2 replaces.
    let found = valid.hazards().iter().any(|h| (h.from, h.to, h.kind) == (0, 2, HazardKind::War));
    assert!(found, "{:?}", valid.hazards());
}

#[test]
fn only_the_choice_of_a_token_writes_what_drives_a_run() {
    let elsewhere = choosing(|toy, _, advance| {
        advance.tokens = toy.plan.buffer("others", Elem::U32, 1, BufferClass::Scratch);
    });
    assert_eq!(
        refusal(elsewhere),
        "step advance: tokens: expected the token input, found Scratch buffer others"
    );
    let ring = choosing(|toy, _, advance| {
        advance.ring = toy.plan.buffer("others", Elem::U32, 16, BufferClass::Scratch);
    });
    // The declared ring is then never written, which is found later.
    assert_eq!(
        refusal(ring),
        "step advance: ring: expected a Output buffer, found Scratch buffer others"
    );
    let input = choosing(|toy, argmax, _| argmax.ids = toy.tokens.clone());
    let error = refusal(input);
    assert!(error.contains("writes to input buffer tokens"), "{error}");
}

#[test]
fn a_part_of_the_logits_can_be_chosen_from() {
    let toy = choosing(|_, argmax, _| {
        argmax.logits = common::part(&argmax.logits, 0..10);
        argmax.vocab = 10;
    });
    ValidPlan::new(toy.finish()).expect("a valid plan");
}

#[test]
fn the_choice_of_a_token_is_for_one_row() {
    let toy = choosing(|_, argmax, _| argmax.rows = 2);
    assert_eq!(refusal(toy), "step argmax: rows: expected 1, found 2");
}
