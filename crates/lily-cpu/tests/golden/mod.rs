//! Runs the golden checkpoints.

use lily_cpu::{CpuDevice, CpuOptions, Isa};
use lily_device::{Device, DeviceError, LoadedModel, NoProgress, PlanId, Sequence};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;
use lily_plan::valid::ValidPlan;

mod reader;

pub(crate) use reader::{Golden, goldens};

/// Positions whose logits the goldens hold, at the end of each prompt.
pub(crate) const LAST: usize = 8;

const CAPACITY: usize = 2304;

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
