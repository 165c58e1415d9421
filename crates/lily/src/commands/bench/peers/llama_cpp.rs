//! llama.cpp: its own `llama-bench`, started anew for each figure.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use lily_device::DeviceFacts;
use serde_json::Value;

use super::child::Child;
use super::{Facts, Peer, PeerError, Program, file_name, plain, seconds};
use crate::args::BenchArgs;
use crate::commands::bench::contract::{Round, Shape, Timed};

/// Fields of a result that tell what was run.
const VERSIONS: [&str; 9] = [
    "build_commit",
    "build_number",
    "backends",
    "cpu_info",
    "gpu_info",
    "model_type",
    "n_ubatch",
    "type_k",
    "n_threads",
];

pub(super) struct LlamaCpp {
    program: Program,
    file: PathBuf,
    weights: u64,
    /// Where lily runs on the processor: its threads.
    threads: Option<usize>,
    versions: Vec<(String, String)>,
}

/// A test of `llama-bench`: prompt tokens, generated tokens, tokens that are there before.
#[derive(Clone, Copy)]
struct Test {
    prompt: usize,
    generated: usize,
    depth: usize,
}

impl Test {
    /// A prefill from nothing.
    fn prefill(shape: Shape) -> Self {
        Test { prompt: shape.length, generated: 0, depth: 0 }
    }

    /// Decode steps behind the prompt.
    fn decode(shape: Shape) -> Self {
        Test { prompt: 0, generated: shape.steps, depth: shape.length }
    }
}

impl LlamaCpp {
    pub(super) fn open(args: &BenchArgs, device: &DeviceFacts) -> Result<Self> {
        let advice = "it is part of llama.cpp (`brew install llama.cpp`, or a build of its \
                      sources); --peer-command names its place";
        let file = args.peer_model.clone().unwrap_or_default();
        let peer = LlamaCpp {
            program: Program::new(args, "llama-bench", advice),
            weights: file.metadata().map_or(0, |metadata| metadata.len()),
            // A path that no program takes for a flag.
            file: file.canonicalize().unwrap_or(file),
            threads: (device.kind == "cpu").then_some(device.parallelism),
            versions: Vec::new(),
        };
        // Whether it is there at all is known before lily's own model is loaded.
        Child::start(&peer.program, ["--help"])?.output()?;
        Ok(peer)
    }

    fn arguments(&self, test: Test) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["-m".into(), self.file.clone().into()];
        let mut flag = |name: &str, value: String| arguments.extend([name.into(), value.into()]);
        flag("-o", "json".into());
        flag("-r", "1".into());
        flag("-fa", "1".into());
        flag("-p", test.prompt.to_string());
        flag("-n", test.generated.to_string());
        flag("-d", test.depth.to_string());
        match self.threads {
            Some(threads) => {
                flag("-t", threads.to_string());
                flag("-ngl", "0".into());
            }
            None => flag("-ngl", "99".into()),
        }
        arguments
    }

    /// Seconds of one test.
    fn seconds(&mut self, test: Test) -> Result<f64, PeerError> {
        let output = Child::start(&self.program, self.arguments(test))?.output()?;
        let nonsense = |what: String| PeerError::Nonsense {
            program: self.program.shown(),
            what,
            found: plain(&output.split_whitespace().collect::<Vec<_>>().join(" "), 120),
            stderr: String::new(),
        };
        let result = result(&output).map_err(nonsense)?;
        let seconds = time(&result, test).map_err(nonsense)?;
        self.versions = versions(&result);
        Ok(seconds)
    }
}

impl Peer for LlamaCpp {
    fn weights(&self) -> u64 {
        self.weights
    }

    fn needs_warm_up(&self) -> bool {
        false
    }

    fn load(&mut self) -> Result<(), PeerError> {
        Ok(())
    }

    fn measure(&mut self, shape: Shape) -> Result<Timed, PeerError> {
        let first_token_s = self.seconds(Test::prefill(shape))?;
        let decode_s = self.seconds(Test::decode(shape))?;
        Ok(Timed { round: Round { first_token_s, decode_s }, tokens: None })
    }

    fn release(&mut self) {}

    fn facts(&self) -> Facts {
        let arguments = self.arguments(Test { prompt: 0, generated: 0, depth: 0 });
        // The figures after -p, -n and -d differ from run to run, and folders are nobody's concern.
        let shown = |at: usize| match at.checked_sub(1).and_then(|at| arguments[at].to_str()) {
            Some("-m") => file_name(&self.file),
            Some("-p" | "-n" | "-d") => "N".to_owned(),
            _ => arguments[at].to_string_lossy().into_owned(),
        };
        Facts {
            name: "llama.cpp",
            model: file_name(&self.file),
            command: self.program.words().chain((0..arguments.len()).map(shown)).collect(),
            versions: self.versions.clone(),
            remark: "llama-bench measures by its own rules: random prompt tokens, a warm-up of its \
                     own, one process for each figure, no token chosen",
        }
    }
}

/// The one result of an output, or what is wrong with it.
fn result(output: &str) -> Result<Value, String> {
    match serde_json::from_str::<Vec<Value>>(output) {
        Ok(mut results) if results.len() == 1 => Ok(results.remove(0)),
        Ok(results) => Err(format!("expected one result, not {}", results.len())),
        Err(_) => Err("expected results as JSON".to_owned()),
    }
}

fn time(result: &Value, test: Test) -> Result<f64, String> {
    for (field, expected) in
        [("n_prompt", test.prompt), ("n_gen", test.generated), ("n_depth", test.depth)]
    {
        if result[field].as_u64() != Some(expected as u64) {
            return Err(format!("expected {field} {expected}"));
        }
    }
    let one = match result["samples_ns"].as_array().map(Vec::as_slice) {
        Some([one]) => one.as_f64(),
        _ => None,
    };
    let time = one.and_then(|nanoseconds| seconds(nanoseconds / 1e9));
    time.ok_or_else(|| "expected one positive time as samples_ns".to_owned())
}

fn versions(result: &Value) -> Vec<(String, String)> {
    let text = |field: &str| match &result[field] {
        Value::String(text) => Some(plain(text, 60)).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    VERSIONS.iter().filter_map(|&field| Some((field.to_owned(), text(field)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEST: Test = Test { prompt: 0, generated: 4, depth: 16 };

    #[test]
    fn the_time_of_the_one_sample_counts() {
        let result = json!({"n_prompt": 0, "n_gen": 4, "n_depth": 16, "samples_ns": [500_000_000]});
        assert_eq!(time(&result, TEST), Ok(0.5));
    }

    #[test]
    fn results_of_another_test_or_without_a_time_are_refused() {
        let good = json!({"n_prompt": 0, "n_gen": 4, "n_depth": 16, "samples_ns": [5]});
        for (field, value, expected) in [
            ("n_gen", json!(5), "expected n_gen 4"),
            ("n_depth", Value::Null, "expected n_depth 16"),
            ("samples_ns", json!([]), "one positive time"),
            ("samples_ns", json!([1, 2]), "one positive time"),
            ("samples_ns", json!([0]), "one positive time"),
            ("samples_ns", json!(["5"]), "one positive time"),
        ] {
            let mut result = good.clone();
            result[field] = value;
            let refusal = time(&result, TEST).unwrap_err();
            assert!(refusal.contains(expected), "{result}: {refusal}");
        }
    }

    #[test]
    fn an_output_holds_exactly_one_result() {
        assert!(result("[{}]").is_ok());
        for bad in ["", "{}", "[]", "[{}, {}]", "[{\"samples_ns\": [NaN]}]"] {
            assert!(result(bad).is_err(), "{bad}");
        }
    }
}
