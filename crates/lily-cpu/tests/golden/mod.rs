//! Reads the golden checkpoints and runs them.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use lily_checkpoint::Checkpoint;
use lily_cpu::{CpuDevice, CpuOptions, Isa};
use lily_device::{Device, DeviceError, LoadedModel, NoProgress, PlanId, Sequence};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;
use lily_plan::valid::ValidPlan;
use serde_json::Value;

/// Positions whose logits the goldens hold, at the end of each prompt.
pub(crate) const LAST: usize = 8;

const CAPACITY: usize = 2304;

/// One golden checkpoint with what it should give.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) short: Vec<u32>,
    pub(crate) long: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    tensors: Value,
    data: Vec<u8>,
}

/// All golden checkpoints, or `None` (and a note) where the shared folder is missing.
pub(crate) fn goldens() -> Option<Vec<Golden>> {
    let shared = std::env::var_os("LILY_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let folder = shared.join("goldens");
    if !folder.is_dir() {
        assert!(
            std::env::var_os("LILY_REQUIRE_SHARED").is_none_or(|value| value != "1"),
            "shared/ is missing"
        );
        // Written past the capture of passing tests, so that a skip is seen.
        drop(writeln!(std::io::stderr(), "skipped: shared/ is missing"));
        return None;
    }
    let names =
        ["moe_hybrid_4bit_gs64", "dense_tied_4bit_gs64", "moe_mixed_bits_gs32", "moe_bf16_hf"];
    Some(names.iter().map(|name| Golden::read(&folder.join(name), name)).collect())
}

impl Golden {
    fn read(dir: &Path, name: &str) -> Golden {
        let text = std::fs::read_to_string(dir.join("golden.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let ids = |value: &Value| -> Vec<u32> {
            value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let file = std::fs::read(dir.join("golden.safetensors")).unwrap();
        let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        Golden {
            name: name.to_owned(),
            checkpoint: Checkpoint::open(dir).unwrap(),
            short: ids(&json["prompts"]["short"]),
            long: ids(&json["prompts"]["long"]),
            greedy: ids(&json["greedy"]["tokens"]),
            tensors: serde_json::from_slice(&file[8..8 + header]).unwrap(),
            data: file[8 + header..].to_vec(),
        }
    }

    /// An `F32` tensor of the golden file.
    pub(crate) fn tensor(&self, key: &str) -> Vec<f32> {
        let offsets = &self.tensors[key]["data_offsets"];
        let at = |i: usize| offsets[i].as_u64().unwrap() as usize;
        let bytes = self.data[at(0)..at(1)].chunks_exact(4);
        bytes.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub(crate) fn vocab(&self) -> usize {
        self.checkpoint.config().vocab_size
    }
}

/// How to run a golden checkpoint.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) chunk: usize,
    pub(crate) kv: Elem,
    pub(crate) fusions: Fusions,
    pub(crate) activations: Elem,
    pub(crate) token_slot: bool,
    pub(crate) threads: usize,
    pub(crate) isa: Isa,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            chunk: 128,
            kv: Elem::F32,
            fusions: Fusions::cpu(),
            activations: Elem::F32,
            token_slot: false,
            threads: 2,
            isa: Isa::detect(),
        }
    }
}

/// A loaded checkpoint with plans for all phases.
pub(crate) struct Model {
    loaded: Box<dyn LoadedModel>,
    chunk: usize,
    prefill: PlanId,
    decode: PlanId,
    score: PlanId,
}

/// A sequence and its position.
pub(crate) struct Timeline {
    pub(crate) sequence: Box<dyn Sequence>,
    pub(crate) position: usize,
}

impl Model {
    pub(crate) fn load(golden: &Golden, setting: Setting) -> Model {
        let options = CpuOptions { threads: Some(setting.threads), isa: Some(setting.isa) };
        let mut loaded = CpuDevice::new(options).load(&golden.checkpoint, &NoProgress).unwrap();
        let mut prepare = |phase, rows| {
            let options = BuildOptions {
                kv: setting.kv,
                fusions: setting.fusions,
                activations: setting.activations,
                token_slot: setting.token_slot,
                ..BuildOptions::new(phase, rows, CAPACITY)
            };
            let plan = build(golden.checkpoint.config(), golden.checkpoint.manifest(), &options);
            loaded.prepare(ValidPlan::new(plan.unwrap()).unwrap()).unwrap()
        };
        let prefill = prepare(Phase::Prefill, setting.chunk);
        let decode = prepare(Phase::Decode, 1);
        let score = prepare(Phase::Score, setting.chunk);
        Model { loaded, chunk: setting.chunk, prefill, decode, score }
    }

    pub(crate) fn timeline(&self) -> Timeline {
        Timeline { sequence: self.loaded.new_sequence().unwrap(), position: 0 }
    }

    fn run(&self, plan: PlanId, timeline: &mut Timeline, tokens: &[u32]) -> Vec<f32> {
        let mut logits = Vec::new();
        let Timeline { sequence, position } = timeline;
        self.loaded.run(plan, sequence.as_mut(), tokens, *position, &mut logits).unwrap();
        *position += tokens.len();
        logits
    }

    /// Logits of every row.
    pub(crate) fn score(&self, timeline: &mut Timeline, tokens: &[u32]) -> Vec<f32> {
        tokens.chunks(self.chunk).flat_map(|chunk| self.run(self.score, timeline, chunk)).collect()
    }

    /// Logits after the last token, the prompt taken in chunks.
    pub(crate) fn prefill(&self, timeline: &mut Timeline, tokens: &[u32]) -> Vec<f32> {
        let chunks = tokens.chunks(self.chunk);
        chunks.map(|chunk| self.run(self.prefill, timeline, chunk)).last().unwrap()
    }

    pub(crate) fn decode(&self, timeline: &mut Timeline, token: u32) -> Vec<f32> {
        self.run(self.decode, timeline, &[token])
    }

    /// Greedy tokens after `token`, as the device chooses them itself.
    pub(crate) fn run_ahead(&self, timeline: &mut Timeline, token: u32, steps: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        let mut on_token = |token| {
            tokens.push(token);
            true
        };
        let Timeline { sequence, position } = timeline;
        let sequence = sequence.as_mut();
        let fed =
            self.loaded.run_ahead(self.decode, sequence, token, *position, steps, &mut on_token);
        *position += fed.unwrap();
        tokens
    }

    /// As [`Model::decode`], for calls that should fail.
    pub(crate) fn try_decode(
        &self,
        timeline: &mut Timeline,
        token: u32,
    ) -> Result<(), DeviceError> {
        let sequence = timeline.sequence.as_mut();
        self.loaded.run(self.decode, sequence, &[token], timeline.position, &mut Vec::new())
    }

    /// The most probable tokens after a prompt, and the logits that chose each.
    pub(crate) fn greedy(
        &self,
        timeline: &mut Timeline,
        prompt: &[u32],
        n: usize,
    ) -> (Vec<u32>, Vec<f32>) {
        let mut logits = self.prefill(timeline, prompt);
        let (mut tokens, mut all) = (Vec::new(), logits.clone());
        loop {
            tokens.push(argmax(&logits));
            if tokens.len() == n {
                return (tokens, all);
            }
            logits = self.decode(timeline, *tokens.last().unwrap());
            all.extend_from_slice(&logits);
        }
    }
}

fn argmax(logits: &[f32]) -> u32 {
    assert!(logits.iter().all(|x| x.is_finite()));
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.unwrap() as u32
}

pub(crate) fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub(crate) fn rms_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}
