//! The plans of tiny models.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{manifest, tiny_dense, tiny_moe};
use lily_checkpoint::config::{MlpConfig, ModelConfig};
use lily_checkpoint::manifest::{Dtype, Manifest, WeightInfo, WeightShape};
use lily_model::{BuildOptions, Fusions, GENERATED, ModelError, build};
use lily_plan::ValidPlan;
use lily_plan::buffer::{BufferClass, Elem};
use lily_plan::op::Op;
use lily_plan::plan::{Phase, Plan};

/// A way to break a configuration and the refusal it must meet.
type Case = (fn(&mut ModelConfig), &'static str);

fn options(phase: Phase, rows: usize, fusions: Fusions) -> BuildOptions {
    BuildOptions { fusions, ..BuildOptions::new(phase, rows, 64) }
}

fn plan(config: &ModelConfig, phase: Phase, rows: usize, fusions: Fusions) -> Plan {
    build(config, &manifest(config), &options(phase, rows, fusions)).expect("a plan")
}

fn valid(config: &ModelConfig, phase: Phase, rows: usize, fusions: Fusions) -> ValidPlan {
    ValidPlan::new(plan(config, phase, rows, fusions)).expect("a valid plan")
}

/// Every phase, row count and combination of fusions worth a look.
fn variants() -> Vec<(Phase, usize, Fusions)> {
    let mut variants = Vec::new();
    for bits in 0..1 << Fusions::names().len() {
        let on = Fusions::names().into_iter().enumerate().filter(|(i, _)| bits >> i & 1 != 0);
        let list: Vec<_> = on.map(|(_, name)| name).collect();
        let list = if list.is_empty() { "none".to_owned() } else { list.join(",") };
        let fusions: Fusions = list.parse().expect("known fusions");
        for (phase, rows) in
            [(Phase::Decode, 1), (Phase::Prefill, 1), (Phase::Prefill, 5), (Phase::Score, 5)]
        {
            variants.push((phase, rows, fusions));
        }
    }
    variants
}

#[test]
fn dumps_of_tiny_models_are_as_recorded() {
    for (model, config) in [("moe", tiny_moe()), ("dense", tiny_dense())] {
        for (phase, rows, name) in [(Phase::Decode, 1, "decode"), (Phase::Prefill, 5, "prefill")] {
            for fusions in [Fusions::all(), Fusions::cpu(), Fusions::none()] {
                // Plans of several rows know no more fusions than these.
                if rows > 1 && fusions == Fusions::all() {
                    continue;
                }
                let text = lily_plan::dump(&valid(&config, phase, rows, fusions));
                insta::assert_snapshot!(format!("{model}_{name}_fused_{fusions}"), text);
            }
        }
    }
}

#[test]
fn every_variant_passes_the_validator() {
    for config in [tiny_moe(), tiny_dense()] {
        for (phase, rows, fusions) in variants() {
            let built = ValidPlan::new(plan(&config, phase, rows, fusions));
            assert!(built.is_ok(), "{phase:?} {rows} {fusions}: {:?}", built.err());
        }
    }
}

#[test]
fn every_weight_is_read_by_one_step_but_tied_embeddings_and_norms_that_readers_do_themselves() {
    for config in [tiny_moe(), tiny_dense()] {
        for (phase, rows, fusions) in variants() {
            let plan = plan(&config, phase, rows, fusions);
            let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
            for step in &plan.steps {
                for used in step.op.signature().weights {
                    *uses.entry(&plan.weight(used.id).name).or_default() += 1;
                }
            }
            let manifest = manifest(&config);
            assert_eq!(uses.len(), manifest.weights().len());
            for WeightInfo { name, .. } in manifest.weights() {
                let tied = config.tie_word_embeddings && name == "embed_tokens";
                let expected = match name.ends_with("layernorm") && fusions.norm && rows == 1 {
                    true => 1..=4,
                    false if tied => 2..=2,
                    false => 1..=1,
                };
                assert!(expected.contains(&uses[name.as_str()]), "{fusions}: {name}");
            }
        }
    }
}

#[test]
fn session_buffers_are_the_same_in_all_plans_of_a_model() {
    let session = |plan: &Plan| -> BTreeSet<(String, u64, &'static str)> {
        let class = |class| match class {
            BufferClass::KvCache => Some("kv"),
            BufferClass::State => Some("state"),
            BufferClass::Input | BufferClass::Output | BufferClass::Scratch => None,
        };
        let buffers = plan.buffers.iter();
        buffers.filter_map(|b| Some((b.name.clone(), b.bytes(), class(b.class)?))).collect()
    };
    let config = tiny_moe();
    let expected = BTreeSet::from([
        ("layers.0.conv_state".to_owned(), 4 * 4 * 128, "state"),
        ("layers.0.delta_state".to_owned(), 4 * 4 * 16 * 16, "state"),
        ("layers.1.k_cache".to_owned(), 4 * 2 * 64 * 16, "kv"),
        ("layers.1.v_cache".to_owned(), 4 * 2 * 64 * 16, "kv"),
    ]);
    for (phase, rows, fusions) in variants() {
        assert_eq!(session(&plan(&config, phase, rows, fusions)), expected);
    }
}

#[test]
fn a_bf16_cache_is_half_as_large() {
    let config = tiny_dense();
    let bytes = |kv| {
        let options = BuildOptions { kv, ..options(Phase::Decode, 1, Fusions::all()) };
        let plan = build(&config, &manifest(&config), &options).expect("a plan");
        let caches = plan.buffers.iter().filter(|b| b.class == BufferClass::KvCache);
        caches.map(|b| b.bytes()).sum::<u64>()
    };
    assert_eq!(bytes(Elem::F32), 2 * bytes(Elem::Bf16));
}

#[test]
fn projections_of_one_input_share_a_stage() {
    let valid = valid(&tiny_moe(), Phase::Decode, 1, Fusions::cpu());
    let stage_of = |name: &str| {
        let step = valid.plan().steps.iter().position(|s| s.name == name).expect(name);
        valid.stages().iter().position(|s| s.contains(&step)).expect("every step has a stage")
    };
    for together in [
        &[
            "linear_attn.in_proj_qkv",
            "linear_attn.in_proj_z",
            "linear_attn.in_proj_b",
            "linear_attn.in_proj_a",
        ][..],
        &["mlp.gate", "mlp.shared_expert_gate", "mlp.shared_expert.swiglu"],
        &["mlp.route", "mlp.shared_expert.down_proj"],
    ] {
        let stages: BTreeSet<_> =
            together.iter().map(|n| stage_of(&format!("layers.0.{n}"))).collect();
        assert_eq!(stages.len(), 1, "{together:?}");
    }
    let qkv: BTreeSet<_> =
        ["q_proj", "k_proj", "v_proj"].map(|n| stage_of(&format!("layers.1.self_attn.{n}"))).into();
    assert_eq!(qkv.len(), 1);
}

#[test]
fn only_the_last_row_of_a_prompt_chunk_reaches_the_head() {
    let config = tiny_dense();
    let logits_rows = |phase, rows| {
        let plan = plan(&config, phase, rows, Fusions::all());
        plan.buffer(plan.ports.logits).len / config.vocab_size as u64
    };
    assert_eq!(logits_rows(Phase::Prefill, 5), 1);
    assert_eq!(logits_rows(Phase::Score, 5), 5);
    assert_eq!(logits_rows(Phase::Decode, 1), 1);
}

#[test]
fn a_fusion_that_is_off_leaves_its_twin() {
    let count = |fusions: &str, kind: &str| {
        let fusions: Fusions = fusions.parse().expect("known fusions");
        let plan = plan(&tiny_moe(), Phase::Prefill, 5, fusions);
        plan.steps.iter().filter(|s| s.op.signature().kind == kind).count()
    };
    for kind in ["add", "swiglu", "output_gate"] {
        assert_eq!(count("all", kind), 0, "{kind}");
    }
    assert_eq!(count("swiglu,attention_gate", "add"), 2, "one per mixer, the experts combine");
    assert_eq!(count("residual,attention_gate", "swiglu"), 4, "experts and shared, two layers");
    assert_eq!(count("residual,attention_gate", "expert_gated_linear"), 0);
    assert_eq!(count("residual,swiglu", "output_gate"), 1);
}

#[test]
fn a_fusion_of_decode_steps_that_is_off_leaves_its_twin() {
    let count = |off: &str, kind: &str| {
        let on: Vec<_> = Fusions::names().into_iter().filter(|&name| name != off).collect();
        let fusions: Fusions = on.join(",").parse().expect("known fusions");
        let plan = plan(&tiny_moe(), Phase::Decode, 1, fusions);
        plan.steps.iter().filter(|s| s.op.signature().kind == kind).count()
    };
    // Two layers, one of each kind.
    assert_eq!((count("", "rms_norm"), count("norm", "rms_norm")), (0, 5));
    // Projections, gates of both layers, head; the projections one by one are 4 + 3 + 2 * 2 + 1.
    assert_eq!((count("", "stacked_linear"), count("stack", "stacked_linear")), (5, 12));
    assert_eq!((count("", "conv"), count("delta", "conv")), (0, 1));
    assert_eq!((count("", "delta_mix"), count("delta", "delta_mix")), (1, 0));
    assert_eq!((count("", "attention"), count("attention", "attention")), (0, 1));
    assert_eq!((count("", "attention_merge"), count("attention", "attention_merge")), (1, 0));
    assert_eq!((count("", "route"), count("routing", "route")), (0, 2));
    // Experts that are steps of their own read a norm that is a step of its own.
    assert_eq!((count("routing", "rms_norm"), count("routing", "routed_down")), (2, 0));
}

#[test]
fn only_what_feeds_products_of_several_rows_is_bf16() {
    let bf16 = |phase, rows| {
        let options = BuildOptions {
            activations: Elem::Bf16,
            fusions: Fusions::all(),
            ..BuildOptions::new(phase, rows, 64)
        };
        let plan = build(&tiny_moe(), &manifest(&tiny_moe()), &options).expect("a plan");
        ValidPlan::new(plan.clone()).expect("a valid plan");
        let buffers = plan.buffers.into_iter().filter(|b| b.elem == Elem::Bf16);
        buffers.map(|b| b.name).collect::<Vec<_>>()
    };
    assert!(bf16(Phase::Decode, 1).is_empty());
    let expected = [
        "layers.0.input_layernorm",
        "layers.0.linear_attn.normed",
        "layers.0.post_attention_layernorm",
        "layers.0.mlp.shared_expert.swiglu",
        "layers.0.mlp.switch_mlp.swiglu",
        "layers.1.input_layernorm",
        "layers.1.self_attn.out",
        "layers.1.post_attention_layernorm",
        "layers.1.mlp.shared_expert.swiglu",
        "layers.1.mlp.switch_mlp.swiglu",
    ];
    assert_eq!(bf16(Phase::Prefill, 5), expected);
}

#[test]
fn a_token_slot_feeds_the_next_step_of_decode_plans_only() {
    let build = |phase, rows| {
        let options = BuildOptions {
            token_slot: true,
            token_limit: Some(90),
            ..BuildOptions::new(phase, rows, 64)
        };
        let plan = build(&tiny_moe(), &manifest(&tiny_moe()), &options).expect("a plan");
        ValidPlan::new(plan).expect("a valid plan").plan().clone()
    };
    let plan = build(Phase::Decode, 1);
    let [.., argmax, advance] = &plan.steps[..] else { panic!("a few steps") };
    let (Op::ArgmaxParts(argmax), Op::Advance(advance)) = (&argmax.op, &advance.op) else {
        panic!("{argmax:?} {advance:?}")
    };
    assert_eq!((argmax.vocab, argmax.logits.bytes.clone()), (90, 0..4 * 90));
    assert_eq!(advance.tokens.buffer, plan.ports.tokens);
    assert_eq!(plan.buffer(advance.ring.buffer).name, GENERATED);
    assert!(build(Phase::Prefill, 5).steps.iter().all(|s| !matches!(s.op, Op::Advance(_))));
}

#[test]
fn a_manifest_that_does_not_fit_is_refused_by_name() {
    let config = tiny_moe();
    let build_with = |change: &dyn Fn(&mut Vec<WeightInfo>)| {
        let mut weights = manifest(&config).weights().to_vec();
        change(&mut weights);
        let options = options(Phase::Decode, 1, Fusions::all());
        build(&config, &Manifest::new(weights), &options).expect_err("a refusal")
    };
    let missing = build_with(&|w| w.retain(|w| w.name != "layers.1.self_attn.k_norm"));
    assert_eq!(missing.to_string(), "weight layers.1.self_attn.k_norm is missing");

    let shape = build_with(&|w| {
        let found = w.iter_mut().find(|w| w.name == "layers.0.mlp.switch_mlp.up_proj");
        let WeightShape::Matrix(m) = &mut found.expect("present").shape else { panic!("a matrix") };
        m.n_experts = 7;
    });
    let expected = ModelError::WeightShape {
        name: "layers.0.mlp.switch_mlp.up_proj".into(),
        expected: "8 matrices [32, 64]".into(),
        found: "7 matrices [32, 64]".into(),
    };
    assert_eq!(shape, expected);

    let kind = build_with(&|w| {
        let found = w.iter_mut().find(|w| w.name == "norm").expect("present");
        found.shape = WeightShape::Conv { channels: 64, width: 1, dtype: Dtype::F32 };
    });
    assert_eq!(kind.to_string(), "weight norm: expected vector [64], found conv [64, 1]");

    let unused = build_with(&|w| {
        let extra = WeightInfo { name: "layers.2.mlp.gate".into(), ..w[1].clone() };
        w.push(extra);
    });
    let expected = "weight layers.2.mlp.gate has no use in a qwen3_5_moe model of 2 layers";
    assert_eq!(unused.to_string(), expected);
}

#[test]
fn impossible_options_are_refused_by_field() {
    let refuse = |config: ModelConfig, change: &dyn Fn(&mut BuildOptions)| {
        let mut options = options(Phase::Prefill, 5, Fusions::all());
        change(&mut options);
        build(&config, &manifest(&config), &options).expect_err("a refusal").to_string()
    };
    let dense = tiny_dense;
    assert_eq!(refuse(dense(), &|o| o.rows = 0), "rows: expected at least 1, found 0");
    assert_eq!(
        refuse(dense(), &|o| o.phase = Phase::Decode),
        "rows: expected 1 for decode, found 5"
    );
    assert_eq!(
        refuse(dense(), &|o| o.capacity = 4),
        "capacity: expected at least the rows, found 4"
    );
    assert_eq!(
        refuse(dense(), &|o| o.activations = Elem::U32),
        "activations: expected F32 or Bf16, found U32"
    );
    assert_eq!(
        refuse(dense(), &|o| o.token_limit = Some(97)),
        "token_limit: expected 1 to the vocabulary's size, found 97"
    );
    assert_eq!(refuse(dense(), &|o| o.kv = Elem::U32), "kv: expected F32 or Bf16, found U32");
}

#[test]
fn impossible_configurations_are_refused_by_field() {
    let refuse = |mut config: ModelConfig, change: &dyn Fn(&mut ModelConfig)| {
        let fitting = manifest(&config);
        change(&mut config);
        let options = options(Phase::Prefill, 5, Fusions::all());
        build(&config, &fitting, &options).expect_err("a refusal").to_string()
    };
    let cases: [Case; 10] = [
        (|c| c.layers.clear(), "layers: expected 1 to 2^24, found 0"),
        (|c| c.hidden_size = 0, "hidden_size: expected 1 to 2^24, found 0"),
        (|c| c.head_dim = usize::MAX, "head_dim: expected 1 to 2^24, found 18446744073709551615"),
        (|c| c.n_kv_heads = 3, "n_heads: expected a multiple of n_kv_heads, found 4"),
        (
            |c| c.linear_key_heads = 3,
            "linear_value_heads: expected a multiple of linear_key_heads, found 4",
        ),
        (|c| c.conv_width = 1, "conv_width: expected at least 2, found 1"),
        (|c| c.rope.rotary_dim = 18, "rotary_dim: expected even, 2 to head_dim, found 18"),
        (|c| c.rope.rotary_dim = 3, "rotary_dim: expected even, 2 to head_dim, found 3"),
        (|c| c.rope.theta = f64::NAN, "theta: expected more than 1, found NaN"),
        (
            |c| {
                if let MlpConfig::Moe { top_k, .. } = &mut c.mlp {
                    *top_k = 9;
                }
            },
            "top_k: expected at most n_experts, found 9",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(refuse(tiny_moe(), &change), expected);
    }
    let text = refuse(tiny_dense(), &|c| c.mlp = MlpConfig::Dense { intermediate_size: 0 });
    assert_eq!(text, "intermediate_size: expected 1 to 2^24, found 0");
}

#[test]
fn fusions_parse_and_print_as_comma_lists() {
    let round = |text: &str| text.parse::<Fusions>().map(|f| f.to_string());
    assert_eq!(round("all").as_deref(), Ok("all"));
    assert_eq!(round("none").as_deref(), Ok("none"));
    assert_eq!(round(" swiglu, residual ").as_deref(), Ok("residual,swiglu"));
    assert_eq!(round("residual,swiglu,attention_gate").as_deref(), Ok("cpu"));
    assert_eq!(round("cpu").as_deref(), Ok("cpu"));
    assert_eq!(round(&Fusions::names().join(",")).as_deref(), Ok("all"));
    let error = "residual,rope".parse::<Fusions>().expect_err("no such fusion");
    assert_eq!(
        error.to_string(),
        "unknown fusion \"rope\", expected all, none, cpu or a comma list of \
         residual, swiglu, attention_gate, norm, stack, delta, attention, routing"
    );
}
