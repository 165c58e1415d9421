//! Broken plans, each refused by the name of what is wrong.

use lily_plan::buffer::{BufferClass, BufferId, Elem, Region, WeightDecl, WeightId};
use lily_plan::op::{
    Attention, Embed, GatedRmsNorm, Linear, Op, RmsNorm, RopeAppend, Route, SwiGlu,
};
use lily_plan::plan::{Phase, Plan, PlanBuilder, Ports};
use lily_plan::{PlanError, ValidPlan};

/// A way to break a plan and the refusal it must meet.
type Case = (fn(&mut Plan), &'static str);

const ROWS: usize = 4;
const HIDDEN: usize = 8;

/// One attention layer of two heads, four rows, logits of every row.
fn plan() -> Plan {
    let mut b = PlanBuilder::new();
    let scratch = BufferClass::Scratch;
    let control = b.buffer("control", Elem::U32, 2, BufferClass::Input);
    let tokens = b.buffer("tokens", Elem::U32, 4, BufferClass::Input);
    let x = b.buffer("x", Elem::F32, 32, scratch);
    let h = b.buffer("h", Elem::F32, 32, scratch);
    let q_gate = b.buffer("q_gate", Elem::F32, 64, scratch);
    let kv = b.buffer("kv", Elem::F32, 32, scratch);
    let q = b.buffer("q", Elem::F32, 32, scratch);
    let k_cache = b.buffer("k_cache", Elem::Bf16, 64, BufferClass::KvCache);
    let v_cache = b.buffer("v_cache", Elem::Bf16, 64, BufferClass::KvCache);
    let out = b.buffer("out", Elem::F32, 32, scratch);
    let logits = b.buffer("logits", Elem::F32, 40, BufferClass::Output);
    let mut weight = |name: &str, rows, cols| {
        let bytes = 4 * (rows * cols) as u64;
        b.weight(WeightDecl { name: name.to_owned(), n_experts: 1, rows, cols, bytes })
    };
    let table = weight("table", 10, HIDDEN);
    let norm = weight("norm", HIDDEN, 1);
    let head_norm = weight("head_norm", 4, 1);
    let (w_q, w_kv) = (weight("w_q", 16, HIDDEN), weight("w_kv", HIDDEN, HIDDEN));
    let w_out = weight("w_out", 10, HIDDEN);

    let rows = ROWS;
    let embed = Embed { tokens: tokens.clone(), table, out: x.clone(), rows, dim: HIDDEN };
    b.push("embed", Op::Embed(embed));
    let (weight, eps, dim) = (norm, 1e-6, HIDDEN);
    b.push("norm", Op::RmsNorm(RmsNorm { x, weight, out: h.clone(), rows, dim, eps }));
    let linear = |x: &Region, weight, out: &Region, n| {
        let (x, out, k, accumulate) = (x.clone(), out.clone(), HIDDEN, false);
        Op::Linear(Linear { x, weight, out, rows, n, k, accumulate })
    };
    b.push("q", linear(&h, w_q, &q_gate, 16));
    b.push("kv", linear(&h, w_kv, &kv, 8));
    let half = |from: u64| Region { buffer: kv.buffer, bytes: from..from + 64 };
    let rope = RopeAppend {
        control: control.clone(),
        q_gate: q_gate.clone(),
        k: half(0),
        v: half(64),
        q_norm: head_norm,
        k_norm: head_norm,
        q: q.clone(),
        k_cache: k_cache.clone(),
        v_cache: v_cache.clone(),
        rows,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 4,
        capacity: 16,
        inv_freq: vec![1.0],
        rope_scale: 1.0,
        eps,
    };
    b.push("rope", Op::RopeAppend(rope));
    let attention = Attention {
        control: control.clone(),
        q,
        k_cache,
        v_cache,
        q_gate: Some(q_gate),
        out: out.clone(),
        rows,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 4,
        capacity: 16,
        scale: 0.5,
    };
    b.push("attention", Op::Attention(attention));
    b.push("logits", linear(&out, w_out, &logits, 10));
    let ports = Ports { control: control.buffer, tokens: tokens.buffer, logits: logits.buffer };
    b.finish(Phase::Score, rows, 16, ports)
}

fn buffer(plan: &Plan, name: &str) -> Region {
    let index = plan.buffers.iter().position(|b| b.name == name).expect("a known buffer");
    Region { buffer: BufferId(index as u32), bytes: 0..plan.buffers[index].bytes() }
}

macro_rules! edit {
    ($plan:expr, $step:expr, $op:ident, |$o:ident| $body:expr) => {{
        let step = $plan.steps.iter_mut().find(|s| s.name == $step).expect("a known step");
        let Op::$op($o) = &mut step.op else { panic!("{} is another operation", $step) };
        $body
    }};
}

fn refusal(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = plan();
    change(&mut plan);
    match ValidPlan::new(plan) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_whole_plan_is_accepted() {
    let valid = ValidPlan::new(plan()).expect("a valid plan");
    assert_eq!(valid.stages().len(), 6);
}

#[test]
fn broken_regions_are_refused_by_step_and_operand() {
    let cases: [Case; 9] = [
        (
            |p| edit!(p, "norm", RmsNorm, |o| o.x.buffer = BufferId(99)),
            "step norm: x: buffer 99 does not exist, the plan has 11",
        ),
        (
            |p| edit!(p, "norm", RmsNorm, |o| o.x.bytes = 4..132),
            "step norm: x: bytes 4..132 lie outside x of 128 bytes",
        ),
        (
            |p| edit!(p, "norm", RmsNorm, |o| o.x.bytes = 128..128),
            "step norm: x: bytes 128..128 lie outside x of 128 bytes",
        ),
        (
            |p| edit!(p, "rope", RopeAppend, |o| o.v.bytes = 62..126),
            "step rope: v: starts at byte 62 of kv, expected a multiple of 4",
        ),
        (
            |p| edit!(p, "rope", RopeAppend, |o| o.v.bytes = 64..124),
            "step rope: v: expected 64 bytes, found 60",
        ),
        (
            |p| edit!(p, "norm", RmsNorm, |o| o.x.buffer = BufferId(1)),
            "step norm: x: bytes 0..128 lie outside tokens of 16 bytes",
        ),
        (
            |p| p.buffers[4].elem = Elem::U32,
            "step q: out: expected one of [F32], found U32 in q_gate",
        ),
        (
            |p| {
                let x = buffer(p, "x");
                edit!(p, "embed", Embed, |o| o.tokens = Region { bytes: 0..16, ..x });
            },
            "step embed: tokens: expected one of [U32], found F32 in x",
        ),
        (
            |p| {
                p.buffers[2].class = BufferClass::Input;
            },
            "step embed: out: writes to input buffer x",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
}

#[test]
fn operands_in_the_wrong_kind_of_buffer_are_refused() {
    let cases: [Case; 2] = [
        (
            |p| p.buffers[7].class = BufferClass::Scratch,
            "step rope: k_cache: expected a KvCache buffer, found Scratch buffer k_cache",
        ),
        (
            |p| {
                edit!(p, "attention", Attention, |o| o.control =
                    Region { buffer: BufferId(1), bytes: 0..8 })
            },
            "step attention: control: expected the control block, found Input buffer tokens",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
}

#[test]
fn impossible_dimensions_are_refused() {
    let cases: [Case; 9] = [
        (
            |p| edit!(p, "norm", RmsNorm, |o| o.dim = 0),
            "step norm: dim: expected at least 1, found 0",
        ),
        (
            |p| edit!(p, "norm", RmsNorm, |o| o.rows = 3),
            "step norm: rows: expected the plan's rows 4 or 1, found 3",
        ),
        (
            |p| edit!(p, "rope", RopeAppend, |o| o.capacity = 8),
            "step rope: capacity: expected the plan's capacity 16, found 8",
        ),
        (
            |p| edit!(p, "attention", Attention, |o| o.n_kv_heads = 3),
            "step attention: n_heads: expected a multiple of n_kv_heads, found 2",
        ),
        (
            |p| edit!(p, "attention", Attention, |o| o.n_kv_heads = 0),
            "step attention: n_heads: expected a multiple of n_kv_heads, found 2",
        ),
        (
            |p| edit!(p, "rope", RopeAppend, |o| o.inv_freq = vec![1.0; 3]),
            "step rope: inv_freq: expected at most head_dim / 2 pairs, found 3",
        ),
        (|p| p.rows = 0, "plan rows: expected at least 1, found 0"),
        (|p| p.capacity = 3, "plan capacity: expected at least the plan's rows, found 3"),
        (
            |p| edit!(p, "q", Linear, |o| (o.n, p.weights[3].rows) = (usize::MAX, usize::MAX)),
            "step q: out: its size overflows",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
}

#[test]
fn operations_with_slots_check_their_dimensions() {
    let region = |p: &Plan, len: u64| Region { bytes: 0..len, ..buffer(p, "x") };
    let mut p = plan();
    let (gate, up, out) = (region(&p, 24), region(&p, 24), region(&p, 24));
    let op = SwiGlu { gate, up, out, rows: 3, rows_per_token: 2, dim: 2 };
    p.steps[1].op = Op::SwiGlu(op);
    let error = ValidPlan::new(p).expect_err("3 rows are not slots of 2");
    assert_eq!(
        error.to_string(),
        "step norm: rows: expected a multiple of rows_per_token, found 3"
    );

    let mut p = plan();
    let (logits, experts, weights) = (region(&p, 32), region(&p, 48), region(&p, 48));
    let op = Route { logits, experts, weights, rows: 4, n_experts: 2, top_k: 3 };
    p.steps[1].op = Op::Route(op);
    let error = ValidPlan::new(p).expect_err("3 of 2 experts");
    assert_eq!(error.to_string(), "step norm: top_k: expected at most n_experts, found 3");
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let cases: [Case; 5] = [
        (
            |p| edit!(p, "norm", RmsNorm, |o| o.weight = WeightId(77)),
            "step norm: weight: weight 77 does not exist, the plan has 6",
        ),
        (
            |p| p.weights[1].rows = 7,
            "step norm: weight: expected [8, 1], found [7, 1] in weight norm",
        ),
        (
            |p| p.weights[3].n_experts = 2,
            "step q: weight: expected [16, 8], found 2 x [16, 8] in weight w_q",
        ),
        (
            |p| p.weights[0].cols = 9,
            "step embed: table: expected [at least 1, 8], found [10, 9] in weight table",
        ),
        (
            |p| p.weights[0].rows = 0,
            "step embed: table: expected [at least 1, 8], found [0, 8] in weight table",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
}

#[test]
fn bytes_that_were_never_written_are_not_read() {
    let cases: [Case; 4] = [
        (|p| drop(p.steps.remove(1)), "step q: x: bytes 0..128 of h were never written"),
        (
            |p| {
                edit!(p, "norm", RmsNorm, |o| {
                    (o.rows, o.x.bytes, o.out.bytes) = (1, 0..32, 32..64);
                })
            },
            "step q: x: bytes 0..32 of h were never written",
        ),
        (
            |p| {
                edit!(p, "norm", RmsNorm, |o| {
                    (o.rows, o.x.bytes, o.out.bytes) = (1, 0..32, 0..32);
                })
            },
            "step q: x: bytes 32..128 of h were never written",
        ),
        (|p| drop(p.steps.pop()), "output logits: bytes 0..160 are never written"),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
}

#[test]
fn state_and_cache_may_be_read_before_the_plan_writes_them() {
    let text = refusal(|p| drop(p.steps.remove(4)));
    assert_eq!(text, "step attention: q: bytes 0..128 of q were never written", "not k_cache");
}

#[test]
fn a_step_may_not_write_over_its_own_operands() {
    let cases: [Case; 2] = [
        (|p| edit!(p, "norm", RmsNorm, |o| o.out = o.x.clone()), "step norm: out overlaps x"),
        (
            |p| edit!(p, "rope", RopeAppend, |o| o.v_cache = o.k_cache.clone()),
            "step rope: k_cache overlaps v_cache",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
}

#[test]
fn the_gated_norm_works_in_place_but_not_shifted() {
    let gated = |x: Region, gate: Region, out: Region| {
        let (weight, rows, heads, dim) = (WeightId(1), 1, 1, HIDDEN);
        Op::GatedRmsNorm(GatedRmsNorm {
            x,
            gate,
            weight,
            out,
            rows,
            heads,
            dim,
            eps: 1e-6,
            sigmoid: false,
        })
    };
    let with = |out: std::ops::Range<u64>| {
        refusal(|p| {
            let h = buffer(p, "h");
            let row = |bytes| Region { bytes, ..h.clone() };
            p.steps.insert(
                2,
                lily_plan::plan::Step {
                    name: "gated".to_owned(),
                    op: gated(row(0..32), row(64..96), row(out)),
                },
            );
        })
    };
    assert_eq!(with(0..32), "accepted");
    assert_eq!(with(16..48), "step gated: out overlaps x");
    assert_eq!(with(64..96), "step gated: out overlaps gate");
}

#[test]
fn names_are_distinct() {
    assert_eq!(refusal(|p| p.buffers[3].name = "x".into()), "two buffers are named x");
    assert_eq!(refusal(|p| p.steps[3].name = "q".into()), "two steps are named q");
    assert_eq!(refusal(|p| p.weights[1].name = "w_q".into()), "two weights are named w_q");
}

#[test]
fn sizes_of_buffers_are_bounded() {
    assert_eq!(refusal(|p| p.buffers[3].len = 0), "buffer h: 0 elements are none or too many");
    let text = refusal(|p| p.buffers[3].len = u64::MAX / 2);
    assert_eq!(text, "buffer h: 9223372036854775807 elements are none or too many");
}

#[test]
fn ports_are_what_a_driver_expects() {
    let cases: [Case; 4] = [
        (
            |p| p.ports.control = BufferId(1),
            "port control: expected Input U32[2], found Input U32[4] tokens",
        ),
        (|p| p.ports.tokens = BufferId(50), "port tokens: expected Input U32[4], found no buffer"),
        (
            |p| p.ports.logits = BufferId(9),
            "port logits: expected Output F32[4 * vocab], found Scratch F32[32] out",
        ),
        (
            |p| p.buffers[10].len = 41,
            "port logits: expected Output F32[4 * vocab], found Output F32[41] logits",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
}

#[test]
fn errors_carry_their_facts_as_fields() {
    let mut plan = plan();
    edit!(plan, "rope", RopeAppend, |o| o.v.bytes = 64..124);
    let error = ValidPlan::new(plan).expect_err("a region that is too short");
    let expected = PlanError::Length { step: "rope".into(), operand: "v", expected: 64, found: 60 };
    assert_eq!(error, expected);
}

#[test]
fn the_dump_names_every_step_under_its_stage() {
    let valid = ValidPlan::new(plan()).expect("a valid plan");
    let text = lily_plan::dump(&valid);
    let stage_1 = "\nstage 1\n  norm: rms_norm rows=4 dim=8 | x<x[0..128] out>h[0..128] weight=norm | 32 weight bytes\n";
    assert!(text.contains(stage_1), "{text}");
    assert!(text.starts_with("phase        score\nrows         4\n"), "{text}");
}
