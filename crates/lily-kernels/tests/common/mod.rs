//! The kernels that real plans need: of every checkpoint of the reference folder and of the 35B shape.
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lily_checkpoint::describe;
use lily_kernels::launch::{Kernel, Launch, Program};
use lily_kernels::lower::{Tuning, lower};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::ValidPlan;
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;

/// The folder of reference data, unless it is missing and need not be there.
pub fn shared() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let folder = std::env::var_os("LILY_SHARED").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    let required = std::env::var("LILY_REQUIRE_SHARED").is_ok_and(|v| v == "1");
    assert!(!required, "the reference folder {} is missing", folder.display());
    eprintln!("skipped: no reference folder {}", folder.display());
    None
}

/// The checkpoints whose plans are looked at: the small ones, and the shape of the 35B model.
pub fn checkpoints(shared: &Path) -> Vec<PathBuf> {
    let mut folders = vec![shared.join("demo-model"), shared.join("qwen36")];
    for entry in std::fs::read_dir(shared.join("goldens")).expect("the goldens") {
        let path = entry.expect("an entry").path();
        if path.join("config.json").is_file() {
            folders.push(path);
        }
    }
    folders.retain(|f| f.join("config.json").is_file());
    folders.sort();
    folders
}

/// The launches of a checkpoint's plans: decode and prefill, fused and not, with both kinds of cache.
pub fn programs(checkpoint: &Path) -> Vec<Program> {
    let (config, manifest) = describe(checkpoint).expect("a description");
    let mut programs = Vec::new();
    for (phase, rows) in [
        (Phase::Decode, 1),
        (Phase::Prefill, 4),
        (Phase::Prefill, 64),
        (Phase::Prefill, 512),
        (Phase::Score, 64),
    ] {
        for fusions in [Fusions::all(), Fusions::none()] {
            for kv in [Elem::F32, Elem::Bf16] {
                let options = BuildOptions { phase, rows, capacity: 4096, kv, fusions };
                let plan = build(&config, &manifest, &options).expect("a plan");
                let plan = ValidPlan::new(plan).expect("a valid plan");
                programs.push(lower(&plan, &manifest, &Tuning::default()).expect("launches"));
            }
        }
    }
    programs
}

/// The launches of all checkpoints, one per kernel.
pub fn launches(shared: &Path) -> Vec<Launch> {
    let mut seen = BTreeSet::new();
    let mut launches = Vec::new();
    for checkpoint in checkpoints(shared) {
        for launch in programs(&checkpoint).into_iter().flat_map(|p| p.launches) {
            if seen.insert(launch.kernel.clone()) {
                launches.push(launch);
            }
        }
    }
    launches.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    launches
}

/// `template<args>`, as one says it.
pub fn name(kernel: &Kernel) -> String {
    format!("{}<{}>", kernel.template, kernel.args.join(", "))
}
