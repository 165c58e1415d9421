//! `lily bench --compare` against peers that a test writes, so that every answer of a peer can be had.
//!
//! Skipped where Python is missing, unless `LILY_REQUIRE_PYTHON=1` is set.
#![cfg(unix)]

mod common;

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Run, demo, json, lily, stdout};
use serde_json::Value;
use tempfile::TempDir;

/// Speaks the protocol of `mlx_lm.py`: 1000 prompt tokens and 50 decoded tokens a second. Its first
/// argument is what it does wrong, the second a folder for notes, the third the tokens it generates.
const MLX_LM: &str = r#"
import json, os, sys
wrong, notes, tokens = sys.argv[1], sys.argv[2], sys.argv[3]
tokens = [int(token) for token in tokens.split(",")]
with open(notes + "/starts", "a") as file:
    file.write(f"{os.getpid()}\n")
def say(text):
    print(text, flush=True)
def end(words):
    sys.stderr.write(words)
    sys.exit(3)
if wrong == "dead": end("Traceback:\n  somewhere\n\x1b[31mImportError: libmlx.so\n")
if wrong == "chatty": say("Hello, I am a peer.")
if wrong == "flood":
    while True: sys.stdout.write("x" * 65536)
if wrong == "no versions": say("[]")
if wrong == "mute":
    for line in sys.stdin: pass
say(json.dumps({"versions": {"mlx": "0.1", "mlx-lm": "<b>0.2</b>"}, "device": "gpu"}))
runs = 0
for line in sys.stdin:
    request = json.loads(line)
    if "load" in request:
        with open(notes + "/loaded", "w") as file: file.write(request["load"])
        say('{"error": "no such format"}' if wrong == "refusing" else '{"loaded": true}')
        continue
    if wrong == "mute at 24" and request["length"] == 24: continue
    if wrong == "dying": end("out of memory\n")
    length, steps = request["length"], request["steps"]
    runs += 1
    answer = {"prefill_s": length / 1000, "decode_s": steps / 50, "tokens": tokens[:steps + 1]}
    if wrong == "NaN": answer["prefill_s"] = float("nan")
    if wrong == "negative": answer["decode_s"] = -0.5
    if wrong == "few": answer["tokens"] = answer["tokens"][1:]
    if wrong == "large": answer["tokens"][0] = request["vocab"]
    if wrong == "fickle": answer["tokens"][0] = runs
    say(json.dumps(answer))
"#;

/// Prints what `llama-bench -o json` does: 200 prompt tokens and 20 decoded tokens a second.
const LLAMA_BENCH: &str = r#"
import json, sys
wrong, notes, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
if "--help" in arguments: sys.exit(0)
with open(notes + "/arguments", "a") as file:
    file.write(" ".join(arguments) + "\n")
if wrong == "dead":
    sys.stderr.write("error: failed to load model\n")
    sys.exit(1)
if wrong == "chatty":
    print("| model | t/s |")
    sys.exit(0)
flag = lambda name: int(arguments[arguments.index(name) + 1])
prompt, generated, depth = flag("-p"), flag("-n"), flag("-d")
result = {
    "build_commit": "0c1e570", "build_number": 1, "backends": "CPU", "n_threads": flag("-t"),
    "n_prompt": prompt, "n_gen": generated, "n_depth": depth,
    "samples_ns": [prompt * 5_000_000 + generated * 50_000_000],
}
if wrong == "shallow": result["n_depth"] = 0
if wrong == "instant": result["samples_ns"] = [0]
if wrong == "NaN": result["samples_ns"] = [float("nan")]
print(json.dumps([result] * (2 if wrong == "double" else 1), indent=2))
"#;

/// Whether there is a Python to run the peers with.
fn python() -> bool {
    let found = Command::new("python3").args(["-c", ""]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(env::var_os("LILY_REQUIRE_PYTHON").is_none_or(|v| v != "1"), "python3 is missing");
    // Written past the capture of passing tests, so that a skip is seen.
    drop(writeln!(std::io::stderr(), "skipped: python3 is missing"));
    false
}

/// A peer in a folder of its own.
struct Fake {
    folder: TempDir,
    /// What tells lily to use it.
    flags: Vec<String>,
}

impl Fake {
    fn new(script: &str, arguments: &[&str]) -> Fake {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("peer.py");
        fs::write(&file, script).unwrap();
        let mut flags = vec!["bench".to_owned(), "--device=cpu".into(), "--threads=1".into()];
        flags.push("--peer-command=python3".into());
        let folder_path = folder.path().to_str().unwrap().to_owned();
        let words = [file.to_str().unwrap(), arguments[0], &folder_path];
        for word in words.iter().chain(&arguments[1..]) {
            flags.push(format!("--peer-arg={word}"));
        }
        Fake { folder, flags }
    }

    /// Generates these tokens and makes this mistake.
    fn mlx_lm(wrong: &str, tokens: &[u64]) -> Fake {
        let tokens = tokens.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let mut fake = Fake::new(MLX_LM, &[wrong, &tokens]);
        fake.flags.push("--compare=mlx-lm".into());
        fake.flags.push(format!("--model-path={}", demo_dir()));
        fake
    }

    fn llama_bench(wrong: &str) -> Fake {
        let mut fake = Fake::new(LLAMA_BENCH, &[wrong]);
        let model = fake.path("model.gguf");
        fs::write(&model, "GGUF").unwrap();
        fake.flags.push("--compare=llama.cpp".into());
        fake.flags.push(format!("--peer-model={}", model.display()));
        fake
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, flags: &str) -> Run {
        lily(self.flags.iter().map(String::as_str).chain(flags.split_whitespace()))
    }

    fn noted(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn demo_dir() -> String {
    demo().join("checkpoint").to_str().unwrap().to_owned()
}

/// One error line, with these words and without control characters.
fn assert_refused(case: &str, run: &Run, code: i32, expected: &[&str]) {
    assert_eq!(run.code, code, "{case}: {}", run.stderr);
    let last = run.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") || code == 2, "{case}: {}", run.stderr);
    assert!(!run.stderr.contains('\u{1b}'), "{case}: {:?}", run.stderr);
    assert_eq!(run.stdout, "", "{case}: nothing is reported");
    for word in expected {
        assert!(run.stderr.contains(word), "{case}: {word:?} is not in {}", run.stderr);
    }
}

/// What lily generates from the contract's prompt of 16 tokens.
fn greedy_tokens() -> Vec<u64> {
    let ids: Vec<_> =
        (0..16u64).map(|i| (((i * 2_654_435_761) & 0xffff_ffff) % 4096).to_string()).collect();
    let ids = ids.join(",");
    let generated = json([
        "generate",
        "--device=cpu",
        "--prompt-tokens",
        &ids,
        "--temperature=0",
        "--max-tokens=5",
        "--ignore-eos",
        "--json",
    ]);
    generated["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn mlx_lm_is_compared_in_json_with_raw_rounds_and_equal_tokens() {
    if !python() {
        return;
    }
    let mut tokens = greedy_tokens();
    tokens[3] ^= 1;
    let fake = Fake::mlx_lm("", &tokens);
    let run = fake.run("--lengths=16,24 --steps=4 --rounds=3 --json");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["peer"]["name"], "mlx-lm");
    assert_eq!(report["peer"]["versions"]["mlx"], "0.1");
    assert_eq!(report["peer"]["command"][0], "python3");
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    let first = &results[0];
    assert_eq!((&first["prompt_tokens"], &first["decode_steps"]), (&16.into(), &4.into()));
    assert_eq!(first["equal_tokens"], 3, "the fourth was changed");
    for side in ["lily", "peer"] {
        assert_eq!(first[side]["rounds"].as_array().unwrap().len(), 3, "{side}");
        assert_eq!(first[side]["digest"].as_str().unwrap().len(), 16, "{side}");
    }
    let number = |value: &Value| value.as_f64().unwrap();
    assert!((number(&first["peer"]["prefill_tokens_per_second"]) - 1000.0).abs() < 1e-6);
    assert!((number(&first["peer"]["decode_tokens_per_second"]) - 50.0).abs() < 1e-6);
    let ratio = number(&first["lily"]["decode_tokens_per_second"]) / 50.0;
    assert!((number(&first["decode_ratio"]) - ratio).abs() < 1e-6);
    assert!(report["machine"]["os"].is_string() && report["date"].is_string());
    // The same checkpoint, loaded once.
    let loaded = PathBuf::from(&fake.noted("loaded")[0]);
    assert_eq!(loaded, demo().join("checkpoint").canonicalize().unwrap());
    assert_eq!(fake.noted("starts").len(), 1);
}

#[test]
fn the_table_and_the_page_show_both_engines_and_escape_what_is_not_ours() {
    if !python() {
        return;
    }
    let fake = Fake::mlx_lm("", &[7; 5]);
    let (copy, page) = (common::demo_copy(), fake.path("report.html"));
    let dir = copy.path().join("<script>&\"model\"");
    fs::create_dir(&dir).unwrap();
    for file in fs::read_dir(copy.path()).unwrap().map(|file| file.unwrap().path()) {
        if file.is_file() {
            fs::rename(&file, dir.join(file.file_name().unwrap())).unwrap();
        }
    }
    let flags = fake.flags.iter().filter(|flag| !flag.starts_with("--model-path"));
    let own = [
        format!("--model-path={}", dir.display()),
        format!("--html={}", page.display()),
        "--lengths=16".into(),
        "--steps=4".into(),
    ];
    let run = lily(flags.chain(&own));
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.starts_with("<script>&\"model\" on cpu "), "{}", run.stdout);
    let header = run.stdout.lines().find(|line| line.starts_with("prompt ")).unwrap();
    assert!(header.ends_with("mlx-lm  ratio  equal tokens"), "{header}");
    let row = run.stdout.lines().find(|line| line.trim_start().starts_with("16 ")).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!((cells[2], cells[5], cells[8]), ("1000.0", "50.0", "of"), "{row}");
    assert!(run.stderr.contains("16 tokens: lily prefill "), "{}", run.stderr);

    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<td>1,000.0</td>") && page.contains("<td>50.0</td>"), "{page}");
    assert!(page.contains("lily beside mlx-lm: &lt;script&gt;&amp;&quot;model&quot;"), "{page}");
    assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
    assert_eq!(page.matches("<svg ").count(), 2);
}

#[test]
fn an_mlx_lm_that_answers_wrongly_is_refused_by_what_is_wrong() {
    if !python() {
        return;
    }
    let cases: &[(&str, &[&str])] = &[
        (
            "dead",
            &["python3 ended too early (exit status: 3)", "somewhere | ", "ImportError: libmlx.so"],
        ),
        ("chatty", &["nonsense", "expected a line of JSON", "Hello, I am a peer."]),
        ("flood", &["nonsense", "a line without end"]),
        ("no versions", &["nonsense", "expected its versions", "[]"]),
        ("refusing", &["python3 failed: no such format"]),
        ("dying", &["ended too early (exit status: 3)", "it wrote: out of memory"]),
        ("NaN", &["nonsense", "expected a line of JSON", "NaN"]),
        ("negative", &["positive seconds as decode_s", "-0.5"]),
        ("few", &["expected 5 token ids below 4096, not 4"]),
        ("large", &["expected 5 token ids below 4096", "[4096,"]),
        ("fickle", &["mlx-lm: round 1 at 16 prompt tokens generated other tokens", "digest"]),
        ("mute", &["did not answer within 1 s", "--peer-timeout"]),
    ];
    for &(wrong, expected) in cases {
        let fake = Fake::mlx_lm(wrong, &[7; 5]);
        // Starting Python may take a second too: only the one that never answers is cut short.
        let timeout = if wrong == "mute" { 1 } else { 600 };
        let run = fake.run(&format!("--lengths=16 --steps=4 --peer-timeout={timeout}"));
        assert_refused(wrong, &run, 1, expected);
    }
}

#[test]
fn a_python_without_mlx_lm_is_told_what_to_install() {
    if !python() {
        return;
    }
    // Without site packages there is no mlx, whatever is installed here.
    let dir = format!("--model-path={}", demo_dir());
    let isolated = ["--peer-arg=-I", "--peer-arg=-S"];
    let run = lily(["bench", "--compare=mlx-lm", "--device=cpu", &dir].iter().chain(&isolated));
    assert_refused("mlx", &run, 1, &["python3 has no module mlx", "pip install", "mlx-lm"]);
}

#[test]
fn programs_that_are_missing_are_told_with_where_they_come_from() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let gguf = format!("--peer-model={}", file.path().display());
    let (dir, command) = (format!("--model-path={}", demo_dir()), "--peer-command=no/such/program");
    let mlx = lily(["bench", "--compare=mlx-lm", "--device=cpu", &dir, command]);
    assert_refused("mlx-lm", &mlx, 1, &["no/such/program was not found", "pip install mlx-lm"]);
    let llama = lily(["bench", "--compare=llama.cpp", "--device=cpu", &gguf, command]);
    assert_refused("llama.cpp", &llama, 1, &["no/such/program was not found", "llama.cpp"]);
    let llama = lily(["bench", "--compare=LLAMA.CPP", "--peer-model=no/such.gguf"]);
    assert_refused("gguf", &llama, 1, &["cannot open the peer's model no/such.gguf"]);
}

#[test]
fn what_cannot_be_compared_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("demo.lily");
    assert_eq!(lily(["pack", pack.to_str().unwrap()]).code, 0);
    let pack = format!("--model-path={}", pack.display());
    let cases: &[(&[&str], &[&str])] = &[
        (&["--peer-model=x"], &["--compare"]),
        (&["--compare=vllm"], &["vllm", "mlx-lm", "llama.cpp"]),
        (&["--compare=llama.cpp"], &["--peer-model FILE.gguf"]),
        (&["--compare=mlx-lm"], &["needs a checkpoint directory", "--model-path"]),
        (&["--compare=mlx-lm", &pack], &["demo.lily", "--peer-model"]),
        (&["--html=no/such/folder/a.html"], &["no/such/folder/a.html", "no such folder"]),
        (&["--html=."], &["is a directory"]),
    ];
    for (flags, expected) in cases {
        let run = lily(["bench"].iter().chain(*flags));
        assert_refused(&format!("{flags:?}"), &run, 2, expected);
    }
}

#[test]
fn lengths_that_do_not_fit_are_left_out_where_nobody_asked_for_them() {
    if !python() {
        return;
    }
    let fake = Fake::mlx_lm("", &[7; 5]);
    let run = fake.run("--context=600 --steps=4 --rounds=1 --json");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    let lengths: Vec<_> = results.iter().map(|result| &result["prompt_tokens"]).collect();
    assert_eq!(lengths, [256, 512]);
    let note = "left out: 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072; the context holds \
                600 tokens, 4 steps among them";
    assert_eq!(report["notes"][0], note);
    assert!(run.stderr.contains(note), "{}", run.stderr);

    let run = fake.run("--context=200");
    assert_refused("none fits", &run, 2, &["256", "the context holds 200 tokens", "--lengths"]);
    let run = fake.run("--lengths=256,5000");
    assert_refused("asked for", &run, 2, &["length 5000", "the model has 4096"]);
}

#[cfg(target_os = "linux")]
#[test]
fn models_that_do_not_fit_together_are_loaded_in_turns() {
    if !python() {
        return;
    }
    let mut fake = Fake::mlx_lm("", &[7; 5]);
    // A terabyte of nothing.
    let large = fake.path("large");
    fs::create_dir(&large).unwrap();
    fs::write(large.join("config.json"), "{}").unwrap();
    File::create(large.join("model.safetensors")).unwrap().set_len(1 << 40).unwrap();
    fake.flags.push(format!("--peer-model={}", large.display()));
    let run = fake.run("--lengths=16,24 --steps=4");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("memory does not hold both models at once"), "{}", run.stdout);
    // Once to see that it is there; then for each length, as the second round begins with it.
    assert_eq!(fake.noted("starts").len(), 3);
}

#[test]
fn llama_cpp_is_measured_by_its_own_program_in_turns() {
    if !python() {
        return;
    }
    let fake = Fake::llama_bench("");
    let page = fake.path("page.html");
    let run = fake.run(&format!("--lengths=16 --steps=4 --html={} --json", page.display()));
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let (peer, result) = (&report["peer"], &report["results"][0]);
    assert_eq!((&peer["name"], &peer["model"]), (&"llama.cpp".into(), &"model.gguf".into()));
    // A comparison of two models is none, and this one is of the demo model.
    assert!(run.stderr.contains("note: without --model-path"), "{}", run.stderr);
    assert_eq!(peer["versions"]["backends"], "CPU");
    let rate = |name: &str| result["peer"][name].as_f64().unwrap();
    assert!((rate("prefill_tokens_per_second") - 200.0).abs() < 1e-6, "{result}");
    assert!((rate("decode_tokens_per_second") - 20.0).abs() < 1e-6, "{result}");
    assert!(result["equal_tokens"].is_null() && result["peer"]["digest"].is_null(), "{result}");
    assert!(!fs::read_to_string(page).unwrap().contains("Equal tokens"));

    let model = fake.path("model.gguf").canonicalize().unwrap();
    let common = format!("-m {} -o json -r 1 -fa 1", model.display());
    let prefill = format!("{common} -p 16 -n 0 -d 0 -t 1 -ngl 0");
    let decode = format!("{common} -p 0 -n 4 -d 16 -t 1 -ngl 0");
    let once = [prefill, decode];
    assert_eq!(fake.noted("arguments"), [once.clone(), once].concat(), "two rounds");
}

#[test]
fn a_llama_bench_that_answers_wrongly_is_refused_by_what_is_wrong() {
    if !python() {
        return;
    }
    let cases: &[(&str, &[&str])] = &[
        ("dead", &["ended too early (exit status: 1)", "it wrote: error: failed to load model"]),
        ("chatty", &["nonsense", "expected results as JSON", "| model | t/s |"]),
        ("NaN", &["nonsense", "expected results as JSON"]),
        ("shallow", &["nonsense", "expected n_depth 16"]),
        ("instant", &["nonsense", "one positive time as samples_ns"]),
        ("double", &["nonsense", "expected one result, not 2"]),
    ];
    for &(wrong, expected) in cases {
        let run = Fake::llama_bench(wrong).run("--lengths=16 --steps=4");
        assert_refused(wrong, &run, 1, expected);
    }
}

#[test]
fn ctrl_c_ends_the_peer_too() {
    if !python() {
        return;
    }
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let fake = Fake::mlx_lm("mute at 24", &[7; 5]);
        let mut child = Command::new(env!("CARGO_BIN_EXE_lily"))
            .args(&fake.flags)
            .args(["--lengths=16,24", "--steps=4"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("16 tokens: ") {
            line.clear();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended before it measured");
        }
        let kill = |arguments: [&str; 2]| Command::new("kill").args(arguments).output().unwrap();
        assert!(kill([signal, &child.id().to_string()]).status.success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        line.clear();
        stderr.read_to_string(&mut line).unwrap();
        assert!(!line.contains("error"), "{line}");
        let peer = &fake.noted("starts")[0];
        assert!(!kill(["-0", peer]).status.success(), "{peer} still runs");
    }
}

#[test]
fn a_page_can_be_had_of_lily_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("alone.html");
    let flag = format!("--html={}", file.display());
    let table = stdout(["bench", "--lengths=16,32", "--steps=4", "--rounds=1", &flag]);
    assert!(table.contains("digest"), "{table}");
    let page = fs::read_to_string(file).unwrap();
    assert!(page.contains("<h1>lily: lily-demo</h1>"), "{page}");
    assert_eq!(page.matches("<th scope=\"row\">").count(), 2);
}

/// With `LILY_MLX_PYTHON`, a Python that has mlx-lm: the genuine peer on the demo model.
#[test]
fn the_genuine_mlx_lm_answers() {
    let Some(python) = env::var_os("LILY_MLX_PYTHON") else {
        drop(writeln!(std::io::stderr(), "skipped: LILY_MLX_PYTHON is not set"));
        return;
    };
    let mut flags: Vec<_> =
        ["bench", "--compare=mlx-lm", "--lengths=16", "--steps=4", "--json"].map(Into::into).into();
    flags.extend(["--model-path".into(), demo_dir().into(), "--peer-command".into(), python]);
    let report = json(flags);
    let result = &report["results"][0];
    assert!(result["peer"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert!(result["equal_tokens"].as_u64().unwrap() >= 1, "{report}");
}
