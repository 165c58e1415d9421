//! Every kind of kernel that plans need, compiled for a Hopper chip: no GPU is needed for that.

#[path = "../../lily-kernels/tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;

use lily_cuda::{CudaError, compile_kernels};
use lily_kernels::launch::Kernel;
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

#[test]
fn kernels_of_the_reference_plans_compile_and_keep_to_the_registers() {
    let Some(shared) = common::shared() else { return };
    let tuning = tuning();
    let large = common::launches_for(&[shared.join("qwen36")], &tuning);
    let small = common::launches_for(&common::checkpoints(&shared), &tuning);
    let mut seen = BTreeSet::new();
    let mut kernels: Vec<&Kernel> = large.iter().map(|launch| &launch.kernel).collect();
    seen.extend(kernels.iter().map(|kernel| kind(kernel)));
    kernels.extend(small.iter().map(|l| &l.kernel).filter(|kernel| seen.insert(kind(kernel))));

    let resources = match compile_kernels(&kernels, "sm_90a") {
        Ok(resources) => resources,
        Err(error @ CudaError::NoCompiler) => {
            assert!(std::env::var_os("LILY_REQUIRE_NVRTC").is_none_or(|v| v != "1"), "{error}");
            eprintln!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    for (launch, resources) in large.iter().zip(&resources) {
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
