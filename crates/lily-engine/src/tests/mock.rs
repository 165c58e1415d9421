//! A device whose logits are a hash of every token so far: any token run twice, left out or put in
//! the wrong place changes all that follows.

use std::any::Any;
use std::sync::{Arc, Mutex};

use lily_checkpoint::config::{
    GateActivation, GenerationConfig, LayerKind, MlpConfig, ModelConfig, RopeConfig, RopeScaling,
};
use lily_checkpoint::manifest::{
    Dtype, Manifest, MatrixFormat, MatrixShape, WeightInfo, WeightShape,
};
use lily_device::{DeviceError, DeviceFacts, LoadedModel, PlanId, Sequence};
use lily_plan::ValidPlan;
use lily_plan::buffer::Elem;
use lily_plan::op::NO_TOKEN;
use lily_plan::plan::Phase;

use crate::engine::Source;
use crate::{Engine, EngineError, EngineOptions};

pub(super) const VOCAB_SIZE: usize = 300;

/// One run of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) phase: Phase,
    pub(super) position: usize,
    pub(super) n_tokens: usize,
}

/// What the mock does, and what it was asked to do.
#[derive(Clone, Default)]
pub(super) struct Mock {
    pub(super) runs: Arc<Mutex<Vec<Run>>>,
    /// Rows of the plan of each run.
    pub(super) rows: Arc<Mutex<Vec<usize>>>,
    /// Runs that reach this position fail.
    pub(super) lost_at: Option<usize>,
    /// Logits after this position hold a NaN.
    pub(super) nan_at: Option<usize>,
    /// Rows from here on have the largest logits.
    pub(super) loud_from: Option<usize>,
    /// The device chooses greedy tokens itself and feeds up to this many more than it has handed out.
    pub(super) ahead: Option<usize>,
}

impl Mock {
    pub(super) fn engine(&self, options: EngineOptions) -> Result<Engine, EngineError> {
        self.engine_with(&GenerationConfig::default(), options)
    }

    pub(super) fn engine_with(
        &self,
        generation: &GenerationConfig,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let (config, manifest) = (config(), manifest());
        let source = Source { config: &config, generation, manifest: &manifest };
        let model = Model { mock: self.clone(), plans: Vec::new() };
        let facts = DeviceFacts {
            kind: "mock",
            name: "mock".to_owned(),
            parallelism: 1,
            activations: Elem::F32,
            prefill_chunk: 512,
            token_slot: self.ahead.is_some(),
        };
        Engine::load_from(&source, &options, &facts, || Ok(Box::new(model)))
    }

    pub(super) fn take_runs(&self) -> Vec<Run> {
        std::mem::take(&mut *self.runs.lock().expect("no test panics while it holds this"))
    }

    fn logits(&self, timeline: &[u32]) -> Vec<f32> {
        let fnv = |hash: u64, x: u64| (hash ^ x).wrapping_mul(0x0100_0000_01b3);
        let seen = timeline.iter().fold(0xcbf2_9ce4_8422_2325, |h, &t| fnv(h, u64::from(t) + 1));
        let logit = |id| {
            let hash = fnv(fnv(seen, id as u64), id as u64 >> 3);
            let loud = self.loud_from.is_some_and(|from| id >= from);
            (hash >> 40) as f32 / (1 << 21) as f32 + if loud { 50.0 } else { 0.0 }
        };
        let mut logits: Vec<f32> = (0..VOCAB_SIZE).map(logit).collect();
        if self.nan_at == Some(timeline.len() - 1) {
            logits[7] = f32::NAN;
        }
        logits
    }
}

struct Model {
    mock: Mock,
    plans: Vec<(Phase, usize, usize)>,
}

impl LoadedModel for Model {
    fn prepare(&mut self, plan: ValidPlan) -> Result<PlanId, DeviceError> {
        let plan = plan.plan();
        self.plans.push((plan.phase, plan.rows, plan.capacity));
        Ok(PlanId(self.plans.len() - 1))
    }

    fn new_sequence(&self) -> Result<Box<dyn Sequence>, DeviceError> {
        Ok(Box::new(Timeline(Vec::new())))
    }

    fn run(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        tokens: &[u32],
        position: usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let (phase, rows, capacity) = self.plans[plan.0];
        let Timeline(timeline) = sequence.as_any_mut().downcast_mut().expect("made by this model");
        assert_eq!(position, timeline.len());
        assert!((1..=rows).contains(&tokens.len()));
        assert!(position + tokens.len() <= capacity);
        if self.mock.lost_at.is_some_and(|at| at < position + tokens.len()) {
            let (step, message) = ("layers.0".to_owned(), "unplugged".to_owned());
            return Err(DeviceError::Lost { device: "mock", step, message });
        }
        let run = Run { phase, position, n_tokens: tokens.len() };
        self.mock.runs.lock().expect("no test panics while it holds this").push(run);
        self.mock.rows.lock().expect("no test panics while it holds this").push(rows);
        logits.clear();
        for &token in tokens {
            timeline.push(token);
            if phase == Phase::Score {
                logits.extend(self.mock.logits(timeline));
            }
        }
        if phase != Phase::Score {
            logits.extend(self.mock.logits(timeline));
        }
        Ok(())
    }

    fn run_ahead(
        &self,
        plan: PlanId,
        sequence: &mut dyn Sequence,
        mut token: u32,
        position: usize,
        steps: usize,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<usize, DeviceError> {
        let ahead = self.mock.ahead.expect("asked for only where the device says it can");
        let mut feed = |token, position| {
            let mut logits = Vec::new();
            self.run(plan, sequence, &[token], position, &mut logits)?;
            if logits.iter().any(|x| x.is_nan()) {
                return Ok(NO_TOKEN);
            }
            let best = logits.iter().copied().fold(f32::MIN, f32::max);
            Ok(logits.iter().position(|&x| x == best).expect("present") as u32)
        };
        for step in 0..steps {
            token = feed(token, position + step)?;
            if !on_token(token) || token == NO_TOKEN {
                let more = ahead.min(steps - step - 1);
                for i in 0..more {
                    token = feed(token.min(9), position + step + 1 + i)?;
                }
                return Ok(step + 1 + more);
            }
        }
        Ok(steps)
    }

    fn weight_bytes(&self) -> u64 {
        0
    }
}

struct Timeline(Vec<u32>);

impl Sequence for Timeline {
    fn reset(&mut self) {
        self.0.clear();
    }
    fn bytes(&self) -> u64 {
        0
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// One dense attention layer.
fn config() -> ModelConfig {
    ModelConfig {
        model_type: "qwen3_5".into(),
        hidden_size: 32,
        vocab_size: VOCAB_SIZE,
        layers: vec![LayerKind::FullAttention],
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 16,
        linear_key_heads: 1,
        linear_value_heads: 1,
        linear_key_head_dim: 8,
        linear_value_head_dim: 8,
        conv_width: 4,
        linear_gate: GateActivation::Silu,
        rms_norm_eps: 1e-6,
        rope: RopeConfig { theta: 1e7, rotary_dim: 4, scaling: RopeScaling::None },
        mlp: MlpConfig::Dense { intermediate_size: 64 },
        max_position_embeddings: 4096,
        tie_word_embeddings: true,
        eos_token_ids: vec![298],
    }
}

fn manifest() -> Manifest {
    let matrix = |rows, cols| {
        let format = MatrixFormat::Float(Dtype::Bf16);
        WeightShape::Matrix(MatrixShape { n_experts: 1, rows, cols, format })
    };
    let vector = |len| WeightShape::Vector { len, dtype: Dtype::Bf16 };
    let weights = [
        ("embed_tokens", matrix(VOCAB_SIZE, 32)),
        ("layers.0.input_layernorm", vector(32)),
        ("layers.0.self_attn.q_proj", matrix(64, 32)),
        ("layers.0.self_attn.k_proj", matrix(16, 32)),
        ("layers.0.self_attn.v_proj", matrix(16, 32)),
        ("layers.0.self_attn.q_norm", vector(16)),
        ("layers.0.self_attn.k_norm", vector(16)),
        ("layers.0.self_attn.o_proj", matrix(32, 32)),
        ("layers.0.post_attention_layernorm", vector(32)),
        ("layers.0.mlp.gate_proj", matrix(64, 32)),
        ("layers.0.mlp.up_proj", matrix(64, 32)),
        ("layers.0.mlp.down_proj", matrix(32, 64)),
        ("norm", vector(32)),
    ];
    let info = |(name, shape): (&str, WeightShape)| WeightInfo { name: name.into(), shape };
    Manifest::new(weights.into_iter().map(info).collect())
}
