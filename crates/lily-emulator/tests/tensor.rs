//! The tensor-unit kernels against the simdgroup kernels, whose twins they are, on what stands for
//! Metal 4's operations.

mod support;

use half::bf16;
use lily_cpu::{CpuDevice, CpuOptions};
use lily_device::{Device, LoadedModel, NoProgress};
use lily_emulator::{
    AlignedBytes, Dispatch, EmulatorDevice, EmulatorOptions, Entry, KernelCache, Schedule,
    Toolchain, host_source_of, run,
};
use lily_kernels::launch::{Kernel, Launch, Module};
use lily_kernels::lower::Tuning;
use lily_kernels::sources;
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::access::Access;
use lily_plan::buffer::{Elem, Region};
use lily_plan::plan::{Phase, Plan};
use lily_plan::valid::ValidPlan;

const FORMAT: &str = "affine<4, 64, bfloat>";
const N: usize = 40;
const K: usize = 128;
const EXPERTS: usize = 5;
const TOP_K: usize = 2;
const ROWS: usize = 37;
/// What outputs hold before a kernel writes them, or adds to them.
const BEFORE: f32 = 0.25;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }
    /// -1 .. 1, a number of bfloat.
    fn bf16(&mut self) -> bf16 {
        bf16::from_f32(self.next() as f32 / (1u64 << 31) as f32 - 1.0)
    }
}

/// A packed matrix of 4-bit words, then scales and biases.
fn matrix(random: &mut Random, rows: usize) -> AlignedBytes {
    let mut words: Vec<u32> = (0..rows * K / 8).map(|_| random.next()).collect();
    words.resize((4 * words.len()).next_multiple_of(256) / 4, 0);
    for _ in 0..rows * K / 64 {
        let scale = bf16::from_f32(0.02 + 0.01 * random.bf16().to_f32());
        let bias = bf16::from_f32(-7.5 * scale.to_f32());
        words.push(u32::from(scale.to_bits()) | u32::from(bias.to_bits()) << 16);
    }
    AlignedBytes::of_u32(&words)
}

fn activations(random: &mut Random, rows: usize) -> AlignedBytes {
    let values: Vec<u8> =
        (0..rows * K).flat_map(|_| random.bf16().to_bits().to_le_bytes()).collect();
    AlignedBytes::of(&values)
}

/// A chosen expert per slot, as `group_by_expert` leaves them; the second expert has no slot.
fn grouped(random: &mut Random) -> (AlignedBytes, AlignedBytes) {
    let experts: Vec<usize> =
        (0..ROWS * TOP_K).map(|_| [0, 2, 3, 4, 3][random.next() as usize % 5]).collect();
    let of =
        |expert: usize| (0..experts.len() as u32).filter(move |&s| experts[s as usize] == expert);
    let groups: Vec<Vec<u32>> = (0..EXPERTS).map(|e| of.clone()(e).collect()).collect();
    let mut offsets = vec![0];
    for group in &groups {
        offsets.push(offsets[offsets.len() - 1] + group.len() as u32);
    }
    (AlignedBytes::of_u32(&offsets), AlignedBytes::of_u32(&groups.concat()))
}

fn kernel(module: Module, template: &'static str, args: &[&str]) -> Kernel {
    Kernel { module, template, args: args.iter().map(|&arg| arg.to_owned()).collect() }
}

fn compiled(kernel: &Kernel, change: impl Fn(String) -> String) -> Option<Entry> {
    if !support::has_compiler() {
        return None;
    }
    let toolchain = Toolchain::find().unwrap();
    let cache = KernelCache::new(toolchain, KernelCache::default_folder());
    let source = change(sources::library(kernel.module, &[kernel]).unwrap());
    let host = host_source_of(&source).unwrap_or_else(|error| panic!("{error}"));
    Some(cache.entry(&host, &kernel.host_name()).unwrap_or_else(|error| panic!("{error}")))
}

/// A kernel, its launch, its inputs, and the number of its outputs.
struct Case {
    kernel: Kernel,
    grid: [u32; 3],
    threads: u32,
    inputs: Vec<AlignedBytes>,
    /// Where the output stands among the buffers.
    out_at: usize,
    outputs: usize,
}

impl Case {
    /// The outputs, or nothing where there is no compiler.
    fn run(&mut self, seed: u64, change: impl Fn(String) -> String) -> Option<Vec<f32>> {
        let entry = compiled(&self.kernel, change)?;
        let mut out = AlignedBytes::of_f32(&vec![BEFORE; self.outputs]);
        let mut buffers: Vec<&mut AlignedBytes> = self.inputs.iter_mut().collect();
        buffers.insert(self.out_at, &mut out);
        let dispatch = Dispatch { grid: self.grid, threads: self.threads };
        let ran = run(&entry, &dispatch, &mut buffers, &Schedule { seed, workers: 1 });
        ran.unwrap_or_else(|fault| panic!("{fault}"));
        Some(out.to_f32())
    }

    /// The same on the other units.
    fn on(mut self, module: Module, template: &'static str) -> Case {
        (self.kernel.module, self.kernel.template) = (module, template);
        self
    }
}

fn dense(block: (&str, usize, usize, u32), accumulate: bool) -> Case {
    let mut random = Random(1);
    let (text, rows, columns, threads) = block;
    let (n, k) = (N.to_string(), K.to_string());
    let args = [FORMAT, "bfloat", &n, &k, text, if accumulate { "true" } else { "false" }, "false"];
    let control = AlignedBytes::of_u32(&[0, ROWS as u32 - 2]);
    let x = activations(&mut random, ROWS);
    let inputs = vec![x, matrix(&mut random, N), control];
    let grid = [N.div_ceil(columns) as u32, ROWS.div_ceil(rows) as u32, 1];
    let kernel = kernel(Module::Linear, "matmul", &args);
    Case { kernel, grid, threads, inputs, out_at: 2, outputs: ROWS * N }
}

fn gated() -> Case {
    let mut random = Random(2);
    let (n, k) = (N.to_string(), K.to_string());
    let args = [FORMAT, FORMAT, "bfloat", "float", &n, &k, "block<32, 64, 32, 2, 2>", "false"];
    let control = AlignedBytes::of_u32(&[5, ROWS as u32]);
    let x = activations(&mut random, ROWS);
    let inputs = vec![x, matrix(&mut random, N), matrix(&mut random, N), control];
    let grid = [N.div_ceil(32) as u32, ROWS.div_ceil(32) as u32, 1];
    let kernel = kernel(Module::Linear, "gated_matmul", &args);
    Case { kernel, grid, threads: 128, inputs, out_at: 3, outputs: ROWS * N }
}

fn experts() -> Case {
    let mut random = Random(3);
    let (n, k, e) = (N.to_string(), K.to_string(), EXPERTS.to_string());
    let args = [FORMAT, "bfloat", &e, "1", &n, &k, "block<32, 32, 32, 2, 2>"];
    let x = activations(&mut random, ROWS * TOP_K);
    let (offsets, order) = grouped(&mut random);
    let inputs = vec![x, offsets, order, matrix(&mut random, EXPERTS * N)];
    let blocks = (ROWS * TOP_K).div_ceil(32) + EXPERTS;
    let grid = [N.div_ceil(32) as u32, blocks as u32, 1];
    let kernel = kernel(Module::Moe, "expert_matmul", &args);
    Case { kernel, grid, threads: 128, inputs, out_at: 4, outputs: ROWS * TOP_K * N }
}

fn gated_experts() -> Case {
    let mut random = Random(4);
    let (n, k, e, per_token) =
        (N.to_string(), K.to_string(), EXPERTS.to_string(), TOP_K.to_string());
    let args =
        [FORMAT, FORMAT, "bfloat", "float", &e, &per_token, &n, &k, "block<16, 128, 64, 1, 4>"];
    let x = activations(&mut random, ROWS);
    let (offsets, order) = grouped(&mut random);
    let (gate, up) = (matrix(&mut random, EXPERTS * N), matrix(&mut random, EXPERTS * N));
    let inputs = vec![x, offsets, order, gate, up];
    let blocks = (ROWS * TOP_K).div_ceil(16) + EXPERTS;
    let grid = [N.div_ceil(64) as u32, blocks as u32, 1];
    let kernel = kernel(Module::Moe, "expert_gated_matmul", &args);
    Case { kernel, grid, threads: 128, inputs, out_at: 5, outputs: ROWS * TOP_K * N }
}

/// The largest difference in units of the largest number expected; `None` without a compiler.
fn difference(make: impl Fn() -> Case, twin: &'static str, seed: u64) -> Option<f32> {
    let expected = make().run(seed, |source| source)?;
    let found = make().on(Module::Tensor, twin).run(seed, |source| source)?;
    assert!(expected.iter().any(|&y| y != BEFORE), "nothing was written");
    let largest = expected.iter().fold(0.0, |m: f32, y| m.max(y.abs()));
    let pairs = expected.iter().zip(&found);
    let apart = |(e, f): (&f32, &f32)| if f.is_nan() { f32::INFINITY } else { (e - f).abs() };
    Some(pairs.map(apart).fold(0.0, f32::max) / largest)
}

#[test]
fn a_dense_product_is_that_of_the_simdgroup_kernel_up_to_the_edges() {
    let blocks =
        [("block<32, 32, 32, 2, 2>", 32, 32, 128), ("block<64, 128, 64, 1, 4>", 64, 128, 128)];
    for (block, accumulate) in [(blocks[0], false), (blocks[0], true), (blocks[1], false)] {
        let Some(found) = difference(|| dense(block, accumulate), "tensor_matmul", 1) else {
            return;
        };
        assert!(found < 1e-6, "{block:?} accumulate {accumulate}: {found}");
    }
}

#[test]
fn a_gated_product_is_that_of_the_simdgroup_kernel() {
    let Some(found) = difference(gated, "tensor_gated_matmul", 2) else { return };
    assert!(found < 1e-6, "{found}");
}

#[test]
fn products_of_experts_are_those_of_the_simdgroup_kernels() {
    for seed in 1..4 {
        let Some(found) = difference(experts, "tensor_expert_matmul", seed) else { return };
        assert!(found < 1e-6, "seed {seed}: {found}");
    }
    let Some(found) = difference(gated_experts, "tensor_expert_gated_matmul", 1) else { return };
    assert!(found < 1e-6, "{found}");
}

#[test]
fn sums_that_are_not_cleared_and_barriers_that_are_missing_show() {
    let block = ("block<32, 32, 32, 2, 2>", 32, 32, 128);
    let Some(right) = dense(block, false).on(Module::Tensor, "tensor_matmul").run(1, |s| s) else {
        return;
    };
    for fault in ["clear(sums0);", "threadgroup_barrier(mem_flags::mem_threadgroup);\n    if (k"] {
        let mut case = dense(block, false).on(Module::Tensor, "tensor_matmul");
        let plant = |source: String| {
            // The staging of the twin has the same barrier; only the tensor code is to lose it.
            let (before, own) = source.split_at(source.find("multiply_tensor(").unwrap());
            let kept = if fault.contains("if (k") { "if (k" } else { "" };
            assert!(own.contains(fault), "{fault} is not in the source");
            format!("{before}{}", own.replacen(fault, kept, 1))
        };
        let wrong = case.run(1, plant).unwrap();
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        assert!(!right.iter().zip(&wrong).all(same), "without {fault}");
    }
}

/// Bytes before the first step: numbers, a full control block and tokens of any golden's vocabulary.
fn contents(plan: &Plan, rows: usize) -> Vec<Vec<u8>> {
    let mut random = Random(5);
    let mut buffers: Vec<Vec<u8>> = Vec::new();
    for (index, buffer) in plan.buffers.iter().enumerate() {
        let control = index == plan.ports.control.0 as usize;
        buffers.push(match buffer.elem {
            Elem::U32 if control => [0, rows as u32].iter().flat_map(|w| w.to_ne_bytes()).collect(),
            Elem::U32 => {
                (0..buffer.len as u32).flat_map(|i| (i * 37 % 200).to_ne_bytes()).collect()
            }
            Elem::F32 => {
                (0..buffer.len).flat_map(|_| random.bf16().to_f32().to_ne_bytes()).collect()
            }
            Elem::Bf16 => {
                (0..buffer.len).flat_map(|_| random.bf16().to_bits().to_ne_bytes()).collect()
            }
        });
    }
    buffers
}

fn numbers(plan: &Plan, buffers: &[Vec<u8>], region: &Region) -> Vec<f32> {
    let range = region.bytes.start as usize..region.bytes.end as usize;
    let bytes = &buffers[region.buffer.0 as usize][range];
    match plan.buffer(region.buffer).elem {
        Elem::Bf16 => {
            let halves = bytes.chunks_exact(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]));
            halves.map(bf16::to_f32).collect()
        }
        _ => bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect(),
    }
}

#[test]
fn the_products_of_a_prefill_on_tensor_units_are_those_of_the_cpu() {
    const ROWS: usize = 33;
    let Some(goldens) = support::goldens() else { return };
    let tuning = Tuning { tensor_units: true, gemm_rows: 16, ..Tuning::default() };
    let options = EmulatorOptions { tuning, activations: Elem::Bf16, ..EmulatorOptions::default() };
    let emulator = EmulatorDevice::new(options).unwrap();
    let cpu = CpuDevice::new(CpuOptions { threads: Some(1), isa: None });
    let mut tried = std::collections::BTreeSet::new();
    // Quantised and plain; the staging of other formats is that of the twins.
    let names = ["moe_hybrid_4bit_gs64", "moe_bf16_hf"];
    for golden in goldens.iter().filter(|golden| names.contains(&golden.name.as_str())) {
        let plan = build(
            golden.checkpoint.config(),
            golden.checkpoint.manifest(),
            &BuildOptions {
                fusions: Fusions::all(),
                activations: Elem::Bf16,
                ..BuildOptions::new(Phase::Prefill, ROWS, 64)
            },
        );
        let plan = ValidPlan::new(plan.unwrap()).unwrap();
        let mut reference = cpu.load(&golden.checkpoint, &NoProgress).unwrap();
        let mut subject = emulator.load_model(&golden.checkpoint, &NoProgress).unwrap();
        let reference_plan = reference.prepare(plan.clone()).unwrap();
        let on_tensor = |_: usize, launch: &Launch| launch.kernel.module == Module::Tensor;
        let (subject_plan, reasons) = subject.prepare_steps(plan.clone(), &on_tensor);
        assert!(reasons.is_empty(), "{}: {}", golden.name, reasons[0]);
        let plan = plan.plan();
        let mut buffers = contents(plan, ROWS);
        for (index, step) in plan.steps.iter().enumerate() {
            let mut found = buffers.clone();
            reference.probe(reference_plan, index, &mut buffers).unwrap();
            let Some(launch) = subject.launch(subject_plan, index) else { continue };
            tried.insert(launch.kernel.template);
            subject.probe(subject_plan, index, &mut found).unwrap();
            let signature = step.op.signature();
            for operand in signature.operands.iter().filter(|o| o.access != Access::Read) {
                let expected = numbers(plan, &buffers, operand.region);
                let found = numbers(plan, &found, operand.region);
                let square = |sum: f64, x: f64| sum + x * x;
                let norm = expected.iter().map(|&e| f64::from(e)).fold(0.0, square).sqrt();
                let pairs = expected.iter().zip(&found);
                let apart = pairs.map(|(&e, &f)| f64::from(e - f)).fold(0.0, square).sqrt();
                // Matrices are rounded to bfloat once, which the CPU does not do.
                assert!(apart <= 1e-2 * norm, "{} {}: {}", golden.name, step.name, apart / norm);
            }
        }
    }
    assert_eq!(tried.len(), 4, "{tried:?}");
}
