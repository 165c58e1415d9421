//! How fast this machine reads weights and multiplies matrices, through lily's own kernels.

use std::time::Instant;

use anyhow::Result;
use lily_checkpoint::Checkpoint;
use lily_checkpoint::config::MlpConfig;
use lily_checkpoint::manifest::WeightShape;
use lily_device::{Device, DeviceFacts, NoProgress};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::ValidPlan;
use lily_plan::plan::Phase;
use lily_plan::stats::stats;

/// Rows of the prefill that is timed.
pub(super) const ROWS: usize = 512;
/// Rounds, of which the best counts: others may use the machine too.
const ROUNDS: usize = 5;
const STEPS: usize = 16;

/// What was measured.
pub(super) struct Rates {
    /// Gigabytes of weights and state per second of decode.
    pub(super) read: f64,
    /// Teraflops of prefill, counting matrix products only.
    pub(super) tflops: f64,
}

pub(super) fn measure(
    device: &dyn Device,
    checkpoint: &Checkpoint,
    facts: &DeviceFacts,
) -> Result<Rates> {
    let mut model = device.load(checkpoint, &NoProgress)?;
    let (config, manifest) = (checkpoint.config(), checkpoint.manifest());
    let fusions = if facts.kind == "cpu" { Fusions::cpu() } else { Fusions::all() };
    let plan = |phase, rows| -> Result<ValidPlan> {
        let options = BuildOptions {
            fusions,
            activations: facts.activations,
            token_slot: facts.token_slot && phase == Phase::Decode,
            ..BuildOptions::new(phase, rows, 2 * ROWS)
        };
        Ok(ValidPlan::new(build(config, manifest, &options)?)?)
    };
    let decode = plan(Phase::Decode, 1)?;
    let bytes = stats(&decode, ROWS).total.weight_bytes as f64;
    let prefill = plan(Phase::Prefill, ROWS)?;
    let (decode, prefill) = (model.prepare(decode)?, model.prepare(prefill)?);
    let mut sequence = model.new_sequence()?;
    let tokens: Vec<u32> = (0..ROWS).map(|i| (i * 7919 % config.vocab_size) as u32).collect();
    let (mut fastest_decode, mut fastest_prefill) = (f64::INFINITY, f64::INFINITY);
    let mut logits = Vec::new();
    for _ in 0..ROUNDS {
        sequence.reset();
        let start = Instant::now();
        model.run(prefill, sequence.as_mut(), &tokens, 0, &mut logits)?;
        fastest_prefill = fastest_prefill.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        model.run_ahead(decode, sequence.as_mut(), 1, ROWS, STEPS, &mut |_| true)?;
        fastest_decode = fastest_decode.min(start.elapsed().as_secs_f64() / STEPS as f64);
    }
    let flops = 2.0 * active_weights(checkpoint) * ROWS as f64;
    Ok(Rates { read: bytes / fastest_decode / 1e9, tflops: flops / fastest_prefill / 1e12 })
}

/// Weights that one row is multiplied with, embedding and head apart.
fn active_weights(checkpoint: &Checkpoint) -> f64 {
    let share = match checkpoint.config().mlp {
        MlpConfig::Moe { top_k, n_experts, .. } => top_k as f64 / n_experts as f64,
        MlpConfig::Dense { .. } => 1.0,
    };
    let layers = checkpoint.manifest().weights().iter().filter(|w| w.name.starts_with("layers."));
    layers
        .map(|weight| match weight.shape {
            WeightShape::Matrix(m) if m.n_experts > 1 => {
                (m.n_experts * m.rows * m.cols) as f64 * share
            }
            WeightShape::Matrix(m) => (m.rows * m.cols) as f64,
            WeightShape::Vector { .. } | WeightShape::Conv { .. } => 0.0,
        })
        .sum()
}
