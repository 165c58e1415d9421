//! Every step of a plan against the CPU device.

use std::collections::BTreeSet;

use lily_checkpoint::Checkpoint;
use lily_checkpoint::random::{RandomShape, RandomSpec, write_random};
use lily_cpu::{CpuDevice, CpuOptions};
use lily_device::compare::{Difference, Prepared, Start, compare_steps};
use lily_device::{Device, DeviceError, NoProgress};
use lily_emulator::{Edit, EmulatorDevice, EmulatorOptions};
use lily_kernels::lower::Tuning;
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::plan::Phase;
use lily_plan::valid::ValidPlan;

use crate::support;

/// Largest relative difference that the order of sums explains, of all numbers that a step writes together and of one
/// that is alone: its sum may come out much smaller than what it adds up.
const LIMIT: f64 = 2e-6;
const LIMIT_ALONE: f64 = 1e-4;
const CAPACITY: usize = 64;

/// Matrices large enough to be cut into blocks of 16 rows and more.
fn shape() -> RandomShape {
    RandomShape {
        hidden_size: 1024,
        // Fills no block.
        vocab_size: 2570,
        n_heads: 16,
        n_kv_heads: 2,
        head_dim: 64,
        linear_key_heads: 2,
        linear_value_heads: 6,
        linear_head_dim: 128,
        n_experts: 6,
        top_k: 3,
        expert_intermediate_size: 128,
        shared_intermediate_size: 384,
    }
}

/// NVIDIA's, with several turns for every threadgroup of the head.
fn tuning() -> Tuning {
    Tuning { matvec_groups: 3, ..Tuning::nvidia() }
}

/// The differences of a decode plan from the CPU, and the host names of its kernels.
fn differences(
    tuning: Tuning,
    edits: Vec<Edit>,
) -> Result<(Vec<Difference>, BTreeSet<String>), DeviceError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    write_random(&path, &RandomSpec { layers: 4, seed: 5, shape: shape() }).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options =
        BuildOptions { fusions: Fusions::all(), ..BuildOptions::new(Phase::Decode, 1, CAPACITY) };
    let plan = build(checkpoint.config(), checkpoint.manifest(), &options).unwrap();
    let plan = ValidPlan::new(plan).unwrap();

    let cpu = CpuDevice::new(CpuOptions { threads: Some(1), isa: None });
    let mut cpu = cpu.load(&checkpoint, &NoProgress).unwrap();
    let options = EmulatorOptions { tuning, edits, ..EmulatorOptions::default() };
    let emulator = EmulatorDevice::new(options).unwrap();
    let mut emulator = emulator.load_model(&checkpoint, &NoProgress).unwrap();
    let on_cpu = cpu.prepare(plan.clone()).unwrap();
    let (on_emulator, reasons) = emulator.prepare_steps(plan.clone(), &|_, _| true);
    assert!(reasons.is_empty(), "{reasons:?}");
    let launches = (0..plan.plan().steps.len()).map(|step| emulator.launch(on_emulator, step));
    let names = launches.map(|launch| launch.unwrap().kernel.host_name()).collect();

    let vocab = checkpoint.config().vocab_size;
    let start = Start { position: 5, rows: 1, vocab, seed: 11 };
    let reference = Prepared { model: &*cpu, plan: on_cpu };
    let subject = Prepared { model: &emulator, plan: on_emulator };
    let mut found = Vec::new();
    let mut keep = |difference| found.push(difference);
    compare_steps(plan.plan(), reference, subject, start, &mut keep)?;
    Ok((found, names))
}

fn is_wrong(difference: &&Difference) -> bool {
    !difference.within(if difference.elements == 1 { LIMIT_ALONE } else { LIMIT })
}

/// Kinds of the steps that are off with a fault in the kernels.
fn wrong(tuning: Tuning, (from, to): (&str, &str)) -> Result<BTreeSet<&'static str>, DeviceError> {
    let edit = Edit { from: from.to_owned(), to: to.to_owned() };
    let (differences, _) = differences(tuning, vec![edit])?;
    Ok(differences.iter().filter(is_wrong).map(|d| d.op).collect())
}

#[test]
fn steps_of_decode_give_what_the_cpu_gives_with_and_without_tiles_of_rows() {
    if !support::has_compiler() {
        return;
    }
    let plain = Tuning { row_tiles: false, ..tuning() };
    // The block of the form by tiles, in the form by packets.
    let many_rows = Tuning { routed_down_rows: 16, ..plain.clone() };
    let mut names = Vec::new();
    for tuning in [tuning(), plain, many_rows] {
        let (differences, launched) = differences(tuning.clone(), Vec::new()).unwrap();
        let of_many = differences.iter().filter(|d| d.elements > 1);
        let largest = of_many.map(|d| d.relative).fold(0.0, f64::max);
        eprintln!("{largest:.1e} at most, row tiles {}", tuning.row_tiles);
        let wrong: Vec<_> = differences.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{tuning:?}: {wrong:#?}");
        names.push(launched);
    }
    let has = |names: &BTreeSet<String>, part: &str| names.iter().any(|name| name.contains(part));
    let [tiles, plain, many_rows] = &names[..] else { unreachable!() };
    // 2570 rows in shares of 16, over three threadgroups.
    assert!(
        names.iter().all(|names| has(names, "stacked_matvec_1024_8_true_true_54_")),
        "{names:?}"
    );
    let down = |rows| format!("_6_3_128_384_1024_{rows}_4");
    assert!(
        has(tiles, &down(16)) && has(plain, &down(4)) && has(many_rows, &down(16)),
        "{names:?}"
    );
}

/// A digit that is left out is noticed in every kind of step that multiplies by digits: so these do.
#[test]
fn faults_show_in_the_steps_that_multiply_by_digits_and_in_no_others() {
    if !support::has_compiler() {
        return;
    }
    let all = BTreeSet::from(["routed_down", "routed_gated_linear", "stacked_linear"]);
    let down = BTreeSet::from(["routed_down"]);
    let digit = ("second ? 65536.0f : 1.0f", "second ? 65536.0f : 0.0f");
    let plain = Tuning { row_tiles: false, ..tuning() };
    for ((from, to), tuning, expected) in [
        (digit, tuning(), &all),
        (digit, plain, &BTreeSet::new()),
        (("lane / 4 + 8] = scale * y[1]", "lane / 4 + 8] = scale * y[0]"), tuning(), &down),
        (("zeros[lane] = 0", "zeros[lane] = 1"), tuning(), &down),
        (
            ("load8(low[j], high[j], x + 8 * min(j", "load8(low[j], high[j], x + 8 * min(0 * j"),
            tuning(),
            &down,
        ),
        (
            ("simdgroup_barrier(mem_flags::mem_threadgroup);\n  float y[2]", "float y[2]"),
            tuning(),
            &down,
        ),
    ] {
        assert_eq!(wrong(tuning, (from, to)).unwrap(), *expected, "{from:?}");
    }
}

#[test]
fn value_heads_shared_by_threadgroups_give_what_the_cpu_gives() {
    if !support::has_compiler() {
        return;
    }
    for delta_cluster in [2, 4] {
        let tuning = Tuning { delta_cluster, ..Tuning::default() };
        let (differences, names) = differences(tuning, Vec::new()).unwrap();
        let name = format!("delta_mix_2_6_128_128_4_8_false_{delta_cluster}");
        assert!(names.contains(&name), "{names:?}");
        let wrong: Vec<_> = differences.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{delta_cluster}: {wrong:#?}");
    }
}

#[test]
fn faults_in_what_threadgroups_exchange_are_caught() {
    if !support::has_compiler() {
        return;
    }
    const SUM: &str = "square = cluster_sum<CLUSTER>(simd_sum(square), squares, rank, tid)";
    let alone = SUM
        .replace("cluster_sum<CLUSTER>(simd_sum(square), squares, rank, tid)", "simd_sum(square)");
    let skipped = format!("if (rank > 0) {SUM}");
    let other = SUM.replace("rank", "CLUSTER - 1 - rank");
    let beyond = SUM.replace("rank", "CLUSTER");
    let tuning = || Tuning { delta_cluster: 4, ..Tuning::default() };
    for (from, to) in [
        (SUM, &*alone),
        ("rank = group % CLUSTER", "rank = 0"),
        ("norm[rank * VALUES + tid]", "norm[tid]"),
    ] {
        assert_eq!(wrong(tuning(), (from, to)).unwrap(), BTreeSet::from(["delta_mix"]), "{to:?}");
    }
    // What is summed in another order is within the rounding.
    assert_eq!(wrong(tuning(), (SUM, &other)).unwrap(), BTreeSet::new());
    for (from, to, because) in [
        ("  cluster_begin<CLUSTER>();\n", "", "cluster_sum without cluster_begin"),
        (SUM, &*skipped, "not all threads reach the same barrier"),
        (SUM, &*beyond, "of threadgroup array \"squares\", which has 16 bytes"),
    ] {
        let found = format!("{:?}", wrong(tuning(), (from, to)).unwrap_err());
        assert!(found.replace('\\', "").contains(because), "{to:?}: {found}");
    }
}
