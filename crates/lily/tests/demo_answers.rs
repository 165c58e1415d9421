//! Held-out questions to the demo model: a fixed sample here, the whole set by
//! `lily eval --conversations models/demo/heldout.jsonl.gz`.

mod common;

use common::{demo, json};

#[test]
fn at_least_93_percent_of_a_sample_of_held_out_answers_are_exact() {
    let heldout = demo().join("heldout.jsonl.gz");
    let report =
        json(["eval", "--conversations", heldout.to_str().unwrap(), "--count", "200", "--show=20"]);
    assert_eq!(report["conversations"], 200);
    assert!(report["exact"].as_u64().unwrap() >= 186, "{report:#}");
}
