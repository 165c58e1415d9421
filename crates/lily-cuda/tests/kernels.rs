//! Every kind of kernel that plans need, compiled for a Hopper chip and for the oldest that is served,
//! or for the one that `LILY_NVRTC_ARCH` names, such as `sm_89`: no GPU is needed for that.

#[path = "../../lily-kernels/tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;

use lily_cuda::{CudaError, Resources, compile_kernels};
use lily_kernels::launch::{Kernel, Launch};
use lily_kernels::lower::Tuning;

/// What a kernel of the small checkpoints stands for: its template, formats and switches. Numbers
/// change loop bounds and offsets, and the 35B shape, of which every kernel is compiled, has those
/// that matter. With `LILY_NVRTC_ALL=1` no kernel is left out.
fn kind(kernel: &Kernel) -> (&'static str, Vec<&str>) {
    let is_number = |arg: &str| arg.parse::<u64>().is_ok();
    let all = std::env::var("LILY_NVRTC_ALL").is_ok_and(|v| v == "1");
    let args = kernel.args.iter().map(String::as_str).filter(|arg| all || !is_number(arg));
    (kernel.template, args.collect())
}

/// NVIDIA's; with `LILY_NVRTC_TUNING=metal` Metal's, whose registers nobody else counts.
fn tuning() -> Tuning {
    match std::env::var("LILY_NVRTC_TUNING") {
        Ok(name) if name == "metal" => Tuning::default(),
        _ => Tuning::nvidia(),
    }
}

/// Launches of the 35B shape, and of the small checkpoints what differs in kind.
struct Launches {
    large: Vec<Launch>,
    small: Vec<Launch>,
}

impl Launches {
    fn of_the_reference_plans(tuning: &Tuning) -> Option<Launches> {
        let shared = common::shared()?;
        let large = common::launches_for(&[shared.join("qwen36")], tuning);
        let mut small = common::launches_for(&common::checkpoints(&shared), tuning);
        let mut seen: BTreeSet<_> =
            large.iter().map(|launch| owned(kind(&launch.kernel))).collect();
        small.retain(|launch| seen.insert(owned(kind(&launch.kernel))));
        Some(Launches { large, small })
    }

    fn kernels(&self) -> Vec<&Kernel> {
        self.large.iter().chain(&self.small).map(|launch| &launch.kernel).collect()
    }
}

fn owned((template, args): (&'static str, Vec<&str>)) -> (&'static str, Vec<String>) {
    (template, args.into_iter().map(str::to_owned).collect())
}

/// `None` where there is no compiler and none is demanded.
fn compiled(
    kernels: &[&Kernel],
    tuning: &Tuning,
    arch: &str,
    trace: bool,
) -> Option<Vec<Resources>> {
    match compile_kernels(kernels, tuning, arch, trace) {
        Ok(resources) => Some(resources),
        Err(error @ CudaError::NoCompiler) => {
            assert!(std::env::var_os("LILY_REQUIRE_NVRTC").is_none_or(|v| v != "1"), "{error}");
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{arch}: {error}"),
    }
}

#[test]
fn kernels_of_the_reference_plans_compile_and_keep_to_the_registers() {
    let tuning = tuning();
    let Some(launches) = Launches::of_the_reference_plans(&tuning) else { return };
    let kernels = launches.kernels();
    let arch = std::env::var("LILY_NVRTC_ARCH").unwrap_or_else(|_| "sm_90a".to_owned());
    let Some(resources) = compiled(&kernels, &tuning, &arch, false) else { return };
    for (launch, resources) in launches.large.iter().zip(&resources) {
        let (registers, threads) = (resources.registers, launch.threads);
        eprintln!("{registers:3} registers, {threads:3} threads: {}", launch.kernel.host_name());
    }
    let spilling: Vec<String> = (kernels.iter().zip(&resources))
        .filter(|(_, resources)| resources.spilled_bytes > 0 || resources.stack_bytes > 0)
        .map(|(kernel, resources)| format!("{}: {resources:?}", kernel.host_name()))
        .collect();
    assert!(
        spilling.is_empty(),
        "{} of {} kernels do not fit the registers:\n{}",
        spilling.len(),
        kernels.len(),
        spilling.join("\n")
    );
}

/// `row_tiles=off`: the forms of decode that Metal has.
#[test]
fn steps_of_decode_compile_without_row_tiles_and_keep_to_the_registers() {
    let tuning = Tuning { row_tiles: false, ..Tuning::nvidia() };
    let Some(launches) = Launches::of_the_reference_plans(&tuning) else { return };
    let templates = ["stacked_matvec", "routed_gated_matvec", "routed_down"];
    let mut kernels: Vec<_> = launches.large.iter().map(|launch| &launch.kernel).collect();
    kernels.retain(|kernel| templates.contains(&kernel.template));
    let compiled = |tuning| compiled(&kernels, tuning, "sm_90a", false);
    let Some(resources) = compiled(&tuning) else { return };
    for (kernel, resources) in kernels.iter().zip(&resources) {
        eprintln!("{:3} registers by packets: {}", resources.registers, kernel.host_name());
        assert_eq!((resources.spilled_bytes, resources.stack_bytes), (0, 0), "{kernel:?}");
    }
    assert_ne!(compiled(&Tuning::nvidia()), Some(resources), "the switch changes nothing");
}

/// Ampere has neither early starts nor all of Hopper's arithmetic. (Some of its kernels keep up to 32
/// bytes on the stack.)
#[test]
fn kernels_of_the_reference_plans_compile_for_the_oldest_chip_that_is_served() {
    let tuning = tuning().without_clusters();
    let Some(launches) = Launches::of_the_reference_plans(&tuning) else { return };
    let kernels = launches.kernels();
    if let Some(resources) = compiled(&kernels, &tuning, "sm_80", false) {
        assert_eq!(resources.len(), kernels.len());
    }
}

#[test]
fn kernels_of_every_kind_compile_with_a_trace() {
    for (tuning, arch) in [(tuning(), "sm_90a"), (tuning().without_clusters(), "sm_80")] {
        let Some(launches) = Launches::of_the_reference_plans(&tuning) else { return };
        let mut seen = BTreeSet::new();
        let mut kernels: Vec<_> = launches.large.iter().map(|launch| &launch.kernel).collect();
        kernels.retain(|kernel| seen.insert(kernel.template));
        let traced = compiled(&kernels, &tuning, arch, true);
        for (kernel, resources) in kernels.iter().zip(traced.iter().flatten()) {
            eprintln!("{:3} registers traced: {}", resources.registers, kernel.host_name());
            assert!(resources.registers > 0, "{}", kernel.host_name());
        }
    }
}
