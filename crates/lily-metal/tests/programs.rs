//! The launches of whole models against the rules of Metal.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use lily_checkpoint::config::ModelConfig;
use lily_checkpoint::describe;
use lily_checkpoint::manifest::Manifest;
use lily_kernels::limits::{Footprint, Limits, check};
use lily_kernels::lower::{Tuning, lower};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;
use lily_plan::valid::ValidPlan;

struct Model {
    name: String,
    config: ModelConfig,
    manifest: Manifest,
}

impl Model {
    fn at(folder: &Path) -> Model {
        let (config, manifest) = describe(folder).unwrap();
        Model { name: folder.display().to_string(), config, manifest }
    }

    fn plan(&self, options: &BuildOptions) -> ValidPlan {
        ValidPlan::new(build(&self.config, &self.manifest, options).unwrap()).unwrap()
    }
}

fn demo() -> Model {
    Model::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/checkpoint"))
}

/// A folder of the reference data, or `None` (and a note) where that is missing.
fn shared(folder: &str) -> Option<Model> {
    let shared = std::env::var_os("LILY_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    if !shared.join(folder).is_dir() {
        let required = std::env::var_os("LILY_REQUIRE_SHARED").is_some_and(|value| value == "1");
        assert!(!required, "shared/ is missing");
        // Written past the capture of passing tests, so that a skip is seen.
        drop(writeln!(std::io::stderr(), "skipped: shared/ is missing"));
        return None;
    }
    Some(Model::at(&shared.join(folder)))
}

/// Checks every kind of plan of a model; how many launches that were.
fn launches_within(model: &Model, capacity: usize, limits: &Limits) -> usize {
    let shapes = [
        (Phase::Decode, 1),
        (Phase::Prefill, 1),
        (Phase::Prefill, 33),
        (Phase::Prefill, 512),
        (Phase::Score, 64),
    ];
    let mut launches = 0;
    for (phase, rows) in shapes {
        for fusions in [Fusions::all(), Fusions::none()] {
            for elem in [Elem::F32, Elem::Bf16] {
                let plan = model.plan(&BuildOptions {
                    fusions,
                    kv: elem,
                    activations: elem,
                    token_slot: phase == Phase::Decode,
                    ..BuildOptions::new(phase, rows, capacity)
                });
                let tuning = Tuning { tensor_units: elem == Elem::Bf16, ..Tuning::default() };
                let program = lower(&plan, &model.manifest, &tuning)
                    .unwrap_or_else(|error| panic!("{}: {error}", model.name));
                check(&program, &plan, &model.manifest, limits)
                    .unwrap_or_else(|error| panic!("{}, {phase:?} of {rows}: {error}", model.name));
                launches += program.launches.len();
            }
        }
    }
    launches
}

#[test]
fn metal_takes_every_launch_of_the_demonstration_model() {
    assert!(launches_within(&demo(), 640, &Limits::apple(1 << 30, 4 << 30)) > 500);
}

#[test]
fn metal_takes_every_launch_of_the_goldens() {
    for golden in
        ["dense_tied_4bit_gs64", "moe_bf16_hf", "moe_hybrid_4bit_gs64", "moe_mixed_bits_gs32"]
    {
        let Some(model) = shared(&format!("goldens/{golden}")) else { return };
        launches_within(&model, 640, &Limits::apple(1 << 30, 4 << 30));
    }
}

#[test]
fn the_35b_model_with_32k_tokens_of_context_needs_less_than_22_gib() {
    let Some(model) = shared("qwen36") else { return };
    let limits = Limits::apple(8 << 30, 22 << 30);
    assert!(launches_within(&model, 32_768, &limits) > 5000);
    let plan = |phase, rows| {
        let (kv, activations) = (Elem::Bf16, Elem::Bf16);
        model.plan(&BuildOptions { kv, activations, ..BuildOptions::new(phase, rows, 32_768) })
    };
    let plans = [plan(Phase::Prefill, 512), plan(Phase::Decode, 1)];
    let need = Footprint::of(&model.manifest, &[&plans[0], &plans[1]]);
    assert_eq!(need.excess(&limits), None, "{need:?}");
    assert!(need.weights > 18 << 30, "{need:?}");
}
