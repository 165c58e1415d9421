//! One small directory per rule, broken in one place, and the sentence that it earns.

use lily_checkpoint::{Checkpoint, CheckpointError, describe};
use serde_json::{Value, json};

use crate::support::{EXPERTS, HIDDEN, Model, SINGLE, Storage, VOCAB, WIDTH, tensor};

const TEXT: &str = "language_model.model.";

/// The error of a model that must not open.
fn refusal(model: &Model) -> CheckpointError {
    model.open().expect_err("the model opened")
}

/// Declares one test per rule: a usual model, changed, is refused in these words.
macro_rules! refused {
    ($($name:ident: |$model:ident| $change:expr => $words:expr;)*) => {$(
        #[test]
        fn $name() {
            let mut $model = Model::usual();
            $change;
            assert_eq!(refusal(&$model).to_string(), $words);
        }
    )*};
}

fn set(model: &mut Model, key: &str, value: Value) {
    model.text().insert(key.into(), value);
}

fn unset(model: &mut Model, key: &str) {
    model.text().remove(key).unwrap();
}

refused! {
    a_dimension_of_zero: |m| set(&mut m, "hidden_size", json!(0)) =>
        "text_config.hidden_size in config.json is 0, expected 1 to 131072";
    an_absurd_dimension: |m| set(&mut m, "head_dim", json!(1_u64 << 40)) =>
        "text_config.head_dim in config.json is 1099511627776, expected 2 to 2048";
    a_negative_dimension: |m| set(&mut m, "num_experts", json!(-8)) =>
        "text_config.num_experts in config.json is -8, expected 1 to 4096";
    a_fractional_dimension: |m| set(&mut m, "vocab_size", json!(16.5)) =>
        "text_config.vocab_size in config.json is 16.5, expected a whole number";
    a_dimension_that_is_text: |m| set(&mut m, "vocab_size", json!("16")) =>
        "text_config.vocab_size in config.json is \"16\", expected a whole number";
    a_text_config_that_is_no_object: |m| m.config["text_config"] = json!([]) =>
        "text_config in config.json is [], expected an object";
    more_experts_per_token_than_experts: |m| set(&mut m, "num_experts_per_tok", json!(5)) =>
        "text_config.num_experts_per_tok in config.json is 5, expected at most num_experts (4)";
    query_heads_that_kv_heads_do_not_divide: |m| {
        set(&mut m, "num_attention_heads", json!(5));
        set(&mut m, "num_key_value_heads", json!(2));
    } => "text_config.num_attention_heads in config.json is 5, \
          expected a multiple of num_key_value_heads (2)";
    value_heads_that_key_heads_do_not_divide: |m| set(&mut m, "linear_num_key_heads", json!(3)) =>
        "text_config.linear_num_value_heads in config.json is 2, \
         expected a multiple of linear_num_key_heads (3)";
    a_convolution_of_one_tap: |m| set(&mut m, "linear_conv_kernel_dim", json!(1)) =>
        "text_config.linear_conv_kernel_dim in config.json is 1, expected 2 to 16";
    an_epsilon_of_zero: |m| set(&mut m, "rms_norm_eps", json!(0)) =>
        "text_config.rms_norm_eps in config.json is 0, expected a number above 0 and at most 1";
    an_odd_rotary_dimension: |m| {
        m.text()["rope_parameters"]["partial_rotary_factor"] = json!(0.05);
    } => "text_config.partial_rotary_factor in config.json is 0.05, that is 3, \
          expected an even number of rotated dimensions of head_dim 64";
    a_rotary_share_above_one: |m| {
        m.text()["rope_parameters"]["partial_rotary_factor"] = json!(1.5);
    } => "text_config.rope_parameters.partial_rotary_factor in config.json is 1.5, \
          expected above 0 and at most 1";
    a_base_of_zero: |m| m.text()["rope_parameters"]["rope_theta"] = json!(0) =>
        "text_config.rope_parameters.rope_theta in config.json is 0, expected a number above 1";
    two_bases: |m| set(&mut m, "rope_theta", json!(10_000)) =>
        "text_config.rope_theta is 10000 but text_config.rope_parameters.rope_theta is 10000000 \
         in config.json";
    an_unknown_rope: |m| m.text()["rope_parameters"]["rope_type"] = json!("longrope") =>
        "text_config.rope_parameters.rope_type \"longrope\" in config.json is not supported, \
         expected default or yarn";
    a_yarn_without_its_length: |m| {
        m.text()["rope_parameters"]["rope_type"] = json!("yarn");
        m.text()["rope_parameters"]["factor"] = json!(4);
    } => "config.json lacks text_config.rope_parameters.original_max_position_embeddings";
    an_attention_bias: |m| set(&mut m, "attention_bias", json!(true)) =>
        "text_config.attention_bias true in config.json is not supported, expected false";
    attention_without_its_gate: |m| set(&mut m, "attn_output_gate", json!(false)) =>
        "text_config.attn_output_gate false in config.json is not supported, expected true";
    another_activation: |m| set(&mut m, "hidden_act", json!("gelu")) =>
        "text_config.hidden_act \"gelu\" in config.json is not supported, expected silu";
    another_output_gate: |m| set(&mut m, "output_gate_type", json!("relu")) =>
        "text_config.output_gate_type \"relu\" in config.json is not supported, \
         expected silu, swish or sigmoid";
    dense_layers_among_sparse_ones: |m| set(&mut m, "mlp_only_layers", json!([1])) =>
        "text_config.mlp_only_layers [1] in config.json is not supported, expected []";
    an_unknown_layer_type: |m| m.text()["layer_types"][1] = json!("sliding_attention") =>
        "text_config.layer_types \"sliding_attention\" in config.json is not supported, \
         expected linear_attention or full_attention";
    too_few_layer_types: |m| set(&mut m, "num_hidden_layers", json!(5)) =>
        "text_config.layer_types in config.json is 4 entries, expected num_hidden_layers (5) entries";
    an_unknown_model_type: |m| m.config["model_type"] = json!("llama") =>
        "model_type llama is not supported, expected qwen3_5 or qwen3_5_moe";
    qwen3_next: |m| m.config["model_type"] = json!("qwen3_next") =>
        "model_type qwen3_next is not supported, expected qwen3_5 or qwen3_5_moe";
    two_model_types: |m| set(&mut m, "model_type", json!("qwen3_5_text")) =>
        "model_type is qwen3_5_moe but text_config.model_type is qwen3_5 in config.json";
    a_stop_token_that_is_no_id: |m| m.config["eos_token_id"] = json!([1, -1]) =>
        "eos_token_id in config.json is -1, expected a token id or a list of them";

    mxfp4: |m| m.config["quantization"]["mode"] = json!("mxfp4") =>
        "mxfp4 quantisation (quantization.mode) is not supported, \
         expected MLX affine or no quantisation";
    nvfp4_of_one_module: |m| {
        m.config["quantization"]["model.layers.0.mlp.gate"] = json!({"mode": "nvfp4"});
    } => "nvfp4 quantisation (quantization.model.layers.0.mlp.gate.mode) is not supported, \
          expected MLX affine or no quantisation";
    seven_bits: |m| m.config["quantization"]["bits"] = json!(7) =>
        "quantization.bits in config.json is 7, expected 2, 3, 4, 5, 6 or 8";
    a_group_of_sixteen: |m| m.config["quantization"]["group_size"] = json!(16) =>
        "quantization.group_size in config.json is 16, expected 32, 64 or 128";
    a_quantization_block_that_is_no_object: |m| m.config["quantization"] = json!(4) =>
        "quantization in config.json is 4, expected an object";
    two_spellings_of_one_module: |m| {
        m.config["quantization"]["model.layers.0.mlp.gate"] = json!({"bits": 8});
        m.config["quantization"]["language_model.model.layers.0.mlp.gate"] = json!({"bits": 4});
    } => "quantization.model.layers.0.mlp.gate is 8 bits and group size 64 but \
          quantization.language_model.model.layers.0.mlp.gate is 4 bits and group size 64 \
          in config.json";
    other_bits_than_configured: |m| m.config["quantization"]["bits"] = json!(8) =>
        "tensor language_model.model.embed_tokens.weight in model.safetensors is stored with 4 bits \
         and group size 64, but quantization in config.json says 8 bits and group size 64";
    another_group_size_than_configured: |m| m.config["quantization"]["group_size"] = json!(32) =>
        "tensor language_model.model.embed_tokens.weight in model.safetensors is stored with 4 bits \
         and group size 64, but quantization in config.json says 4 bits and group size 32";
    a_quantised_module_that_is_configured_as_floats: |m| {
        m.config["quantization"]["language_model.lm_head"] = json!(false);
    } => "tensor language_model.lm_head.weight in model.safetensors is stored with 4 bits and group \
          size 64, but quantization.language_model.lm_head in config.json says false";
    microscaling_scales: |m| {
        m.replace(&format!("{TEXT}embed_tokens.scales"), "U8", &[VOCAB, HIDDEN / 32]);
    } => "microscaling (U8 scales) quantisation (language_model.model.embed_tokens.scales) \
          is not supported, expected MLX affine or no quantisation";
    packed_rows_that_fit_no_width: |m| {
        m.replace(&format!("{TEXT}embed_tokens.weight"), "U32", &[VOCAB, 17]);
    } => "tensor language_model.model.embed_tokens.weight in model.safetensors: 17 words and 2 groups \
          per row of 128 inputs fit no supported bits and group size";
    words_without_scales: |m| m.remove(&format!("{TEXT}embed_tokens.scales")) =>
        "tensor embed_tokens.scales is missing";
    scales_without_biases: |m| m.remove(&format!("{TEXT}embed_tokens.biases")) =>
        "tensor embed_tokens.biases is missing";
    biases_of_another_shape: |m| {
        m.replace(&format!("{TEXT}embed_tokens.biases"), "BF16", &[VOCAB, 1]);
    } => "tensor language_model.model.embed_tokens.biases in model.safetensors has shape [16, 1], \
          expected [16, 2]";
    biases_of_another_type: |m| {
        m.replace(&format!("{TEXT}embed_tokens.biases"), "F32", &[VOCAB, 2]);
    } => "tensor language_model.model.embed_tokens.biases in model.safetensors has dtype F32, \
          expected BF16";
    scales_beside_floats: |m| {
        m.replace(&format!("{TEXT}embed_tokens.weight"), "F32", &[VOCAB, 16]);
    } => "tensor language_model.model.embed_tokens.weight in model.safetensors has dtype F32, \
          expected U32";

    a_missing_tensor: |m| m.remove(&format!("{TEXT}layers.2.linear_attn.dt_bias")) =>
        "tensor layers.2.linear_attn.dt_bias is missing";
    a_missing_expert_tensor: |m| {
        m.remove(&format!("{TEXT}layers.1.mlp.switch_mlp.up_proj.weight"));
    } => "tensor layers.1.mlp.switch_mlp.up_proj.weight is missing";
    a_missing_convolution: |m| m.remove(&format!("{TEXT}layers.0.linear_attn.conv1d.weight")) =>
        "tensor layers.0.linear_attn.conv1d.weight is missing";
    a_missing_head: |m| {
        for part in ["weight", "scales", "biases"] {
            m.remove(&format!("language_model.lm_head.{part}"));
        }
    } => "tensor lm_head.weight is missing and tie_word_embeddings is not true";
    an_unknown_tensor: |m| m.float("model.layers.0.mlp.extra.weight", "BF16", &[1]) =>
        "unexpected tensor model.layers.0.mlp.extra.weight in model.safetensors";
    a_layer_too_many: |m| m.float("model.layers.4.input_layernorm.weight", "BF16", &[HIDDEN]) =>
        "unexpected tensor model.layers.4.input_layernorm.weight in model.safetensors";
    a_bias_of_a_projection: |m| m.float(&format!("{TEXT}layers.3.self_attn.q_proj.bias"), "BF16", &[256]) =>
        "unexpected tensor language_model.model.layers.3.self_attn.q_proj.bias in model.safetensors";
    one_weight_under_two_names: |m| m.float("model.norm.weight", "BF16", &[HIDDEN]) =>
        "tensors language_model.model.norm.weight in model.safetensors and model.norm.weight \
         in model.safetensors are the same weight";
    a_norm_of_another_length: |m| m.replace(&format!("{TEXT}norm.weight"), "BF16", &[HIDDEN + 1]) =>
        "tensor language_model.model.norm.weight in model.safetensors has shape [129], expected [128]";
    a_norm_of_another_type: |m| m.replace(&format!("{TEXT}norm.weight"), "U32", &[HIDDEN]) =>
        "tensor language_model.model.norm.weight in model.safetensors has dtype U32, \
         expected BF16, F16 or F32";
    too_few_rows: |m| m.text()["vocab_size"] = json!(17) =>
        "tensor language_model.model.embed_tokens.weight in model.safetensors has shape [16, 16], \
         expected [17, 16]";
    a_convolution_of_another_width: |m| {
        m.replace(&format!("{TEXT}layers.1.linear_attn.conv1d.weight"), "BF16", &[256, 3, 1]);
    } => "tensor language_model.model.layers.1.linear_attn.conv1d.weight in model.safetensors has \
          shape [256, 3, 1], expected [256, 4, 1] or [256, 1, 4]";
    convolutions_of_two_layouts: |m| {
        m.replace(&format!("{TEXT}layers.1.linear_attn.conv1d.weight"), "BF16", &[256, 1, 4]);
    } => "tensors language_model.model.layers.0.linear_attn.conv1d.weight and \
          language_model.model.layers.1.linear_attn.conv1d.weight have different layouts \
          (HF and MLX mixed)";
}

#[test]
fn every_dimension_is_needed() {
    for key in [
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ] {
        let mut model = Model::usual();
        unset(&mut model, key);
        assert_eq!(refusal(&model).to_string(), format!("config.json lacks text_config.{key}"));
    }
    let mut model = Model::dense_tied();
    unset(&mut model, "intermediate_size");
    assert_eq!(refusal(&model).to_string(), "config.json lacks text_config.intermediate_size");
    for key in ["rope_theta", "partial_rotary_factor"] {
        let mut model = Model::usual();
        model.text()["rope_parameters"].as_object_mut().unwrap().remove(key);
        let words = format!("config.json lacks text_config.rope_parameters.{key}");
        assert_eq!(refusal(&model).to_string(), words);
    }
    let mut model = Model::usual();
    unset(&mut model, "layer_types");
    unset(&mut model, "full_attention_interval");
    assert_eq!(
        refusal(&model).to_string(),
        "config.json lacks text_config.full_attention_interval"
    );
    let mut model = Model::usual();
    unset(&mut model, "model_type");
    model.config.as_object_mut().unwrap().remove("model_type");
    assert_eq!(refusal(&model).to_string(), "config.json lacks model_type");
}

#[test]
fn other_quantisation_methods_are_refused_with_one_sentence() {
    for method in ["awq", "gptq", "compressed-tensors", "fp8", "bitsandbytes"] {
        let mut model = Model::hf("BF16");
        model.config["quantization_config"] = json!({"quant_method": method, "bits": 4});
        assert_eq!(
            refusal(&model).to_string(),
            format!(
                "{method} quantisation (quantization_config.quant_method) is not supported, \
                 expected MLX affine or no quantisation"
            )
        );
    }
}

#[test]
fn experts_in_mixed_formats_are_refused_by_name() {
    let mut model = Model::hf("BF16");
    let part = "model.language_model.layers.0.mlp.experts";
    model.remove(&format!("{part}.down_proj"));
    for expert in 0..EXPERTS {
        let dtype = if expert == 2 { "F32" } else { "BF16" };
        let name = format!("{part}.{expert}.down_proj");
        model.matrix(&name, Storage::Float(dtype), &[], HIDDEN, WIDTH);
    }
    let words = refusal(&model).to_string();
    assert!(words.starts_with("tensor layers.0.mlp.experts.2.down_proj is stored as"), "{words}");
}

#[test]
fn fused_experts_of_half_the_rows_are_refused_by_name() {
    let mut model = Model::hf("BF16");
    let name = "model.language_model.layers.0.mlp.experts.gate_up_proj";
    model.replace(name, "BF16", &[EXPERTS, WIDTH, HIDDEN]);
    assert_eq!(
        refusal(&model).to_string(),
        format!(
            "tensor {name} in model.safetensors has shape [4, 128, 128], expected [4, 256, 128]"
        )
    );
}

#[test]
fn floats_without_any_convolution_cannot_be_told_apart() {
    let mut model = Model::hf("BF16");
    set(&mut model, "layer_types", json!(["full_attention"]));
    set(&mut model, "num_hidden_layers", json!(1));
    model.shards.values_mut().for_each(|s| s.retain(|t| !t.name.contains("conv1d")));
    assert!(matches!(refusal(&model), CheckpointError::UnknownLayout));
}

#[test]
fn a_directory_without_weights_is_refused() {
    let mut model = Model::usual();
    model.shards.clear();
    assert!(matches!(refusal(&model), CheckpointError::NoWeights { .. }));
}

#[test]
fn a_directory_without_a_configuration_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for error in [Checkpoint::open(dir.path()).unwrap_err(), describe(dir.path()).unwrap_err()] {
        assert_eq!(error.to_string(), "config.json is missing");
    }
}

#[test]
fn a_path_that_is_no_checkpoint_is_refused_by_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content, expected) in [
        ("file", &b""[..], "a file of another kind, expected a directory or a .lily file"),
        ("m.safetensors", b"", "one safetensors file, expected the directory that holds it"),
        (
            "m.bin",
            b"LILYPACK",
            "a .lily file under another name, expected a name that ends in .lily",
        ),
        ("m.gguf", b"", "GGUF, which is not supported, expected a directory of safetensors"),
        ("m.GGUF", b"", "GGUF, which is not supported"),
        ("model", b"GGUF\x03\0\0\0", "GGUF, which is not supported"),
        ("m.lily", b"GGUF\x03\0\0\0", "GGUF, which is not supported"),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, content).unwrap();
        let message = format!("{} is {expected}", file.display());
        for error in [Checkpoint::open(&file).unwrap_err(), describe(&file).unwrap_err()] {
            assert!(error.to_string().starts_with(&message), "{name}: {error}");
        }
    }
    let error = Checkpoint::open(&dir.path().join("nowhere")).unwrap_err();
    assert!(error.to_string().contains("nowhere"));
    let error = Checkpoint::open(std::path::Path::new("/dev/null")).unwrap_err();
    assert!(error.to_string().starts_with("/dev/null is not a regular file"), "{error}");
}

#[test]
fn a_directory_with_nothing_but_gguf_is_refused_by_that_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model-Q4_K_M.gguf"), "GGUF").unwrap();
    let named = |error: CheckpointError| {
        assert!(matches!(error, CheckpointError::Gguf { file } if file == "model-Q4_K_M.gguf"));
    };
    named(Checkpoint::open(dir.path()).unwrap_err());
    named(describe(dir.path()).unwrap_err());
    let mut model = Model::usual();
    model.shards.clear();
    model.files.insert("model-Q4_K_M.gguf".to_owned(), b"GGUF".to_vec());
    named(refusal(&model));
}

#[test]
fn a_missing_shard_is_named() {
    let mut model = Model::usual();
    model.split();
    model.shards.remove("model-00002-of-00002.safetensors");
    let words = "shard model-00002-of-00002.safetensors is missing; \
                 model-00001-of-00002.safetensors names it";
    assert_eq!(refusal(&model).to_string(), words);
    model.files.clear();
    assert_eq!(refusal(&model).to_string(), words);
}

#[test]
fn the_only_shard_is_named_when_it_is_missing() {
    let mut model = Model::usual();
    model.index(|_| {});
    model.shards.clear();
    let words = "shard model.safetensors is missing; model.safetensors.index.json names it";
    assert_eq!(refusal(&model).to_string(), words);
}

#[test]
fn a_missing_shard_without_a_number_is_named_with_a_tensor_it_holds() {
    let mut model = Model::usual();
    model.remove(&format!("{TEXT}norm.weight"));
    let file = "model-tail.safetensors";
    model.index(|map| drop(map.insert(format!("{TEXT}norm.weight"), json!(file))));
    assert_eq!(
        refusal(&model).to_string(),
        "shard model-tail.safetensors is missing; \
         model.safetensors.index.json for tensor norm.weight names it"
    );
}

#[test]
fn a_tensor_that_only_the_index_knows_is_named() {
    for name in ["mtp.fc.weight", "language_model.model.layers.0.mlp.odd"] {
        let mut model = Model::usual();
        model.index(|map| drop(map.insert(name.into(), json!(SINGLE))));
        assert_eq!(
            refusal(&model).to_string(),
            format!(
                "model.safetensors.index.json places tensor {name} in model.safetensors, which lacks it"
            )
        );
    }
}

#[test]
fn an_index_that_leaves_the_directory_is_refused() {
    for shard in ["../model.safetensors", "/model.safetensors", "a/model.safetensors", "", ".."] {
        let mut model = Model::usual();
        model.index(|map| drop(map.insert(format!("{TEXT}norm.weight"), json!(shard))));
        assert!(matches!(refusal(&model), CheckpointError::ShardName { .. }), "{shard}");
    }
}

#[test]
fn a_malformed_index_is_refused() {
    for (text, words) in [
        ("{}", "model.safetensors.index.json lacks weight_map"),
        (
            r#"{"weight_map": 1}"#,
            "weight_map in model.safetensors.index.json is 1, expected an object",
        ),
        (
            r#"{"weight_map": {"a": 1}}"#,
            "weight_map.a in model.safetensors.index.json is 1, expected a file name",
        ),
    ] {
        let mut model = Model::usual();
        model.files.insert(crate::support::INDEX.into(), text.into());
        assert_eq!(refusal(&model).to_string(), words);
    }
}

#[test]
fn two_files_with_the_same_weight_and_no_index_are_refused_by_name() {
    let mut model = Model::usual();
    let norm = tensor("model.norm.weight", "BF16", &[HIDDEN]);
    model.shards.insert("model-other.safetensors".into(), vec![norm]);
    assert_eq!(
        refusal(&model).to_string(),
        "tensors model.norm.weight in model-other.safetensors and language_model.model.norm.weight \
         in model.safetensors are the same weight"
    );
}

#[test]
fn malformed_configurations_are_refused_by_file_name() {
    for (file, text) in [
        ("config.json", "{"),
        ("config.json", r#"{"model_type": "qwen3_5", "model_type": "qwen3_5"}"#),
        ("config.json", "[]"),
        ("generation_config.json", "{\"temperature\": NaN}"),
        ("model.safetensors.index.json", ""),
    ] {
        let dir = tempfile::tempdir().unwrap();
        Model::usual().write(dir.path());
        std::fs::write(dir.path().join(file), text).unwrap();
        let error = Checkpoint::open(dir.path()).unwrap_err();
        assert!(matches!(&error, CheckpointError::Json { file: f, .. } if f == file), "{error}");
    }
}

#[test]
fn sampling_defaults_outside_their_range_are_refused_by_name() {
    for (key, value) in [
        ("temperature", json!(-1)),
        ("top_k", json!(-1)),
        ("top_p", json!(1.5)),
        ("min_p", json!("0.1")),
        ("repetition_penalty", json!(0)),
        ("do_sample", json!(1)),
        ("eos_token_id", json!(1.5)),
    ] {
        let mut model = Model::usual();
        let text = json!({ key: value }).to_string();
        model.files.insert("generation_config.json".into(), text.into_bytes());
        let words = refusal(&model).to_string();
        assert!(words.starts_with(&format!("{key} in generation_config.json is")), "{words}");
    }
}

#[test]
fn a_shard_that_is_a_folder_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::usual();
    model.shards.clear();
    model.write(dir.path());
    std::fs::create_dir(dir.path().join(SINGLE)).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert_eq!(error.to_string(), "model.safetensors is not a regular file");
}
