//! The figures of the published Qwen3.6-35B-A3B shape.

use std::io::Write as _;
mod common;

use std::path::{Path, PathBuf};

use common::{manifest, tiny_moe};
use lily_checkpoint::config::{LayerKind, MlpConfig, ModelConfig};
use lily_checkpoint::manifest::Manifest;
use lily_model::{BuildOptions, Fusions, build, estimate_memory};
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;
use lily_plan::{ValidPlan, stats};

fn valid(
    config: &ModelConfig,
    manifest: &Manifest,
    phase: Phase,
    rows: usize,
    fusions: Fusions,
) -> ValidPlan {
    let options = BuildOptions { kv: Elem::Bf16, fusions, ..BuildOptions::new(phase, rows, 4096) };
    ValidPlan::new(build(config, manifest, &options).expect("a plan")).expect("a valid plan")
}

/// The published Qwen3.6-35B-A3B shape.
fn shape_35b() -> ModelConfig {
    let kind = |i| if i % 4 == 3 { LayerKind::FullAttention } else { LayerKind::LinearAttention };
    let mut config = tiny_moe();
    config.hidden_size = 2048;
    config.vocab_size = 248_320;
    config.layers = (0..40).map(kind).collect();
    (config.n_heads, config.n_kv_heads, config.head_dim) = (16, 2, 256);
    (config.linear_key_heads, config.linear_value_heads) = (16, 32);
    (config.linear_key_head_dim, config.linear_value_head_dim) = (128, 128);
    config.rope.rotary_dim = 64;
    config.mlp = MlpConfig::Moe {
        n_experts: 256,
        top_k: 8,
        expert_intermediate_size: 512,
        shared_intermediate_size: 512,
    };
    config.max_position_embeddings = 262_144;
    config
}

#[test]
fn a_decode_step_of_the_35b_shape_has_few_stages() {
    let config = shape_35b();
    let stages = |fusions| {
        let valid = valid(&config, &manifest(&config), Phase::Decode, 1, fusions);
        valid.stages().len()
    };
    // 6 per DeltaNet layer, 7 per attention layer; embedding, head.
    assert_eq!(stages(Fusions::all()), 30 * 6 + 10 * 7 + 2);
    // 13 per DeltaNet layer, 12 per attention layer; embedding, norm, head.
    assert_eq!(stages(Fusions::cpu()), 30 * 13 + 10 * 12 + 3);
    assert!(stages(Fusions::cpu()) < 555, "what the published implementation needs");
    assert!(stages(Fusions::none()) > stages(Fusions::cpu()));
}

#[test]
fn scratch_of_the_35b_shape_is_bounded_by_what_lives_in_its_widest_stage() {
    let config = shape_35b();
    let valid = valid(&config, &manifest(&config), Phase::Prefill, 64, Fusions::all());
    let (arena, live) = (valid.arena_bytes(), valid.live_bytes());
    assert!(arena <= live + live / 4, "arena {arena} bytes, {live} live");
    let mib = 1 << 20;
    assert!(arena < 10 * mib, "64 rows take {arena} bytes");
}

/// The folder of reference files, or `None` (said on stderr) where it is missing.
fn shared() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("LILY_SHARED").map_or_else(default, PathBuf::from);
    if shared.is_dir() {
        return Some(shared);
    }
    let required = std::env::var_os("LILY_REQUIRE_SHARED").is_some_and(|v| v == "1");
    assert!(!required, "shared/ is missing and LILY_REQUIRE_SHARED=1 is set");
    // Written past the capture of passing tests, so that a skip is seen.
    drop(writeln!(std::io::stderr(), "skipped: shared/ is missing"));
    None
}

#[test]
fn the_published_checkpoint_moves_the_bytes_that_its_files_predict() {
    let Some(shared) = shared() else { return };
    let described = lily_checkpoint::describe(&shared.join("qwen36"));
    let (config, manifest) = described.expect("the published configuration");
    let options = BuildOptions {
        kv: Elem::Bf16,
        fusions: Fusions::all(),
        token_slot: true,
        ..BuildOptions::new(Phase::Decode, 1, 4096)
    };
    let decode = ValidPlan::new(build(&config, &manifest, &options).expect("a plan"));
    let figures = stats(&decode.expect("a valid plan"), 4095);
    // Every weight that is not an expert, 8 of 256 experts, and one embedding row of 1152 bytes. Two
    // steps of each layer norm the input of the experts: 2048 weights in bf16.
    assert_eq!(figures.total.weight_bytes, 1_669_560_576 + 1152 + 40 * 2 * 2048);
    // 30 layers of 32 heads of 128 x 128 in f32, and 4 rows of 8192 channels in f32.
    assert_eq!(figures.total.state_bytes, 62_914_560 + 30 * 4 * 8192 * 4);
    // 20,480 bytes per token in bf16: 4096 read, one appended.
    assert_eq!(figures.total.kv_bytes, 20_480 * 4097);
    assert_eq!(figures.stages, 254);
}

#[test]
fn the_published_checkpoint_needs_the_memory_that_its_files_predict() {
    let Some(shared) = shared() else { return };
    let described = lily_checkpoint::describe(&shared.join("qwen36"));
    let (config, manifest) = described.expect("the published configuration");
    let options =
        BuildOptions { kv: Elem::Bf16, ..BuildOptions::new(Phase::Prefill, 512, 262_144) };
    let estimate = estimate_memory(&config, &manifest, &options).expect("an estimate");
    assert_eq!(estimate.weights, 19_508_787_456);
    assert_eq!(estimate.kv(), 5 << 30);
    let mib = 1 << 20;
    assert!(estimate.scratch < 64 * mib, "512 rows take {} bytes", estimate.scratch);
    // 1.7 GiB are left beside the weights.
    let tokens = estimate.max_context_for(20 << 30).expect("some context");
    assert!((85_000..95_000).contains(&tokens), "{tokens} tokens");
    assert_eq!(estimate.max_context_for(18 << 30), None, "the weights alone are larger");
}
