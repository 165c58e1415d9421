//! The commands in the forms that the README and outside checks use.

mod common;

use std::fs;
#[cfg(unix)]
use std::io::Read;
use std::path::Path;
use std::process::Command;
#[cfg(unix)]
use std::process::Stdio;

use common::{demo, json, lily, lily_with_input, shared, stdout};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// The format that the demo model knows.
const CHAT: &str = "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n";

fn demo_dir() -> String {
    demo().join("checkpoint").to_str().unwrap().to_owned()
}

#[test]
fn the_demo_model_answers_and_only_the_answer_goes_to_standard_output() {
    let run = lily(["chat", "--temperature", "0", "What is the capital of Japan?"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(run.stdout, "The capital of Japan is Tokyo.\n");
    assert!(run.stderr.contains("tokens/s"), "{}", run.stderr);
}

#[test]
fn the_speed_line_names_the_device() {
    for command in [&["chat", "Hello!"][..], &["generate", "Hello!", "--max-tokens=4"]] {
        let run = lily(command.iter().chain(&["--device=cpu", "--threads=1"]));
        let (_, device) = run.stderr.rsplit_once(" on cpu ").expect(&run.stderr);
        assert!(device.contains(", 1 thread"), "{}", run.stderr);
    }
}

#[test]
fn an_answer_that_is_cut_off_says_by_what_and_prints_no_empty_line() {
    let question = "What is 127 + 58?";
    let run = lily(["chat", "--max-tokens=3", "--temperature=0", question]);
    assert_eq!((run.code, run.stdout.as_str()), (0, ""), "{}", run.stderr);
    let hint =
        "cut off at --max-tokens 3 while still thinking; raise --max-tokens or use --think off";
    assert!(run.stderr.contains(hint), "{}", run.stderr);

    let run = lily(["chat", "--max-tokens=3", "--think=off", "--temperature=0", question]);
    assert!(run.stdout.ends_with('\n') && run.stdout.len() > 1, "{}", run.stdout);
    assert!(run.stderr.trim_end().ends_with("cut off at --max-tokens 3"), "{}", run.stderr);

    let run = lily(["chat", "--context=24", "--temperature=0", question]);
    let hint =
        "cut off at the end of the context of 24 tokens while still thinking; raise --context";
    assert!(run.stderr.contains(hint), "{}", run.stderr);
}

#[test]
fn a_question_may_come_from_standard_input() {
    let run = lily_with_input(["chat", "--temperature=0", "--think=off"], "What is 12 + 30?\n");
    assert!(run.stdout.contains("42"), "{} {}", run.stdout, run.stderr);
}

#[test]
fn the_embedded_model_is_the_one_in_the_repository() {
    let (dir, args) = (demo_dir(), ["generate", "--prompt-tokens=5,6,7", "--json"]);
    let args = [&args[..], &["--max-tokens=16", "--temperature=0"]].concat();
    let embedded = json(&args);
    let from_directory = json(args.iter().copied().chain(["--model-path", &dir]));
    assert_eq!(embedded["tokens"], from_directory["tokens"]);
    assert_eq!(embedded["text"], from_directory["text"]);
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let args = ["generate", "Once", "--temperature=1.5", "--seed=7", "--max-tokens=24", "--tokens"];
    assert_eq!(stdout(args), stdout(args));
}

#[test]
fn generated_tokens_and_text_belong_together() {
    let args = ["generate", "The capital of Japan is", "--max-tokens=8", "--temperature=0"];
    let whole = json(args.iter().copied().chain(["--json"]));
    assert!(matches!(whole["finish_reason"].as_str(), Some("length" | "stop")));
    let tokens: Value =
        serde_json::from_str(&stdout(args.iter().copied().chain(["--tokens"]))).unwrap();
    assert_eq!(whole["tokens"], tokens);
    let text = stdout(args);
    assert_eq!(whole["text"].as_str().unwrap(), text.strip_suffix('\n').unwrap());
}

#[test]
fn a_continuation_is_held_to_a_form() {
    let form = |flag: &str, value: &str| {
        let limits = ["--max-tokens=60", "--temperature=0", "--json"];
        let answer = json(["generate", "The answer: ", flag, value].iter().chain(&limits));
        assert_eq!(answer["finish_reason"], "stop", "{answer}");
        answer["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(form("--regex", "[0-9]{3}-x").split_off(3), "-x");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let schema = file("schema.json", r#"{"type": "integer", "minimum": 10, "maximum": 99}"#);
    assert!((10..100).contains(&form("--json-schema", &schema).parse().unwrap()));
    let grammar = file("grammar.lark", "start: \"<\" /[a-c]{2}/ \">\"");
    assert_eq!(form("--grammar", &grammar).len(), 4);
}

#[test]
fn a_form_that_is_cut_off_says_by_what() {
    let stderr = |flags: &[&str]| {
        let common = ["generate", "hello", "--temperature=0", "--max-tokens=3"];
        lily(common.iter().chain(flags)).stderr
    };
    let cut = stderr(&["--regex", "[0-9]{40}"]);
    assert!(cut.trim_end().ends_with("; the form was cut off at --max-tokens 3"), "{cut}");
    for whole in [stderr(&["--regex", "a"]), stderr(&[])] {
        assert!(!whole.contains("cut off"), "{whole}");
    }
}

#[test]
fn a_chat_is_held_to_a_form_behind_its_thinking() {
    let folder = tempfile::tempdir().unwrap();
    let schema = folder.path().join("schema.json");
    let sure = json!({"type": "object", "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"], "additionalProperties": false});
    fs::write(&schema, sure.to_string()).unwrap();
    for think in ["on", "off"] {
        let chat = |flag: &str, value: &str| {
            let run = lily(["chat", "--think", think, "--temperature=0", flag, value, "Hello!"]);
            assert_eq!(run.code, 0, "{}", run.stderr);
            run.stdout
        };
        let number = chat("--regex", "[0-9]{3}");
        assert!(number.len() == 4 && number.trim_end().parse::<u16>().is_ok(), "{number:?}");
        let object: Value =
            serde_json::from_str(&chat("--json-schema", schema.to_str().unwrap())).unwrap();
        assert!(object["sure"].is_boolean(), "{object}");
    }
}

#[test]
fn thinking_ends_with_its_budget() {
    let prompt = format!("{CHAT}<think>\n");
    let thought = |flags: &[&str]| {
        let args = ["generate", &prompt, "--temperature=0", "--json"];
        let answer = json(args.iter().chain(flags));
        assert_eq!(answer["finish_reason"], "stop", "{answer}");
        let text = answer["text"].as_str().unwrap().to_owned();
        let (thought, said) = text.split_once("</think>").expect(&text);
        (thought.len(), said.trim().to_owned())
    };
    let (free, _) = thought(&[]);
    assert!(thought(&["--thinking-budget=3"]).0 < free, "{free}");
    let (_, said) = thought(&["--thinking-budget=3", "--regex=[0-9]{4}"]);
    assert!(said.len() == 4 && said.parse::<u16>().is_ok(), "{said:?}");

    let tokens = |flags: &[&str]| {
        let run = lily(["chat", "What is 127 + 58?", "--temperature=0"].iter().chain(flags));
        assert!(run.code == 0 && run.stdout.len() > 1, "{} {}", run.stdout, run.stderr);
        let (_, rest) = run.stderr.rsplit_once("first token after ").unwrap();
        let (_, rest) = rest.split_once(", ").unwrap();
        rest.split_once(" tokens").unwrap().0.parse::<u32>().unwrap()
    };
    let free = tokens(&[]);
    assert!(tokens(&["--thinking-budget=3"]) < free, "{free}");
    assert_eq!(tokens(&["--thinking-budget=0"]), tokens(&["--think=off"]));
}

#[test]
fn token_ids_are_taken_as_tokenize_prints_them() {
    let printed = stdout(["tokenize", "The capital of Japan is"]);
    let generate = |ids: &str| {
        let limits = ["--max-tokens=4", "--ignore-eos", "--temperature=0", "--json"];
        json(["generate", "--prompt-tokens", ids].iter().chain(&limits))
    };
    let plain = printed.trim().trim_matches(['[', ']']);
    let spaced = plain.replace(',', ", ");
    let tokens = generate(plain)["tokens"].clone();
    assert_eq!(tokens.as_array().unwrap().len(), 4);
    assert_eq!(generate(&printed)["tokens"], tokens);
    assert_eq!(generate(&spaced)["tokens"], tokens);
}

#[cfg(unix)]
#[test]
fn an_interrupted_text_ends_with_its_line_and_code_130() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lily"))
        .args(["generate", "Once", "--ignore-eos", "--temperature=1"])
        .env_remove("LILY_MODEL_PATH")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first text proves that the generation runs.
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.ends_with(b"\n"));
    assert!(String::from_utf8_lossy(&output.stderr).trim_end().ends_with("; interrupted"));
}

#[test]
fn text_to_continue_may_be_piped_in() {
    let args = ["generate", "--max-tokens=8", "--temperature=0"];
    let piped = lily_with_input(args, "The capital of Japan is");
    assert_eq!(piped.code, 0, "{}", piped.stderr);
    assert_eq!(piped.stdout, stdout(args.iter().copied().chain(["The capital of Japan is"])));
}

#[test]
fn a_stop_string_ends_an_answer() {
    let run = lily(["chat", "--temperature=0", "--stop= is", "What is the capital of Japan?"]);
    assert_eq!(run.stdout, "The capital of Japan\n", "{}", run.stderr);
}

#[test]
fn conversations_need_messages_and_the_wanted_answer_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("questions.jsonl");
    let line = json!({
        "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
        "want": "The capital of Japan is Tokyo.",
    });
    fs::write(&file, format!("{line}\n")).unwrap();
    let report = json(["eval", "--conversations", file.to_str().unwrap()]);
    assert_eq!(report["exact"], 1, "{report}");
    assert_eq!(report["kinds"]["other"]["asked"], 1, "{report}");
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let args = ["generate", "The capital of Japan is", "--max-tokens=24", "--temperature=0"];
    let whole = json(args.iter().copied().chain(["--json"]));
    let text = whole["text"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(3).collect();
    let cut = json(args.iter().copied().chain(["--json", "--stop", &stop]));
    assert_eq!(cut["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    assert_eq!(cut["finish_reason"], "stop");
}

#[test]
fn tokenize_prints_one_array_and_needs_no_weights() {
    let copy = common::demo_copy();
    fs::remove_file(copy.path().join("model.safetensors")).unwrap();
    let ids = json(["tokenize", "--model-path", copy.path().to_str().unwrap(), "Hello <|im_end|>"]);
    assert_eq!(ids, json(["tokenize", "Hello <|im_end|>"]));
    assert_eq!(ids.as_array().unwrap().last(), Some(&json!(4049)));
    assert_eq!(json(["tokenize", ""]), json!([]));
    let file = copy.path().join("text");
    fs::write(&file, "Hello <|im_end|>").unwrap();
    assert_eq!(json(["tokenize", "--file", file.to_str().unwrap()]), ids);
    let piped = lily_with_input(["tokenize"], "Hello <|im_end|>").stdout;
    assert_eq!(serde_json::from_str::<Value>(&piped).unwrap(), ids);
}

#[test]
fn an_empty_model_path_variable_counts_as_unset() {
    let run = Command::new(env!("CARGO_BIN_EXE_lily"))
        .args(["tokenize", "Hello"])
        .env("LILY_MODEL_PATH", "")
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&run.stdout).unwrap(), json(["tokenize", "Hello"]));
}

#[test]
fn render_prints_the_prompt_of_a_request() {
    let dir = tempfile::tempdir().unwrap();
    let request = dir.path().join("request.json");
    let body = json!({
        "model": "any",
        "temperature": 0.5,
        "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "chat_template_kwargs": {"enable_thinking": false},
    });
    fs::write(&request, body.to_string()).unwrap();
    assert_eq!(
        stdout(["render", "--request", request.to_str().unwrap()]),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}

#[test]
fn the_genuine_tokenizer_and_template_files_work_without_weights() {
    let Some(dir) = shared("qwen36") else { return };
    let path = dir.to_str().unwrap();
    let vectors: Value =
        serde_json::from_slice(&fs::read(dir.join("tokenizer-vectors.json")).unwrap()).unwrap();
    let vectors = vectors.as_array().or_else(|| vectors["vectors"].as_array()).unwrap();
    let hello = vectors.iter().find(|v| v["name"].as_str().unwrap().contains("known")).unwrap();
    let text = hello["text"].as_str().unwrap();
    assert_eq!(json(["tokenize", "--model-path", path, text]), hello["ids"]);

    let plan = json(["plan", "--model-path", path, "--phase", "decode", "--json"]);
    assert_eq!(plan["state_bytes"], 62_914_560 + 30 * 4 * 8192 * 4);
    assert!(plan["stages"].as_u64().unwrap() <= plan["steps"].as_u64().unwrap());
    // 1,669,560,576 bytes and one embedding row, which is 1024 + 128 bytes in 4 bits.
    assert_eq!(plan["weight_bytes"], 1_669_560_576 + 1152);

    let facts = json(["inspect", "--model-path", path, "--json"]);
    assert_eq!(facts["parameters"], 34_660_610_688_u64);
    assert_eq!(facts["memory"]["weights"], 19_508_787_456_u64);
}

#[test]
fn the_plan_of_the_demo_model_prints_as_text_and_as_json() {
    for phase in ["prefill", "decode", "score"] {
        let plan = json(["plan", "--phase", phase, "--json"]);
        for field in ["steps", "stages", "weight_bytes", "state_bytes"] {
            assert!(plan[field].as_u64().unwrap() > 0, "{phase} {field}");
        }
        assert_eq!(plan["schedule"].as_array().unwrap().len() as u64, plan["stages"]);
        assert!(stdout(["plan", "--phase", phase]).contains("layers.0"), "{phase}");
    }
    let plan = stdout(["plan", "--fuse=swiglu"]);
    assert!(plan.starts_with("device       cpu\nfusions      swiglu\nphase"), "{plan}");
    let steps = |fuse| json(["plan", "--json", "--fuse", fuse])["steps"].as_u64().unwrap();
    assert!(steps("none") > steps("residual") && steps("residual") > steps("all"));
}

#[test]
fn the_work_of_the_steps_of_a_plan_sums_to_its_totals_and_grows_with_the_position() {
    let plan = |position| json(["plan", "--json", "--device=metal", "--position", position]);
    let (empty, long) = (plan("0"), plan("2048"));
    let sum = |plan: &Value, field| -> u64 {
        plan["work"].as_array().unwrap().iter().map(|step| step[field].as_u64().unwrap()).sum()
    };
    for found in [&empty, &long] {
        assert_eq!(found["work"].as_array().unwrap().len() as u64, found["steps"]);
        for field in ["weight_bytes", "state_bytes", "kv_bytes", "flops"] {
            assert_eq!(sum(found, field), found[field], "{field}");
        }
        assert!(sum(found, "activation_bytes") > 0);
    }
    // Keys and values of each earlier token are read once.
    let per_token = empty["kv_bytes_per_token"].as_u64().unwrap();
    assert_eq!(sum(&long, "kv_bytes") - sum(&empty, "kv_bytes"), 2048 * per_token);
    assert!(sum(&long, "flops") > sum(&empty, "flops"));
    assert_eq!(sum(&long, "weight_bytes"), sum(&empty, "weight_bytes"));
}

#[test]
fn a_plan_for_a_gpu_is_printed_without_one() {
    let plan = |device| json(["plan", "--json", "--device", device]);
    let cpu = plan("cpu");
    assert_eq!((&cpu["device"], &cpu["fusions"]), (&json!("cpu"), &plan("auto")["fusions"]));
    for gpu in ["cuda", "metal"] {
        let found = plan(gpu);
        assert_eq!((&found["device"], &found["fusions"]), (&json!(gpu), &json!("all")));
        assert!(found["steps"].as_u64() < cpu["steps"].as_u64(), "{gpu}: fused steps are fewer");
        let schedule = found["schedule"].to_string();
        assert!(schedule.contains("advance"), "{gpu} chooses the next token itself: {schedule}");
        // Its KV cache is as exact as its products: bf16.
        let kv = |plan: &Value| plan["kv_bytes_per_token"].as_u64().unwrap();
        assert_eq!(2 * kv(&found), kv(&cpu), "{gpu}");
        let exact = json(["plan", "--json", "--device", gpu, "--kv-cache", "f32"]);
        assert_eq!(kv(&exact), kv(&cpu), "{gpu}");
        // An explicit choice holds there too.
        let unfused = json(["plan", "--json", "--device", gpu, "--fuse", "none"]);
        assert_eq!(unfused["fusions"], "none", "{gpu}");
    }
}

#[test]
fn inspect_names_the_device_that_its_memory_is_for() {
    for device in ["cpu", "cuda", "metal"] {
        assert_eq!(json(["inspect", "--json", "--device", device])["device"], device);
        let text = stdout(["inspect", "--device", device]);
        assert!(text.contains(&format!(" on {device} at a context of ")), "{text}");
    }
}

#[test]
fn inspect_shows_formats_and_memory() {
    let text = stdout(["inspect", "--context", "1024"]);
    for expected in ["qwen3_5_moe", "4-bit group 64", "8-bit group 64", "context of 1024"] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}

#[test]
fn bench_reports_every_length_in_json() {
    let report = json(["bench", "--lengths=16, 32", "--steps=4", "--rounds=1", "--json"]);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!(results[1]["prompt_tokens"], 32);
    assert!(results[1]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(results[1]["digest"].as_str().unwrap().len(), 16);
}

#[test]
fn eval_over_a_text_gives_a_perplexity() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    fs::write(&file, "The capital of Japan is Tokyo. The capital of France is Paris.").unwrap();
    let file = file.to_str().unwrap();
    let report = json(["eval", file]);
    assert!(report["perplexity"].as_f64().unwrap() > 1.0);
    assert_eq!(report["positions"].as_u64().unwrap() + 1, report["tokens"].as_u64().unwrap());
    assert_eq!(json(["eval", file, "--last", "3"])["positions"], 3);
}

#[test]
fn a_perplexity_worse_than_guessing_is_explained() {
    let readme = common::workspace().join("README.md");
    let run = lily(["eval", readme.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(report["perplexity"].as_f64().unwrap() > 4096.0, "{report}");
    for word in ["note:", "4096 tokens", "worse than guessing", "demo model", "--model-path"] {
        assert!(run.stderr.contains(word), "{word}: {}", run.stderr);
    }
    // What the model knows needs no explanation.
    let dir = tempfile::tempdir().unwrap();
    let chat = dir.path().join("chat.txt");
    fs::write(&chat, stdout(["generate", "--temperature=0", CHAT])).unwrap();
    assert_eq!(lily(["eval", chat.to_str().unwrap()]).stderr, "");
}

#[test]
fn a_rendered_request_can_be_continued() {
    let dir = tempfile::tempdir().unwrap();
    let request = dir.path().join("request.json");
    let body = json!({"messages": [{"role": "user", "content": "What is 2 + 3?"}]});
    fs::write(&request, body.to_string()).unwrap();
    let prompt = stdout(["render", "--request", request.to_str().unwrap()]);
    let run = lily_with_input(["generate", "--max-tokens=64", "--temperature=0"], &prompt);
    assert!(run.stdout.contains("2 + 3 = 5."), "{} {}", run.stdout, run.stderr);
}

#[test]
fn ids_are_continued_without_a_tokenizer_where_no_text_is_printed() {
    let copy = common::demo_copy();
    fs::remove_file(copy.path().join("tokenizer.json")).unwrap();
    let dir = copy.path().to_str().unwrap();
    let args = ["generate", "--prompt-tokens=1,2,3", "--max-tokens=4", "--model-path", dir];
    for printed in ["--json", "--tokens"] {
        json(args.iter().copied().chain([printed]));
    }
    let run = lily(args);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(run.stderr.contains("if it prints --json or --tokens"), "{}", run.stderr);
}

#[test]
fn the_goldens_are_met_through_the_command_line() {
    let Some(goldens) = shared("goldens") else { return };
    for name in
        ["moe_hybrid_4bit_gs64", "dense_tied_4bit_gs64", "moe_mixed_bits_gs32", "moe_bf16_hf"]
    {
        let dir = goldens.join(name);
        let golden: Value =
            serde_json::from_slice(&fs::read(dir.join("golden.json")).unwrap()).unwrap();
        greedy_tokens_are_met(&dir, &golden);
        for prompt in ["short", "long"] {
            logits_are_met(&dir, &golden, prompt);
        }
    }
}

fn greedy_tokens_are_met(dir: &Path, golden: &Value) {
    let prompt = golden["prompts"]["short"].as_array().unwrap();
    let prompt = prompt.iter().map(Value::to_string).collect::<Vec<_>>().join(",");
    let path = dir.to_str().unwrap();
    let generated = json([
        "generate",
        "--model-path",
        path,
        "--prompt-tokens",
        &prompt,
        "--max-tokens",
        "32",
        "--temperature",
        "0",
        "--json",
    ]);
    assert_eq!(generated["tokens"], golden["greedy"]["tokens"], "{path}");
    assert_eq!(generated["text"], Value::Null, "there is no tokenizer");
}

fn logits_are_met(dir: &Path, golden: &Value, prompt: &str) {
    let bytes = fs::read(dir.join("golden.safetensors")).unwrap();
    let golden_tensors = SafeTensors::deserialize(&bytes).unwrap();
    let logits = golden_tensors.tensor(&format!("{prompt}.logits.ref")).unwrap();
    let ids: Vec<u8> = golden["prompts"][prompt]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|id| id.as_i64().unwrap().to_le_bytes())
        .collect();
    let ids = TensorView::new(Dtype::I64, vec![ids.len() / 8], &ids).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let reference = folder.path().join("reference.safetensors");
    let file = safetensors::serialize([("ids", ids), ("logits", logits)], None).unwrap();
    fs::write(&reference, file).unwrap();

    let (path, reference) = (dir.to_str().unwrap(), reference.to_str().unwrap());
    let report = json(["eval", "--model-path", path, "--reference", reference]);
    assert_eq!(report["positions"], 8, "{path}");
    assert!(report["max_abs_diff"].as_f64().unwrap() <= 1e-3, "{path} {prompt}: {report}");
    assert_eq!(report["top1_agreement"], 1.0, "{path} {prompt}");
    let ratio =
        report["perplexity"].as_f64().unwrap() / report["reference_perplexity"].as_f64().unwrap();
    assert!((ratio - 1.0).abs() < 1e-3, "{path} {prompt}: {report}");
}

#[test]
fn completions_name_every_command() {
    let script = stdout(["completions", "bash"]);
    for command in ["chat", "serve", "make-checkpoint", "--model-path"] {
        assert!(script.contains(command), "{command}");
    }
}
