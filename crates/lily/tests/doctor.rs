//! `lily doctor` where the processor is the only device.

mod common;

use common::{demo, json, stdout};

fn demo_dir() -> String {
    demo().join("checkpoint").to_str().unwrap().to_owned()
}

#[test]
fn the_processor_has_facts_and_rates_and_nothing_to_be_compared_with() {
    let report = json(["doctor", "--device", "cpu", "--json", "--model-path", &demo_dir()]);
    assert_eq!(report["device"]["kind"], "cpu");
    assert_eq!(report["passed"], true);
    assert_eq!(report["kernels"].as_array().unwrap().len(), 0);
    for rate in ["read_gb_per_s", "product_tflop_per_s"] {
        assert!(report[rate].as_f64().unwrap() > 0.0, "{rate}: {report}");
    }
    assert!(report["published"].is_null(), "the demo model is not the published one");
}

#[test]
fn the_text_ends_with_advice() {
    let text = stdout(["doctor", "--device", "cpu", "--model-path", &demo_dir()]);
    assert!(text.ends_with("nothing to do\n"), "{text}");
}
