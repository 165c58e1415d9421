//! mlx-lm: a Python program of ours, part of this binary, that answers measurement requests.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::child::Child;
use super::{Facts, Peer, PeerError, Program, file_name, plain, seconds};
use crate::args::BenchArgs;
use crate::commands::bench::contract::{Round, Shape, Timed};

/// The program; its head tells the protocol.
const SCRIPT: &str = include_str!("mlx_lm.py");

/// Versions that a hello may tell.
const MOST_VERSIONS: usize = 8;

pub(super) struct MlxLm {
    program: Program,
    dir: PathBuf,
    vocab: usize,
    weights: u64,
    /// The process, from its hello on.
    child: Option<Child>,
    loaded: bool,
    versions: Vec<(String, String)>,
}

impl MlxLm {
    pub(super) fn open(args: &BenchArgs, vocab: usize) -> Result<Self> {
        let advice = "mlx-lm needs Python 3 and `pip install mlx-lm`; --peer-command names its \
                      Python";
        let dir = args.peer_model.as_deref().or(args.model.dir()).unwrap_or(Path::new(""));
        let mut peer = MlxLm {
            program: Program::new(args, "python3", advice),
            // A folder named like a flag or a number is a folder.
            dir: dir.canonicalize().unwrap_or_else(|_| dir.to_owned()),
            vocab,
            weights: weights(dir),
            child: None,
            loaded: false,
            versions: Vec::new(),
        };
        // Imports are tried before lily's own model is loaded.
        peer.start()?;
        Ok(peer)
    }

    fn start(&mut self) -> Result<&mut Child, PeerError> {
        if self.child.is_none() {
            let mut child = Child::start(&self.program, ["-c", SCRIPT])?;
            let hello = answer(&mut child)?;
            self.versions = versions(&hello)
                .ok_or_else(|| child.nonsense("expected its versions", &hello.to_string()))?;
            self.child = Some(child);
        }
        Ok(self.child.as_mut().expect("just started"))
    }
}

impl Peer for MlxLm {
    fn weights(&self) -> u64 {
        self.weights
    }

    fn needs_warm_up(&self) -> bool {
        true
    }

    fn load(&mut self) -> Result<(), PeerError> {
        if !self.loaded {
            let request = json!({"load": self.dir.to_string_lossy()});
            let child = self.start()?;
            child.send(&request)?;
            let answer = answer(child)?;
            if answer["loaded"] != true {
                return Err(child.nonsense("expected that it has loaded", &answer.to_string()));
            }
            self.loaded = true;
        }
        Ok(())
    }

    fn measure(&mut self, shape: Shape) -> Result<Timed, PeerError> {
        self.load()?;
        let vocab = self.vocab;
        let child = self.start()?;
        child.send(&json!({"length": shape.length, "steps": shape.steps, "vocab": vocab}))?;
        let answer = answer(child)?;
        timed(&answer, shape, vocab).map_err(|what| child.nonsense(&what, &answer.to_string()))
    }

    fn release(&mut self) {
        self.child = None;
        self.loaded = false;
    }

    fn facts(&self) -> Facts {
        let own = ["-c".to_owned(), "<mlx_lm.py of lily>".to_owned()];
        Facts {
            name: "mlx-lm",
            model: file_name(&self.dir),
            command: self.program.words().chain(own).collect(),
            versions: self.versions.clone(),
            remark: "mlx-lm runs with its own chunks of prefill and its own type of KV cache",
        }
    }
}

/// An answer that is no error.
fn answer(child: &mut Child) -> Result<Value, PeerError> {
    let answer = child.receive()?;
    let program = child.program();
    match (answer["missing"].as_str(), answer["error"].as_str()) {
        (Some(module), _) => Err(PeerError::MissingModule { program, module: plain(module, 60) }),
        (None, Some(message)) => Err(PeerError::Refused { program, message: plain(message, 300) }),
        (None, None) => Ok(answer),
    }
}

fn versions(hello: &Value) -> Option<Vec<(String, String)>> {
    let versions = hello["versions"].as_object()?;
    let device = hello["device"].as_str().map(|device| ("device", device));
    let pairs = versions.iter().map(|(name, version)| Some((name.as_str(), version.as_str()?)));
    pairs
        .chain(device.map(Some))
        .take(MOST_VERSIONS)
        .map(|pair| pair.map(|(name, version)| (plain(name, 30), plain(version, 60))))
        .collect()
}

/// A run as the peer tells it, or what is wrong with it.
fn timed(answer: &Value, shape: Shape, vocab: usize) -> Result<Timed, String> {
    let time = |field: &str| {
        let value = answer[field].as_f64().and_then(seconds);
        value.ok_or_else(|| format!("expected positive seconds as {field}"))
    };
    let round = Round { first_token_s: time("prefill_s")?, decode_s: time("decode_s")? };
    let expected = || format!("expected {} token ids below {vocab}", shape.steps + 1);
    let tokens = answer["tokens"].as_array().ok_or_else(expected)?;
    if tokens.len() != shape.steps + 1 {
        return Err(format!("{}, not {}", expected(), tokens.len()));
    }
    let id = |token: &Value| {
        let id = token.as_u64().filter(|&id| id < vocab as u64)?;
        u32::try_from(id).ok()
    };
    let tokens = tokens.iter().map(id).collect::<Option<Vec<_>>>().ok_or_else(expected)?;
    Ok(Timed { round, tokens: Some(tokens) })
}

/// Bytes of the directory's weight files; 0 where that cannot be told.
fn weights(dir: &Path) -> u64 {
    let Ok(files) = dir.read_dir() else { return 0 };
    let weights = files
        .flatten()
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "safetensors"));
    // Files of a download may be links.
    weights.filter_map(|file| file.path().metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { length: 8, steps: 2 };

    #[test]
    fn an_answer_of_the_right_form_is_a_run() {
        let answer = json!({"prefill_s": 0.5, "decode_s": 2, "tokens": [1, 2, 9]});
        let timed = timed(&answer, SHAPE, 10).unwrap();
        assert_eq!(timed.round, Round { first_token_s: 0.5, decode_s: 2.0 });
        assert_eq!(timed.tokens, Some(vec![1, 2, 9]));
    }

    #[test]
    fn other_answers_are_refused_by_what_is_wrong() {
        let good = json!({"prefill_s": 0.5, "decode_s": 2, "tokens": [1, 2, 9]});
        for (field, value, expected) in [
            ("prefill_s", json!(0), "positive seconds as prefill_s"),
            ("prefill_s", json!("0.5"), "positive seconds as prefill_s"),
            ("decode_s", json!(-1.0), "positive seconds as decode_s"),
            ("decode_s", Value::Null, "positive seconds as decode_s"),
            ("tokens", json!([1, 2]), "3 token ids below 10, not 2"),
            ("tokens", json!([1, 2, 10]), "3 token ids below 10"),
            ("tokens", json!([1, 2, -1]), "3 token ids below 10"),
            ("tokens", json!("1,2,3"), "3 token ids below 10"),
        ] {
            let mut answer = good.clone();
            answer[field] = value;
            let refusal = timed(&answer, SHAPE, 10).unwrap_err();
            assert!(refusal.contains(expected), "{answer}: {refusal}");
        }
    }
}
