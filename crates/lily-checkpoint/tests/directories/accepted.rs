//! Checkpoints in every form that converters write.

use crate::support::{EXPERTS, HIDDEN, Model, SINGLE, Storage, VOCAB, WIDTH, bf16, tensor};
use lily_checkpoint::config::{GateActivation, LayerKind, RopeScaling};
use lily_checkpoint::manifest::{Dtype, MatrixFormat, WeightShape};
use lily_checkpoint::{Checkpoint, MatrixPart, describe};
use serde_json::json;

const TEXT: &str = "language_model.model.";

fn rows(
    checkpoint: &Checkpoint,
    name: &str,
    part: MatrixPart,
    expert: usize,
    rows: std::ops::Range<usize>,
    row_bytes: usize,
) -> Vec<u8> {
    let mut out = vec![0; rows.len() * row_bytes];
    checkpoint.read_rows(name, part, expert, rows, &mut out).unwrap();
    out
}

fn format(checkpoint: &Checkpoint, name: &str) -> MatrixFormat {
    match checkpoint.manifest().get(name).unwrap().shape {
        WeightShape::Matrix(matrix) => matrix.format,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_width_and_group_size_reads_back_what_was_written() {
    let scales = [("BF16", Dtype::Bf16), ("F16", Dtype::F16), ("F32", Dtype::F32)];
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let (stored_scale, scale) = scales[(bits + group / 32) % 3];
            let model = Model::mlx(Storage::Affine { bits, group, scale: stored_scale });
            let checkpoint = model.open().unwrap();
            assert_eq!(checkpoint.warnings(), &[] as &[String]);
            let expected = MatrixFormat::Affine { bits: bits as u32, group_size: group, scale };
            assert_eq!(format(&checkpoint, "embed_tokens"), expected);

            let row = HIDDEN * bits / 8;
            let stored = model.clone().tensor(&format!("{TEXT}embed_tokens.weight")).bytes.clone();
            let read = rows(&checkpoint, "embed_tokens", MatrixPart::Weight, 0, 3..7, row);
            assert_eq!(read, stored[3 * row..7 * row]);

            let name = "layers.1.mlp.switch_mlp.down_proj";
            for (part, suffix) in [(MatrixPart::Scales, "scales"), (MatrixPart::Biases, "biases")] {
                let row = WIDTH / group * scale.bytes();
                let stored = model.clone().tensor(&format!("{TEXT}{name}.{suffix}")).bytes.clone();
                let read = rows(&checkpoint, name, part, 2, 5..HIDDEN, row);
                assert_eq!(read, stored[(2 * HIDDEN + 5) * row..3 * HIDDEN * row]);
            }
        }
    }
}

#[test]
fn payloads_at_any_byte_are_read_right() {
    // The header is not padded, so renaming moves the data section byte by byte.
    for filler in 0..8 {
        let mut model = Model::usual();
        let name = format!("vision_tower.{}", "x".repeat(filler));
        model.float(&name, "U8", &[1]);
        let stored = model.tensor(&format!("{TEXT}embed_tokens.weight")).bytes.clone();
        let checkpoint = model.open().unwrap();
        let read = rows(&checkpoint, "embed_tokens", MatrixPart::Weight, 0, 0..VOCAB, HIDDEN / 2);
        assert_eq!(read, stored);
        let conv = checkpoint.read_conv("layers.0.linear_attn.conv1d").unwrap();
        assert_eq!(conv[..3], [0.0, 1.0, 2.0]);
    }
}

#[test]
fn hf_directories_are_read_in_all_three_float_types() {
    for (stored, dtype) in [("BF16", Dtype::Bf16), ("F16", Dtype::F16), ("F32", Dtype::F32)] {
        let mut model = Model::hf(stored);
        let checkpoint = model.open().unwrap();
        let part = "layers.2.mlp.experts.gate_up_proj";
        let fused = model.tensor(&format!("model.language_model.{part}")).bytes.clone();
        let row = HIDDEN * dtype.bytes();
        for expert in 0..EXPERTS {
            let start = expert * 2 * WIDTH * row;
            let gate = "layers.2.mlp.switch_mlp.gate_proj";
            let read = rows(&checkpoint, gate, MatrixPart::Weight, expert, 0..WIDTH, row);
            assert_eq!(read, fused[start..start + WIDTH * row]);
            let up = "layers.2.mlp.switch_mlp.up_proj";
            let read = rows(&checkpoint, up, MatrixPart::Weight, expert, 1..WIDTH, row);
            assert_eq!(read, fused[start + (WIDTH + 1) * row..start + 2 * WIDTH * row]);
        }
        assert_eq!(format(&checkpoint, "lm_head"), MatrixFormat::Float(dtype));
    }
}

#[test]
fn the_layout_of_the_convolution_decides_whether_norms_gain_one() {
    let names = [
        "norm",
        "layers.0.input_layernorm",
        "layers.3.post_attention_layernorm",
        "layers.3.self_attn.q_norm",
        "layers.3.self_attn.k_norm",
    ];
    for with_mtp in [false, true] {
        for (mut model, effective) in [(Model::hf("BF16"), 1.5), (Model::usual(), 0.5)] {
            if with_mtp {
                model.float("mtp.fc.weight", "BF16", &[2, 2]);
            }
            let checkpoint = model.open().unwrap();
            for name in names {
                let norm = checkpoint.read_vector(name).unwrap();
                assert!(norm.iter().all(|value| *value == effective), "{name}");
            }
            let gated = checkpoint.read_vector("layers.1.linear_attn.norm").unwrap();
            assert!(gated.iter().all(|value| *value == 0.5));
            let conv = checkpoint.read_conv("layers.0.linear_attn.conv1d").unwrap();
            assert_eq!(conv[..4], [0.0, 1.0, 2.0, 3.0]);
        }
    }
}

#[test]
fn experts_in_tensors_of_their_own_are_one_matrix() {
    let mut model = Model::hf("BF16");
    for layer in 0..4 {
        let part = format!("model.language_model.layers.{layer}.mlp.experts");
        model.remove(&format!("{part}.gate_up_proj"));
        model.remove(&format!("{part}.down_proj"));
        for expert in (0..EXPERTS).rev() {
            for (name, r, c) in [
                ("gate_proj", WIDTH, HIDDEN),
                ("up_proj", WIDTH, HIDDEN),
                ("down_proj", HIDDEN, WIDTH),
            ] {
                let name = format!("{part}.{expert}.{name}");
                model.matrix(&name, Storage::Float("BF16"), &[], r, c);
            }
        }
    }
    let stored =
        model.tensor("model.language_model.layers.1.mlp.experts.3.up_proj.weight").bytes.clone();
    let checkpoint = model.open().unwrap();
    let up = "layers.1.mlp.switch_mlp.up_proj";
    let read = rows(&checkpoint, up, MatrixPart::Weight, 3, 0..WIDTH, 2 * HIDDEN);
    assert_eq!(read, stored);
}

#[test]
fn float_experts_beside_quantised_ones_are_fine() {
    let mut model = Model::usual();
    for projection in ["gate_proj", "up_proj", "down_proj"] {
        let module = format!("{TEXT}layers.0.mlp.switch_mlp.{projection}");
        model.replace(&format!("{module}.weight"), "BF16", &[EXPERTS, HIDDEN, WIDTH]);
        model.remove(&format!("{module}.scales"));
        model.remove(&format!("{module}.biases"));
    }
    let checkpoint = model.open().unwrap();
    let name = "layers.0.mlp.switch_mlp.up_proj";
    assert_eq!(format(&checkpoint, name), MatrixFormat::Float(Dtype::Bf16));
    let name = "layers.1.mlp.switch_mlp.up_proj";
    assert!(matches!(format(&checkpoint, name), MatrixFormat::Affine { bits: 4, .. }));
}

#[test]
fn a_float_module_that_the_configuration_calls_quantised_is_read_with_a_warning() {
    let mut model = Model::usual();
    let module = format!("{TEXT}layers.0.mlp.gate");
    model.replace(&format!("{module}.weight"), "BF16", &[EXPERTS, HIDDEN]);
    model.remove(&format!("{module}.scales"));
    model.remove(&format!("{module}.biases"));
    model.config["quantization"][&module] = json!({"bits": 8, "group_size": 64});
    let checkpoint = model.open().unwrap();
    assert_eq!(format(&checkpoint, "layers.0.mlp.gate"), MatrixFormat::Float(Dtype::Bf16));
    assert_eq!(checkpoint.warnings().len(), 1);
}

#[test]
fn an_override_does_not_inherit_and_its_prefix_does_not_matter() {
    for prefix in ["language_model.model.", "model.language_model.", "model.", ""] {
        let mut model = Model::mlx(Storage::Affine { bits: 4, group: 128, scale: "BF16" });
        let module = format!("{TEXT}layers.0.mlp.gate");
        model.replace(&format!("{module}.weight"), "U32", &[EXPERTS, HIDDEN / 4]);
        model.replace(&format!("{module}.scales"), "BF16", &[EXPERTS, HIDDEN / 64]);
        model.replace(&format!("{module}.biases"), "BF16", &[EXPERTS, HIDDEN / 64]);
        // Group size 64 is MLX's default, not the 128 of the block around it.
        model.config["quantization"][format!("{prefix}layers.0.mlp.gate")] = json!({"bits": 8});
        let checkpoint = model.open().unwrap();
        let expected = MatrixFormat::Affine { bits: 8, group_size: 64, scale: Dtype::Bf16 };
        assert_eq!(format(&checkpoint, "layers.0.mlp.gate"), expected);
    }
}

#[test]
fn a_description_follows_overrides_and_leaves_undivided_matrices_alone() {
    let mut model = Model::usual();
    let block = &mut model.config["quantization"];
    block["language_model.lm_head"] = json!({"bits": 6});
    block["language_model.model.layers.0.linear_attn.in_proj_a"] = json!(false);
    model.text()["moe_intermediate_size"] = json!(96);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), model.config.to_string()).unwrap();
    let (config, manifest) = describe(dir.path()).unwrap();
    assert!(!config.tie_word_embeddings);
    let format = |name: &str| match manifest.get(name).unwrap().shape {
        WeightShape::Matrix(matrix) => matrix.format,
        other => panic!("{other:?}"),
    };
    assert!(matches!(format("lm_head"), MatrixFormat::Affine { bits: 6, group_size: 64, .. }));
    assert_eq!(format("layers.0.linear_attn.in_proj_a"), MatrixFormat::Float(Dtype::Bf16));
    assert!(matches!(format("layers.1.linear_attn.in_proj_a"), MatrixFormat::Affine { .. }));
    let down = format("layers.0.mlp.switch_mlp.down_proj");
    assert_eq!(down, MatrixFormat::Float(Dtype::Bf16));
}

#[test]
fn every_prefix_of_tensors_is_understood() {
    for prefix in ["model.", "", "model.language_model."] {
        let mut model = Model::usual();
        model.rename(|name| {
            let name = name.strip_prefix("language_model.").unwrap();
            match name.strip_prefix("model.") {
                Some(rest) => format!("{prefix}{rest}"),
                None => name.to_owned(),
            }
        });
        let checkpoint = model.open().unwrap();
        assert_eq!(checkpoint.manifest(), Model::usual().open().unwrap().manifest());
    }
}

#[test]
fn a_flat_configuration_equals_a_nested_one() {
    let mut model = Model::usual();
    let nested = model.open().unwrap().config().clone();
    let mut flat = model.config["text_config"].take();
    flat["quantization_config"] = model.config["quantization"].clone();
    flat["eos_token_id"] = model.config["eos_token_id"].clone();
    model.config = flat;
    assert_eq!(model.open().unwrap().config(), &nested);
}

#[test]
fn every_spelling_of_the_rope_parameters_gives_the_same() {
    let expected = Model::usual().open().unwrap().config().rope.clone();
    assert_eq!((expected.theta, expected.rotary_dim), (1e7, 16));
    let spellings = [
        json!({"rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25}),
        json!({"rope_theta": 1e7, "rope_scaling": {"type": "default", "partial_rotary_factor": 0.25}}),
        json!({"rope_scaling": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}),
        json!({"partial_rotary_factor": 0.25, "rope_parameters": {"type": "default", "rope_theta": 1e7}}),
        json!({"partial_rotary_factor": 0.25, "rope_theta": 1e7, "rope_scaling": null,
            "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10_000_000}}),
    ];
    for spelling in spellings {
        let mut model = Model::usual();
        model.text().remove("rope_parameters");
        model.text().extend(spelling.as_object().unwrap().clone());
        assert_eq!(model.open().unwrap().config().rope, expected, "{spelling}");
    }
}

#[test]
fn yarn_is_read_from_either_object() {
    for key in ["rope_parameters", "rope_scaling"] {
        let mut model = Model::usual();
        let yarn = json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262_144
        });
        match model.text().get_mut(key) {
            Some(object) => {
                object.as_object_mut().unwrap().extend(yarn.as_object().unwrap().clone())
            }
            None => drop(model.text().insert(key.into(), yarn)),
        }
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_max_position: 262_144,
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        assert_eq!(model.open().unwrap().config().rope.scaling, scaling);
    }
}

#[test]
fn layer_kinds_follow_the_interval_where_they_are_not_listed() {
    let mut model = Model::usual();
    model.text().remove("layer_types");
    let layers = model.open().unwrap().config().layers.clone();
    assert_eq!(layers[2..], [LayerKind::LinearAttention, LayerKind::FullAttention]);
}

#[test]
fn the_output_gate_is_silu_unless_it_says_sigmoid() {
    for (value, gate) in [
        (json!("swish"), GateActivation::Silu),
        (json!("silu"), GateActivation::Silu),
        (json!(null), GateActivation::Silu),
        (json!("sigmoid"), GateActivation::Sigmoid),
    ] {
        let mut model = Model::usual();
        model.text().insert("output_gate_type".into(), value);
        assert_eq!(model.open().unwrap().config().linear_gate, gate);
    }
}

#[test]
fn the_head_is_tied_by_absence_and_either_flag() {
    let mut model = Model::dense_tied();
    assert!(model.open().unwrap().config().tie_word_embeddings);
    model.text().remove("tie_word_embeddings");
    model.config["tie_word_embeddings"] = json!(true);
    let checkpoint = model.open().unwrap();
    assert!(checkpoint.config().tie_word_embeddings);
    assert!(checkpoint.manifest().get("lm_head").is_none());
}

#[test]
fn a_head_that_is_there_wins_over_the_tied_flag() {
    let mut model = Model::usual();
    model.text().insert("tie_word_embeddings".into(), json!(true));
    let checkpoint = model.open().unwrap();
    assert!(!checkpoint.config().tie_word_embeddings);
    assert!(checkpoint.manifest().get("lm_head").is_some());
}

#[test]
fn vision_and_prediction_tensors_are_skipped_under_any_prefix() {
    let mut model = Model::usual();
    for name in ["vision_tower.a", "model.visual.b", "visual.c", "mtp.d", "language_model.mtp.e"] {
        model.float(name, "F32", &[3]);
    }
    let checkpoint = model.open().unwrap();
    assert_eq!(checkpoint.manifest(), Model::usual().open().unwrap().manifest());
}

#[test]
fn decay_parameters_may_be_f32() {
    let mut model = Model::usual();
    let name = "layers.0.linear_attn.A_log";
    model.replace(&format!("{TEXT}{name}"), "F32", &[2]);
    model.tensor(&format!("{TEXT}{name}")).bytes =
        [1.5_f32, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(model.open().unwrap().read_vector(name).unwrap(), [1.5, -2.5]);
}

#[test]
fn shards_with_and_without_an_index_hold_the_same() {
    let whole = Model::usual().open().unwrap();
    let mut model = Model::usual();
    model.split();
    let indexed = model.open().unwrap();
    assert_eq!(indexed.manifest(), whole.manifest());
    assert_eq!(indexed.warnings(), &[] as &[String]);
    model.files.clear();
    assert_eq!(model.open().unwrap().manifest(), whole.manifest());
}

#[test]
fn a_stray_file_beside_an_indexed_model_is_ignored() {
    let mut model = Model::usual();
    model.split();
    // The same weights once more, as a converter's left-over.
    model.shards.insert(SINGLE.into(), Model::usual().shards[SINGLE].clone());
    let checkpoint = model.open().unwrap();
    assert_eq!(checkpoint.warnings(), &[] as &[String]);
}

#[test]
fn the_index_of_another_set_of_files_is_ignored_with_a_warning() {
    let mut model = Model::usual();
    model.index(|map| {
        map.values_mut().for_each(|shard| *shard = json!("model-00001-of-00026.safetensors"));
    });
    let checkpoint = model.open().unwrap();
    assert_eq!(checkpoint.warnings().len(), 1);
    assert!(checkpoint.warnings()[0].contains("model-00001-of-00026.safetensors"));
}

#[test]
fn a_missing_shard_of_skipped_tensors_is_not_missed() {
    let mut model = Model::usual();
    model.index(|map| drop(map.insert("mtp.fc.weight".into(), json!("mtp.safetensors"))));
    assert_eq!(model.open().unwrap().warnings(), &[] as &[String]);
}

#[test]
fn a_prediction_head_in_a_file_of_its_own_is_ignored_without_an_index() {
    for file in ["mtp.safetensors", "model-mtp.safetensors"] {
        let mut model = Model::usual();
        // Names without prefix, as some converters write them.
        let name = "layers.0.input_layernorm.weight";
        model.shards.insert(file.into(), vec![tensor(name, "BF16", &[HIDDEN])]);
        model.open().unwrap();
    }
    let mut model = Model::usual();
    let only = vec![tensor("mtp.fc.weight", "BF16", &[2, 2])];
    model.shards.insert("model-extra.safetensors".into(), only);
    model.open().unwrap();
}

#[test]
fn the_generation_file_is_read_and_may_be_absent() {
    let mut model = Model::usual();
    let checkpoint = model.open().unwrap();
    assert_eq!(checkpoint.config().eos_token_ids, [3, 5]);
    assert_eq!(checkpoint.generation(), &Default::default());
    let text = r#"{"eos_token_id": 7, "do_sample": true, "temperature": 0.6, "top_k": 20,
        "top_p": 0.95, "transformers_version": "4.57.1"}"#;
    model.files.insert("generation_config.json".into(), text.into());
    let generation = model.open().unwrap().generation().clone();
    assert_eq!(generation.eos_token_ids, [7]);
    assert_eq!(generation.do_sample, Some(true));
    assert_eq!((generation.temperature, generation.top_k), (Some(0.6), Some(20)));
    assert_eq!((generation.top_p, generation.min_p), (Some(0.95), None));
}

#[test]
fn a_quantised_checkpoint_without_a_quantization_block_is_read_from_its_shapes() {
    let mut model = Model::mlx(Storage::Affine { bits: 3, group: 32, scale: "F16" });
    model.config.as_object_mut().unwrap().remove("quantization");
    let checkpoint = model.open().unwrap();
    let expected = MatrixFormat::Affine { bits: 3, group_size: 32, scale: Dtype::F16 };
    assert_eq!(format(&checkpoint, "lm_head"), expected);
    assert_eq!(checkpoint.warnings().len(), 1);
}

#[test]
fn files_in_memory_are_a_checkpoint_too() {
    let mut model = Model::usual();
    let norm = bf16(&[0.25; HIDDEN]);
    model.tensor(&format!("{TEXT}norm.weight")).bytes = norm;
    let config = model.config.to_string().into_bytes().leak();
    let weights = Model::shard_bytes(&model.shards[SINGLE]).leak();
    let checkpoint = Checkpoint::from_memory(vec![
        ("config.json", config),
        (SINGLE, weights),
        ("tokenizer.json", b"{}"),
    ])
    .unwrap();
    assert_eq!(checkpoint.read_vector("norm").unwrap(), [0.25; HIDDEN]);
    assert_eq!(checkpoint.side_file("tokenizer.json").unwrap().unwrap(), b"{}");
    assert!(checkpoint.side_file("../config.json").unwrap().is_none());
}
