//! The kernels that real plans need: of every checkpoint of the reference folder and of the 35B shape.
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lily_checkpoint::describe;
use lily_kernels::launch::{Kernel, Launch, Module, Program};
use lily_kernels::lower::{Tuning, lower};
use lily_kernels::sources;
use lily_kernels::translate::{self, Entry};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::ValidPlan;
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;

/// The folder of reference data, unless it is missing and need not be there.
pub(crate) fn shared() -> Option<PathBuf> {
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
pub(crate) fn checkpoints(shared: &Path) -> Vec<PathBuf> {
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

/// The launches of a checkpoint's plans: decode and prefill, fused and not, in `f32` and in
/// `bf16`.
pub(crate) fn plans(checkpoint: &Path) -> Vec<(ValidPlan, Program)> {
    plans_for(checkpoint, &Tuning::default())
}

/// The same for another machine than Metal's.
pub(crate) fn plans_for(checkpoint: &Path, tuning: &Tuning) -> Vec<(ValidPlan, Program)> {
    let (config, manifest) = describe(checkpoint).expect("a description");
    let mut plans = Vec::new();
    for (phase, rows) in [
        (Phase::Decode, 1),
        (Phase::Prefill, 4),
        (Phase::Prefill, 64),
        (Phase::Prefill, 512),
        (Phase::Prefill, 4096),
        (Phase::Score, 64),
    ] {
        for fusions in [Fusions::all(), Fusions::none()] {
            for kv in [Elem::F32, Elem::Bf16] {
                let options = BuildOptions {
                    kv,
                    fusions,
                    activations: kv,
                    token_slot: phase == Phase::Decode,
                    ..BuildOptions::new(phase, rows, 4096)
                };
                let plan = build(&config, &manifest, &options).expect("a plan");
                let plan = ValidPlan::new(plan).expect("a valid plan");
                let program = lower(&plan, &manifest, tuning).expect("launches");
                plans.push((plan, program));
            }
        }
    }
    plans
}

/// The launches of all checkpoints, one per kernel.
pub(crate) fn launches(shared: &Path) -> Vec<Launch> {
    launches_of(&checkpoints(shared))
}

/// The launches of some checkpoints, one per kernel.
pub(crate) fn launches_of(checkpoints: &[PathBuf]) -> Vec<Launch> {
    launches_for(checkpoints, &Tuning::default())
}

/// The same for another machine than Metal's.
pub(crate) fn launches_for(checkpoints: &[PathBuf], tuning: &Tuning) -> Vec<Launch> {
    let mut seen = BTreeSet::new();
    let mut launches = Vec::new();
    for checkpoint in checkpoints {
        for launch in
            plans_for(checkpoint, tuning).into_iter().flat_map(|(_, program)| program.launches)
        {
            if seen.insert(launch.kernel.clone()) {
                launches.push(launch);
            }
        }
    }
    launches.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    launches
}

/// The entries of a program's kernels, by host name.
pub(crate) fn entries(program: &Program) -> BTreeMap<String, Entry> {
    let mut entries = BTreeMap::new();
    for module in Module::ALL {
        let kernels = program.kernels(module);
        if kernels.is_empty() {
            continue;
        }
        let library = sources::library(module, &kernels).expect("a library");
        let translated = translate::host(&library).unwrap_or_else(|error| panic!("{error}"));
        entries.extend(translated.entries.into_iter().map(|e| (e.host_name.clone(), e)));
    }
    entries
}

/// `template<args>`, as one says it.
pub(crate) fn name(kernel: &Kernel) -> String {
    format!("{}<{}>", kernel.template, kernel.args.join(", "))
}
