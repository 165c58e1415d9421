//! One launch that Metal takes, and a table of changes to it that Metal would not.

use lily_checkpoint::manifest::{
    Dtype, Manifest, MatrixFormat, MatrixShape, WeightInfo, WeightShape,
};
use lily_kernels::launch::{Binding, Extent, Kernel, Launch, Module, Program};
use lily_kernels::limits::{
    Broken, Footprint, Limits, PipelineFacts, check, check_pipeline, weight_bytes,
};
use lily_plan::buffer::{BufferClass, BufferId, Elem, Region, WeightDecl, WeightId};
use lily_plan::op::{Embed, LastRow, Linear, Op};
use lily_plan::plan::{Phase, PlanBuilder, Ports};
use lily_plan::valid::ValidPlan;

const ROWS: usize = 4;
const HIDDEN: usize = 64;
const VOCAB: usize = 96;

fn table() -> MatrixShape {
    let format = MatrixFormat::Affine { bits: 4, group_size: 64, scale: Dtype::Bf16 };
    MatrixShape { n_experts: 1, rows: VOCAB, cols: HIDDEN, format }
}

fn manifest() -> Manifest {
    let shape = WeightShape::Matrix(table());
    Manifest::new(vec![WeightInfo { name: "embed_tokens".to_owned(), shape }])
}

/// Embedding, last row, head.
fn plan() -> ValidPlan {
    let mut plan = PlanBuilder::new();
    let control = plan.buffer("control", Elem::U32, 2, BufferClass::Input);
    let tokens = plan.buffer("tokens", Elem::U32, ROWS as u64, BufferClass::Input);
    let logits = plan.buffer("logits", Elem::F32, VOCAB as u64, BufferClass::Output);
    let x = plan.buffer("x", Elem::F32, (ROWS * HIDDEN) as u64, BufferClass::Scratch);
    let last = plan.buffer("last", Elem::F32, HIDDEN as u64, BufferClass::Scratch);
    let (name, bytes) = ("embed_tokens".to_owned(), table().bytes());
    let weight = plan.weight(WeightDecl { name, n_experts: 1, rows: VOCAB, cols: HIDDEN, bytes });
    let ports = Ports { control: control.buffer, tokens: tokens.buffer, logits: logits.buffer };
    let (rows, dim) = (ROWS, HIDDEN);
    plan.push("embed", Op::Embed(Embed { tokens, table: weight, out: x.clone(), rows, dim }));
    plan.push("last", Op::LastRow(LastRow { control, x, out: last.clone(), rows, dim }));
    let head =
        Linear { x: last, weight, out: logits, rows: 1, n: VOCAB, k: HIDDEN, accumulate: false };
    plan.push("head", Op::Linear(head));
    ValidPlan::new(plan.finish(Phase::Prefill, ROWS, 8, ports)).unwrap()
}

fn whole(plan: &ValidPlan, name: &str) -> Region {
    let at = plan.plan().buffers.iter().position(|b| b.name == name).unwrap();
    Region { buffer: BufferId(at as u32), bytes: 0..plan.plan().buffers[at].bytes() }
}

fn launch(template: &'static str, bindings: Vec<Binding>) -> Launch {
    let kernel = Kernel { module: Module::Embed, template, args: vec![HIDDEN.to_string()] };
    let rows = Extent::Rows { units_per_row: 1, per_group: 1, extra: 0 };
    Launch { kernel, grid: [rows, Extent::Fixed(1), Extent::Fixed(1)], threads: 64, bindings }
}

fn program(plan: &ValidPlan) -> Program {
    let region = |name| Binding::Region(whole(plan, name));
    let weight = Binding::Weight(WeightId(0));
    let params = Binding::Params(vec![0; 8]);
    Program {
        launches: vec![
            launch("embed", vec![region("tokens"), weight.clone(), region("x"), params]),
            launch("last_row", vec![region("control"), region("x"), region("last")]),
            launch("linear", vec![region("last"), weight, region("logits")]),
        ],
    }
}

fn limits() -> Limits {
    Limits::apple(1 << 30, 1 << 32)
}

/// The rule that a changed program breaks; the step is always the first, unless it is all of it.
fn broken(change: impl FnOnce(&mut Program)) -> Broken {
    broken_at(change, &limits())
}

fn broken_at(change: impl FnOnce(&mut Program), limits: &Limits) -> Broken {
    let plan = plan();
    let mut program = program(&plan);
    change(&mut program);
    let error = check(&program, &plan, &manifest(), limits).unwrap_err();
    assert!(error.step.is_empty() || error.step == "embed", "{error}");
    error.broken
}

fn rebind(index: usize, binding: Binding) -> Broken {
    broken(|program| program.launches[0].bindings[index] = binding)
}

fn region(buffer: u32, bytes: std::ops::Range<u64>) -> Binding {
    Binding::Region(Region { buffer: BufferId(buffer), bytes })
}

#[test]
fn a_sound_program_passes() {
    let plan = plan();
    check(&program(&plan), &plan, &manifest(), &limits()).unwrap();
}

#[test]
fn a_program_has_one_launch_per_step() {
    let found = broken(|program| drop(program.launches.pop()));
    assert_eq!(found, Broken::Launches { steps: 3, launches: 2 });
}

#[test]
fn threadgroups_are_whole_simdgroups_within_the_limit() {
    for threads in [0, 1, 31, 33, 1056, u32::MAX] {
        let found = broken(|program| program.launches[0].threads = threads);
        assert_eq!(found, Broken::Threads { threads, limit: 1024 });
    }
    let small = Limits { threads: 32, ..limits() };
    assert_eq!(broken_at(|_| (), &small), Broken::Threads { threads: 64, limit: 32 });
}

#[test]
fn no_axis_of_a_grid_is_empty_or_beyond_counting() {
    let rows = |units_per_row, per_group, extra| Extent::Rows { units_per_row, per_group, extra };
    let most = ROWS as u32;
    for (axis, extent, at, groups) in [
        (0, Extent::Fixed(0), 1, Some(0)),
        (1, Extent::Fixed(0), 1, Some(0)),
        (2, Extent::Fixed(0), 1, Some(0)),
        (1, rows(0, 4, 0), 1, Some(0)),
        (0, rows(1, 0, 0), 1, None),
        (2, rows(u32::MAX, 1, 1), 1, None),
        (2, rows(1 << 30, 1, 0), most, None),
        // 2^26 groups of 64 threads are 2^32 threads.
        (0, Extent::Fixed(1 << 26), 1, Some(1 << 26)),
    ] {
        let found = broken(|program| program.launches[0].grid[axis] = extent);
        assert_eq!(found, Broken::Grid { axis, rows: at, groups }, "{extent:?}");
    }
}

#[test]
fn an_encoder_has_31_buffer_indices() {
    let with = |count| {
        move |program: &mut Program| {
            program.launches[0].bindings = vec![Binding::Params(vec![0; 4]); count];
        }
    };
    assert_eq!(broken(with(32)), Broken::BufferSlots { count: 32 });
    let plan = plan();
    let mut most = program(&plan);
    with(31)(&mut most);
    check(&most, &plan, &manifest(), &limits()).unwrap();
}

#[test]
fn arguments_by_value_are_words_up_to_4096_bytes() {
    for bytes in [0, 3, 6, 4100, 1 << 20] {
        let found = rebind(3, Binding::Params(vec![0; bytes]));
        assert_eq!(found, Broken::Params { index: 3, bytes });
    }
}

#[test]
#[allow(clippy::reversed_empty_ranges, reason = "such a range is what is refused")]
fn a_region_lies_inside_its_buffer_and_cuts_no_number() {
    let x = ROWS as u64 * HIDDEN as u64 * 4;
    for bytes in [0..0, 16..16, 64..32, 0..x + 16, x..x + 16, 0..17, u64::MAX - 1..u64::MAX] {
        let (start, end) = (bytes.start, bytes.end);
        let found = rebind(2, region(3, bytes));
        assert_eq!(found, Broken::Range { index: 2, buffer: "x".into(), start, end, size: x });
    }
}

#[test]
fn offsets_suit_vector_loads() {
    for offset in [2, 4, 8, 24, 100] {
        let found = rebind(2, region(3, offset..offset + 64));
        assert_eq!(found, Broken::Offset { index: 2, buffer: "x".into(), offset });
    }
    let plan = plan();
    let mut aligned = program(&plan);
    aligned.launches[0].bindings[2] = region(3, 48..96);
    check(&aligned, &plan, &manifest(), &limits()).unwrap();
}

#[test]
fn bindings_name_something_that_exists() {
    assert_eq!(rebind(1, region(99, 0..16)), Broken::Dangling { index: 1 });
    assert_eq!(rebind(1, Binding::Weight(WeightId(7))), Broken::Dangling { index: 1 });
    let plan = plan();
    let error = check(&program(&plan), &plan, &Manifest::default(), &limits()).unwrap_err();
    let name = "embed_tokens".to_owned();
    assert_eq!(error.broken, Broken::MissingWeight { index: 1, name });
}

#[test]
fn buffers_are_no_larger_than_the_device_makes() {
    let bytes = weight_bytes(&WeightShape::Matrix(table()));
    let limit = bytes.unwrap() - 1;
    let found = broken_at(|_| (), &Limits::apple(limit, 1 << 32));
    assert_eq!(found, Broken::BufferBytes { name: "embed_tokens".into(), bytes, limit });

    // Scratch is one buffer even where no part of it is too large.
    let plan = plan();
    let limit = plan.arena_bytes() - 1;
    let only_x = Program { launches: vec![launch("none", Vec::new()); 3] };
    let error = check(&only_x, &plan, &manifest(), &Limits::apple(limit, 1 << 32)).unwrap_err();
    let bytes = Some(plan.arena_bytes());
    assert_eq!(error.broken, Broken::BufferBytes { name: "scratch memory".into(), bytes, limit });
}

#[test]
fn a_weight_beyond_4_gib_is_a_weight_and_one_that_overflows_is_none() {
    let format = MatrixFormat::Float(Dtype::F32);
    let large = MatrixShape { n_experts: 256, rows: 1 << 12, cols: 1 << 12, format };
    assert_eq!(weight_bytes(&WeightShape::Matrix(large)), Some(16 << 30));
    let manifest = |shape| {
        let shape = WeightShape::Matrix(shape);
        Manifest::new(vec![WeightInfo { name: "embed_tokens".to_owned(), shape }])
    };
    let plan = plan();
    let roomy = Limits::apple(32 << 30, 64 << 30);
    check(&program(&plan), &plan, &manifest(large), &roomy).unwrap();

    let absurd = MatrixShape { rows: usize::MAX / 8, ..large };
    let error = check(&program(&plan), &plan, &manifest(absurd), &roomy).unwrap_err();
    assert!(matches!(error.broken, Broken::BufferBytes { bytes: None, .. }), "{error}");
}

#[test]
fn two_kernels_with_one_host_name_are_told_apart() {
    let plan = plan();
    let mut program = program(&plan);
    program.launches[0].kernel.args = vec!["affine<4>".into()];
    program.launches[1].kernel = program.launches[0].kernel.clone();
    check(&program, &plan, &manifest(), &limits()).unwrap();
    program.launches[1].kernel.args = vec!["affine_4_".into()];
    let error = check(&program, &plan, &manifest(), &limits()).unwrap_err();
    assert_eq!((error.step.as_str(), error.kernel.as_str()), ("last", "embed_affine_4_"));
    assert_eq!(error.broken, Broken::HostName { args: vec!["affine_4_".into()] });
}

#[test]
fn a_pipeline_of_few_registers_or_much_threadgroup_memory_is_refused() {
    let plan = plan();
    let launch = &program(&plan).launches[0];
    let fine = PipelineFacts { threads: 64, threadgroup_bytes: 32 << 10, simd_width: 32 };
    check_pipeline(launch, &fine, &limits()).unwrap();
    for (facts, expected) in [
        (PipelineFacts { threads: 32, ..fine }, Broken::Threads { threads: 64, limit: 32 }),
        (
            PipelineFacts { threadgroup_bytes: (32 << 10) + 16, ..fine },
            Broken::ThreadgroupBytes { bytes: (32 << 10) + 16, limit: 32 << 10 },
        ),
        (PipelineFacts { simd_width: 64, ..fine }, Broken::SimdWidth { found: 64 }),
    ] {
        assert_eq!(check_pipeline(launch, &facts, &limits()), Err(expected));
    }
}

#[test]
fn what_does_not_fit_is_known_before_it_is_allocated() {
    let plan = plan();
    let once = Footprint::of(&manifest(), &[&plan]);
    let twice = Footprint::of(&manifest(), &[&plan, &plan]);
    let ports = 8 + 4 * ROWS as u64 + 4 * VOCAB as u64;
    let weights = weight_bytes(&WeightShape::Matrix(table())).unwrap();
    let scratch = plan.arena_bytes();
    assert_eq!(once, Footprint { weights, scratch, ports, session: 0 });
    assert_eq!(twice, Footprint { ports: 2 * ports, ..once }, "plans share scratch");
    assert_eq!(once.excess(&Limits::apple(1 << 30, once.total())), None);
    assert_eq!(once.excess(&Limits::apple(1 << 30, once.total() - 1)), Some(1));
}
