//! How fast this machine reads weights and multiplies matrices, through lily's own kernels.
//!
//! Two small plans of its own: one of a single matrix-vector product, the widest there is, and one of
//! a few matrix products of many rows.

use std::time::Instant;

use anyhow::{Context, Result};
use lily_checkpoint::Checkpoint;
use lily_checkpoint::manifest::WeightShape;
use lily_device::{Device, DeviceFacts, LoadedModel, NoProgress, PlanId};
use lily_plan::ValidPlan;
use lily_plan::buffer::{BufferClass, Elem, Region, WeightDecl, WeightId};
use lily_plan::op::{Advance, ArgmaxParts, Embed, LastRow, Linear, Op, RmsNorm, StackedLinear};
use lily_plan::op::{FoldedNorm, StackedPart};
use lily_plan::plan::{Phase, Plan, PlanBuilder, Ports};

/// Rounds, of which the best counts: others may use the machine too.
const ROUNDS: usize = 5;
/// Matrix-vector products that follow each other.
const STEPS: usize = 16;
/// Matrix products of a plan, which may overlap.
const PRODUCTS: usize = 4;
/// Runs of the vocabulary, and slots of the ring, of the plan that chooses tokens.
const PARTS: usize = 128;

/// What was measured.
pub(super) struct Rates {
    /// Gigabytes of weights per second of a matrix-vector product.
    pub(super) read: f64,
    /// Teraflops of matrix products.
    pub(super) tflops: f64,
    /// Rows of these products.
    pub(super) rows: usize,
}

pub(super) fn measure(
    device: &dyn Device,
    checkpoint: &Checkpoint,
    facts: &DeviceFacts,
) -> Result<Rates> {
    let mut model = device.load(checkpoint, &NoProgress)?;
    let (read, bytes) = read_plan(checkpoint)?;
    let rows = if facts.kind == "cpu" { 256 } else { 2048 };
    let (multiply, flops) = product_plan(checkpoint, rows, facts.activations)?;
    let (read, multiply) = (model.prepare(read)?, model.prepare(multiply)?);
    let read = bytes / fastest(|| steps(model.as_ref(), read))? / 1e9;
    let vocab = checkpoint.config().vocab_size;
    let tokens: Vec<u32> = (0..rows).map(|i| (i % vocab) as u32).collect();
    let product = || one(model.as_ref(), multiply, &tokens);
    Ok(Rates { read, tflops: flops / fastest(product)? / 1e12, rows })
}

fn fastest(mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    (0..ROUNDS).try_fold(f64::INFINITY, |best, _| Ok(run()?.min(best)))
}

/// Seconds of one matrix-vector product among many.
fn steps(model: &dyn LoadedModel, plan: PlanId) -> Result<f64> {
    let mut sequence = model.new_sequence()?;
    let start = Instant::now();
    model.run_ahead(plan, sequence.as_mut(), 1, 0, STEPS, &mut |_| true)?;
    Ok(start.elapsed().as_secs_f64() / STEPS as f64)
}

/// Seconds of one run.
fn one(model: &dyn LoadedModel, plan: PlanId, tokens: &[u32]) -> Result<f64> {
    let mut sequence = model.new_sequence()?;
    let start = Instant::now();
    model.run(plan, sequence.as_mut(), tokens, 0, &mut Vec::new())?;
    Ok(start.elapsed().as_secs_f64())
}

/// A recording with its ports.
struct Recording<'c> {
    checkpoint: &'c Checkpoint,
    plan: PlanBuilder,
    control: Region,
    tokens: Region,
    rows: usize,
}

impl<'c> Recording<'c> {
    fn new(checkpoint: &'c Checkpoint, rows: usize) -> Self {
        let mut plan = PlanBuilder::new();
        let control = plan.buffer("control", Elem::U32, 2, BufferClass::Input);
        let tokens = plan.buffer("tokens", Elem::U32, rows as u64, BufferClass::Input);
        Recording { checkpoint, plan, control, tokens, rows }
    }

    fn scratch(&mut self, name: &str, elem: Elem, len: usize) -> Region {
        self.plan.buffer(name, elem, len as u64, BufferClass::Scratch)
    }

    fn output(&mut self, name: &str, elem: Elem, len: usize) -> Region {
        self.plan.buffer(name, elem, len as u64, BufferClass::Output)
    }

    /// A weight with its rows and the bytes of all of it.
    fn weight(&mut self, name: &str) -> Result<(WeightId, usize, u64)> {
        let info = self.checkpoint.manifest().get(name);
        let shape = info.with_context(|| format!("the checkpoint has no {name}"))?.shape;
        let (rows, cols) = match shape {
            WeightShape::Matrix(m) => (m.rows, m.cols),
            WeightShape::Vector { len, .. } => (len, 1),
            WeightShape::Conv { channels, width, .. } => (channels, width),
        };
        let (name, bytes) = (name.to_owned(), shape.bytes());
        let id = self.plan.weight(WeightDecl { name, n_experts: 1, rows, cols, bytes });
        Ok((id, rows, bytes))
    }

    /// The tokens' rows of the embedding.
    fn embed(&mut self) -> Result<Region> {
        let (rows, dim) = (self.rows, self.checkpoint.config().hidden_size);
        let (table, ..) = self.weight("embed_tokens")?;
        let out = self.scratch("x", Elem::F32, rows * dim);
        let op = Embed { tokens: self.tokens.clone(), table, out: out.clone(), rows, dim };
        self.plan.push("embed", Op::Embed(op));
        Ok(out)
    }

    fn finish(self, phase: Phase, logits: &Region) -> Result<ValidPlan> {
        let ports = Ports {
            control: self.control.buffer,
            tokens: self.tokens.buffer,
            logits: logits.buffer,
        };
        let capacity = self.rows.max(2 * STEPS);
        let plan: Plan = self.plan.finish(phase, self.rows, capacity, ports);
        Ok(ValidPlan::new(plan)?)
    }
}

/// The head alone, token after token; and the bytes that it reads.
fn read_plan(checkpoint: &Checkpoint) -> Result<(ValidPlan, f64)> {
    let config = checkpoint.config();
    let (k, eps) = (config.hidden_size, config.rms_norm_eps);
    let mut r = Recording::new(checkpoint, 1);
    let x = r.embed()?;
    let (weight, ..) = r.weight("norm")?;
    let head = if config.tie_word_embeddings { "embed_tokens" } else { "lm_head" };
    let (matrix, vocab, bytes) = r.weight(head)?;
    let logits = r.output("logits", Elem::F32, vocab);
    let norm = Some(FoldedNorm { weight, eps });
    let parts = vec![StackedPart { weight: matrix, out: logits.clone(), n: vocab }];
    r.plan.push("head", Op::StackedLinear(StackedLinear { x, norm, parts, rows: 1, k }));
    let parts = PARTS.min(vocab);
    let values = r.scratch("values", Elem::F32, parts);
    let ids = r.scratch("ids", Elem::U32, parts);
    let (kept, chosen) = (values.clone(), ids.clone());
    let op =
        ArgmaxParts { logits: logits.clone(), values: kept, ids: chosen, rows: 1, vocab, parts };
    r.plan.push("argmax", Op::ArgmaxParts(op));
    let ring_len = lily_model::GENERATED_LEN;
    let ring = r.output(lily_model::GENERATED, Elem::U32, ring_len);
    let (control, tokens) = (r.control.clone(), r.tokens.clone());
    let op = Advance { control, values, ids, tokens, ring, rows: 1, parts, ring_len };
    r.plan.push("advance", Op::Advance(op));
    Ok((r.finish(Phase::Decode, &logits)?, bytes as f64))
}

/// Products of the first layer's widest projection; and their operations.
fn product_plan(
    checkpoint: &Checkpoint,
    rows: usize,
    activations: Elem,
) -> Result<(ValidPlan, f64)> {
    let config = checkpoint.config();
    let (k, eps) = (config.hidden_size, config.rms_norm_eps);
    let mut r = Recording::new(checkpoint, rows);
    let x = r.embed()?;
    let (weight, ..) = r.weight("norm")?;
    let h = r.scratch("h", activations, rows * k);
    let op = RmsNorm { x, weight, out: h.clone(), rows, dim: k, eps };
    r.plan.push("norm", Op::RmsNorm(op));
    let name = ["layers.0.linear_attn.in_proj_qkv", "layers.0.self_attn.q_proj"]
        .into_iter()
        .find(|name| checkpoint.manifest().get(name).is_some())
        .context("the checkpoint has no first layer")?;
    let (weight, n, _) = r.weight(name)?;
    let mut last = h.clone();
    for i in 0..PRODUCTS {
        last = r.scratch(&format!("out{i}"), Elem::F32, rows * n);
        let (x, out, accumulate) = (h.clone(), last.clone(), false);
        r.plan.push(
            format!("product{i}"),
            Op::Linear(Linear { x, weight, out, rows, n, k, accumulate }),
        );
    }
    let logits = r.output("logits", Elem::F32, n);
    let (control, out) = (r.control.clone(), logits.clone());
    r.plan.push("last", Op::LastRow(LastRow { control, x: last, out, rows, dim: n }));
    let flops = 2.0 * (PRODUCTS * rows * n * k) as f64;
    Ok((r.finish(Phase::Prefill, &logits)?, flops))
}
