//! `lily pack`, and models that come from a `.lily` file.

mod common;

use std::fs;
#[cfg(unix)]
use std::process::{Child, Command, Output, Stdio};

use common::{demo, json, lily, lily_with_variables, stdout};
use tempfile::TempDir;

/// The demo model as a `.lily` file.
fn packed(dir: &TempDir) -> String {
    let file = dir.path().join("demo.lily").to_str().unwrap().to_owned();
    let run = lily(["pack", &file]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("wrote"), "{}", run.stderr);
    file
}

#[test]
fn a_packed_model_gives_the_same_tokens_as_its_directory() {
    let dir = TempDir::new().unwrap();
    let file = packed(&dir);
    let directory = demo().join("checkpoint").to_str().unwrap().to_owned();
    let run = |path: &str| {
        let args = ["generate", "The capital of Japan is", "--json", "--temperature=0"];
        json(args.iter().copied().chain(["--max-tokens=24", "--model-path", path]))
    };
    let (from_pack, from_directory) = (run(&file), run(&directory));
    assert_eq!(from_pack["tokens"], from_directory["tokens"]);
    assert_eq!(from_pack["text"], from_directory["text"]);
    let answer = stdout(["chat", "--temperature=0", "--model-path", &file, "Capital of Japan?"]);
    assert!(answer.contains("Tokyo"), "{answer}");
}

#[test]
fn every_command_takes_a_pack() {
    let dir = TempDir::new().unwrap();
    let file = packed(&dir);
    let ids = |path: &[&str]| stdout(["tokenize", "hello there"].iter().chain(path));
    assert_eq!(ids(&["--model-path", &file]), ids(&[]));
    let plan = |path: &[&str]| json(["plan", "--json"].iter().chain(path));
    let (of_pack, of_demo) = (plan(&["--model-path", &file]), plan(&[]));
    for figure in ["steps", "stages", "state_bytes"] {
        assert!(of_demo[figure].as_u64().is_some(), "{figure}: {of_demo}");
        assert_eq!(of_pack[figure], of_demo[figure], "{figure}");
    }
    let facts = |path: &[&str]| json(["inspect", "--json"].iter().chain(path));
    let (of_pack, of_demo) = (facts(&["--model-path", &file]), facts(&[]));
    assert!(of_demo["parameters"].is_number(), "{of_demo}");
    assert_eq!(of_pack["parameters"], of_demo["parameters"]);
}

#[test]
fn a_bit_flipped_anywhere_is_found_by_check_and_a_good_file_passes() {
    let dir = TempDir::new().unwrap();
    let file = packed(&dir);
    assert_eq!(lily(["pack", "--check", &file]).code, 0);
    let good = fs::read(&file).unwrap();
    let tokenizer = good.windows(14).skip(1 << 14).position(|w| w == b"\"added_tokens\"").unwrap();
    for at in [40, tokenizer + (1 << 14), good.len() / 2] {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&file, bad).unwrap();
        let run = lily(["pack", "--check", &file]);
        assert_eq!(run.code, 1, "{at}");
        assert!(run.stderr.contains(" is damaged: checksum"), "{}", run.stderr);
        assert_eq!(run.stderr.matches(&file).count(), 1, "{}", run.stderr);
    }
    fs::write(&file, [&good[..], b"more"].concat()).unwrap();
    let run = lily(["pack", "--check", &file]);
    assert_eq!(run.code, 1);
    let (len, end) = (good.len() + 4, good.len());
    let message = format!("the file has {len} bytes, {end} expected");
    assert!(run.stderr.contains(&message), "{}", run.stderr);
}

#[test]
fn doctor_refuses_a_pack_with_damaged_weights() {
    let dir = TempDir::new().unwrap();
    let file = packed(&dir);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&file, bytes).unwrap();
    let run = lily(["doctor", "--device=cpu", "--model-path", &file]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains(" is damaged: checksum"), "{}", run.stderr);
}

#[test]
fn check_looks_at_the_file_alone_whatever_the_environment_says() {
    let dir = TempDir::new().unwrap();
    let file = packed(&dir);
    let run = lily_with_variables(["pack", "--check", &file], &[("LILY_MODEL_PATH", "nosuch")]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let run = lily(["pack", "--check", "nosuch.lily"]);
    let message = "error: cannot open model nosuch.lily: no such directory or file\n";
    assert!(run.code == 1 && run.stderr == message, "{}", run.stderr);
    let folder = dir.path().join("folder.lily");
    fs::create_dir(&folder).unwrap();
    for flags in [&["--check"][..], &["--force"], &[]] {
        let run = lily(["pack", folder.to_str().unwrap()].iter().chain(flags));
        assert!(run.code == 2 && run.stderr.contains("is a directory"), "{}", run.stderr);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named_once() {
    let run = lily(["pack", "no/such/place.lily"]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.starts_with("error: cannot write no/such/place.lily: No such file"));
}

/// Sends SIGTERM as soon as `ready` says so.
#[cfg(unix)]
fn terminate(mut child: Child, ready: impl Fn(u32) -> bool) -> Output {
    let id = child.id();
    while !ready(id) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before the signal");
        std::thread::yield_now();
    }
    let kill = Command::new("kill").args(["-TERM", &id.to_string()]).status().unwrap();
    assert!(kill.success());
    child.wait_with_output().unwrap()
}

#[cfg(unix)]
fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    command.args(args).env_remove("LILY_MODEL_PATH").stderr(Stdio::piped()).spawn().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_pack_removes_what_it_wrote_and_says_so() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("demo.lily").to_str().unwrap().to_owned();
    let partial = format!("{file}.partial");
    // A pipe that nobody reads holds the program where it opens its file.
    assert!(Command::new("mkfifo").arg(&partial).status().unwrap().success());
    let waits_with_a_handler = |id: u32| {
        let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { return false };
        let is_handler = |name: String| name.trim() == "signals";
        let handles = tasks
            .flatten()
            .any(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(is_handler));
        let stat = fs::read_to_string(format!("/proc/{id}/task/{id}/stat")).unwrap_or_default();
        handles && stat.contains(") S ")
    };
    let output = terminate(start(&["pack", &file]), waits_with_a_handler);
    assert_eq!(output.status.code(), Some(143));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, format!("interrupted: removed {partial}\n"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn an_interrupted_checkpoint_removes_what_it_wrote_and_says_so() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("random");
    let begun = |_| fs::read_dir(dir.path()).unwrap().count() > 0;
    // Too large to be done before the signal.
    let child = start(&["make-checkpoint", "--layers=40", out.to_str().unwrap()]);
    let output = terminate(child, begun);
    assert_eq!(output.status.code(), Some(143));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with("interrupted: removed ") && told.contains(".partial-"), "{told}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_existing_file_is_replaced_only_when_asked() {
    let dir = TempDir::new().unwrap();
    let file = packed(&dir);
    let run = lily(["pack", &file]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("--force"), "{}", run.stderr);
    assert_eq!(lily(["pack", "--force", &file]).code, 0);
    let run = lily(["pack", "model.bin"]);
    assert!(run.code == 2 && run.stderr.contains(".lily"), "{}", run.stderr);
}
