//! `lily doctor` where the processor is the only device.

mod common;

use common::{demo, json, lily, stdout};
use serde_json::Value;

fn demo_dir() -> String {
    demo().join("checkpoint").to_str().unwrap().to_owned()
}

/// A device that does not exist on any machine: the driver has no so many, and elsewhere there is
/// none at all.
const MISSING: [&str; 4] = ["doctor", "--device", "cuda", "--cuda=device=4096"];

#[test]
fn the_kernels_of_the_processor_are_compared_with_portable_code() {
    let report = json(["doctor", "--device", "cpu", "--json", "--model-path", &demo_dir()]);
    assert_eq!(report["device"]["kind"], "cpu");
    assert_eq!(report["passed"], true, "{report}");
    let kernels = report["kernels"].as_array().unwrap();
    match report["device"]["name"].as_str().unwrap() {
        // It is the reference itself.
        "portable" => assert!(kernels.is_empty() && report["compared_with"].is_null(), "{report}"),
        _ => {
            assert_eq!(report["compared_with"], "portable code");
            for op in ["linear", "attention", "gated_delta", "expert_linear"] {
                assert!(kernels.iter().any(|verdict| verdict["op"] == op), "{op}: {report}");
            }
        }
    }
    for rate in ["read_gb_per_s", "product_tflop_per_s"] {
        assert!(report[rate].as_f64().unwrap() > 0.0, "{rate}: {report}");
    }
    assert!(report["published"].is_null(), "the demo model is not the published one");
}

#[test]
fn the_text_counts_in_threads_and_ends_with_advice_that_says_what_was_checked() {
    let text = stdout(["doctor", "--device=cpu", "--threads=2", "--model-path", &demo_dir()]);
    assert!(text.contains(", 2 threads\n"), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("advice      nothing to do: "), "{text}");
    assert!(last.ends_with("check passed") || last.ends_with("kernel was checked"), "{text}");
}

#[test]
fn devices_that_are_not_used_are_named_with_the_reason() {
    let args = ["doctor", "--device", "cpu", "--cuda=device=4096", "--model-path"];
    let dir = demo_dir();
    let text = stdout(args.iter().copied().chain([dir.as_str()]));
    for kind in ["metal", "cuda"] {
        let line = text.lines().find(|line| line.starts_with(kind)).expect(&text);
        assert!(line.contains("not used: "), "{line}");
    }
    if !cfg!(target_os = "macos") {
        assert!(text.contains("the metal device exists on macOS only"), "{text}");
    }
}

#[test]
fn a_device_that_is_missing_is_a_failed_check_among_the_facts() {
    let run = lily(MISSING);
    assert_eq!(run.code, 1, "{}", run.stderr);
    for words in ["FAILED: cuda cannot be used: ", "\nsystem ", "\nprocessor   cpu ", "\nadvice "] {
        assert!(run.stdout.contains(words), "{words:?}: {}", run.stdout);
    }
    assert_eq!(run.stderr, "error: some checks failed\n");

    let run = lily(MISSING.into_iter().chain(["--json"]));
    assert_eq!(run.code, 1, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).expect("facts in JSON");
    assert_eq!(report["passed"], false);
    assert_eq!(report["device"]["kind"], "cuda");
    assert!(!report["device"]["error"].as_str().unwrap().is_empty(), "{report}");
    assert_eq!(report["processor"]["kind"], "cpu");
}
