//! From configuration and manifest to a plan.

use std::collections::{HashMap, HashSet};

use lily_checkpoint::config::{LayerKind, MlpConfig, ModelConfig};
use lily_checkpoint::manifest::{Manifest, MatrixShape, WeightInfo, WeightShape};
use lily_plan::buffer::{BufferClass, BufferId, Elem, Region, WeightDecl, WeightId};
use lily_plan::op::{Embed, Op};
use lily_plan::plan::{Phase, Plan, PlanBuilder, Ports};

use crate::error::ModelError;
use crate::fusions::Fusions;
use crate::rope::{Rope, rope};
use crate::{attention, gated_delta, head, mlp};

/// What to build; [`BuildOptions::new`] is where to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// What the plan is for.
    pub phase: Phase,
    /// Most tokens of one run; 1 for decode.
    pub rows: usize,
    /// Tokens the KV cache holds.
    pub capacity: usize,
    /// Element type of the KV cache: `F32` or `Bf16`.
    pub kv: Elem,
    /// Fusions to use.
    pub fusions: Fusions,
    /// What feeds matrix products of several rows: `F32` or `Bf16`.
    pub activations: Elem,
    /// Whether a decode plan chooses the next token itself ([`lily_plan::op::Advance`]); its id is
    /// then in the output buffer [`GENERATED`] too.
    pub token_slot: bool,
    /// Tokens that the token slot can choose: ids below this; `None`: all rows of the head.
    pub token_limit: Option<usize>,
}

impl BuildOptions {
    /// A plan of `phase` as the CPU wants it, with a KV cache of `f32`.
    pub fn new(phase: Phase, rows: usize, capacity: usize) -> Self {
        BuildOptions {
            phase,
            rows,
            capacity,
            kv: Elem::F32,
            fusions: Fusions::cpu(),
            activations: Elem::F32,
            token_slot: false,
            token_limit: None,
        }
    }
}

/// Name of the ring of tokens that a decode plan with a token slot fills: the token chosen after
/// position `p` is in slot `p mod` [`GENERATED_LEN`].
pub const GENERATED: &str = "generated";

/// Slots of [`GENERATED`].
pub const GENERATED_LEN: usize = 4096;

/// Builds the plan of one phase.
///
/// Session buffers (KV cache, recurrent state) have the same names in all plans of one model.
///
/// # Errors
/// [`ModelError::Field`] for impossible options or configurations; [`ModelError::MissingWeight`],
/// [`ModelError::WeightShape`] and [`ModelError::UnusedWeight`] where the manifest does not fit the
/// configuration.
pub fn build(
    config: &ModelConfig,
    manifest: &Manifest,
    options: &BuildOptions,
) -> Result<Plan, ModelError> {
    check(config, options)?;
    let mut b = Builder::new(config, manifest, options);
    let x = embed(&mut b)?;
    for (layer, kind) in config.layers.iter().enumerate() {
        let path = format!("layers.{layer}");
        match kind {
            LayerKind::LinearAttention => gated_delta::layer(&mut b, &path, &x)?,
            LayerKind::FullAttention => attention::layer(&mut b, &path, &x)?,
        }
        mlp::layer(&mut b, &path, &x)?;
    }
    let logits = head::head(&mut b, &x)?;
    b.finish(logits)
}

/// Larger dimensions are refused, so that no product of a few of them overflows.
const MAX_DIMENSION: usize = 1 << 24;

fn refuse(field: &'static str, expected: &str, found: &dyn std::fmt::Debug) -> ModelError {
    ModelError::Field { field, expected: expected.to_owned(), found: format!("{found:?}") }
}

fn check(config: &ModelConfig, options: &BuildOptions) -> Result<(), ModelError> {
    check_dimensions(config)?;
    check_relations(config)?;
    if options.rows == 0 || (options.phase == Phase::Decode && options.rows != 1) {
        let expected = if options.rows == 0 { "at least 1" } else { "1 for decode" };
        return Err(refuse("rows", expected, &options.rows));
    }
    if options.capacity < options.rows {
        return Err(refuse("capacity", "at least the rows", &options.capacity));
    }
    if !matches!(options.kv, Elem::F32 | Elem::Bf16) {
        return Err(refuse("kv", "F32 or Bf16", &options.kv));
    }
    if !matches!(options.activations, Elem::F32 | Elem::Bf16) {
        return Err(refuse("activations", "F32 or Bf16", &options.activations));
    }
    if let Some(limit) = options.token_limit
        && !(1..=config.vocab_size).contains(&limit)
    {
        return Err(refuse("token_limit", "1 to the vocabulary's size", &limit));
    }
    Ok(())
}

fn check_dimensions(config: &ModelConfig) -> Result<(), ModelError> {
    let mut dimensions = vec![
        ("layers", config.layers.len()),
        ("hidden_size", config.hidden_size),
        ("vocab_size", config.vocab_size),
        ("n_heads", config.n_heads),
        ("n_kv_heads", config.n_kv_heads),
        ("head_dim", config.head_dim),
        ("linear_key_heads", config.linear_key_heads),
        ("linear_value_heads", config.linear_value_heads),
        ("linear_key_head_dim", config.linear_key_head_dim),
        ("linear_value_head_dim", config.linear_value_head_dim),
        ("conv_width", config.conv_width),
    ];
    match config.mlp {
        MlpConfig::Dense { intermediate_size } => {
            dimensions.push(("intermediate_size", intermediate_size));
        }
        MlpConfig::Moe { n_experts, top_k, expert_intermediate_size, shared_intermediate_size } => {
            dimensions.extend([
                ("n_experts", n_experts),
                ("top_k", top_k),
                ("expert_intermediate_size", expert_intermediate_size),
                ("shared_intermediate_size", shared_intermediate_size),
            ]);
        }
    }
    match dimensions.iter().find(|&&(_, found)| !(1..=MAX_DIMENSION).contains(&found)) {
        Some((field, found)) => Err(refuse(field, "1 to 2^24", found)),
        None => Ok(()),
    }
}

fn check_relations(config: &ModelConfig) -> Result<(), ModelError> {
    if !config.n_heads.is_multiple_of(config.n_kv_heads) {
        return Err(refuse("n_heads", "a multiple of n_kv_heads", &config.n_heads));
    }
    if !config.linear_value_heads.is_multiple_of(config.linear_key_heads) {
        let found = config.linear_value_heads;
        return Err(refuse("linear_value_heads", "a multiple of linear_key_heads", &found));
    }
    if config.conv_width < 2 {
        return Err(refuse("conv_width", "at least 2", &config.conv_width));
    }
    if let MlpConfig::Moe { n_experts, top_k, .. } = config.mlp
        && top_k > n_experts
    {
        return Err(refuse("top_k", "at most n_experts", &top_k));
    }
    let rotary_dim = config.rope.rotary_dim;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) || rotary_dim > config.head_dim {
        return Err(refuse("rotary_dim", "even, 2 to head_dim", &rotary_dim));
    }
    let theta = config.rope.theta;
    if !theta.is_finite() || theta <= 1.0 {
        return Err(refuse("theta", "more than 1", &theta));
    }
    Ok(())
}

/// The residual stream, filled from the embedding.
fn embed(b: &mut Builder<'_>) -> Result<Region, ModelError> {
    let (rows, dim) = (b.rows, b.config.hidden_size);
    let x = b.scratch("x", rows, dim);
    let table = b.matrix("embed_tokens", b.config.vocab_size, dim)?;
    let op = Embed { tokens: b.tokens.clone(), table, out: x.clone(), rows, dim };
    b.push("embed", Op::Embed(op));
    Ok(x)
}

/// A recording in progress.
pub(crate) struct Builder<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) options: &'a BuildOptions,
    pub(crate) rows: usize,
    pub(crate) rope: Rope,
    pub(crate) control: Region,
    pub(crate) tokens: Region,
    manifest: &'a Manifest,
    by_name: HashMap<&'a str, &'a WeightInfo>,
    used: HashSet<String>,
    plan: PlanBuilder,
}

impl<'a> Builder<'a> {
    fn new(config: &'a ModelConfig, manifest: &'a Manifest, options: &'a BuildOptions) -> Self {
        let mut plan = PlanBuilder::new();
        let rows = options.rows as u64;
        let control = plan.buffer("control", Elem::U32, 2, BufferClass::Input);
        let tokens = plan.buffer("tokens", Elem::U32, rows, BufferClass::Input);
        Builder {
            config,
            options,
            rows: options.rows,
            rope: rope(&config.rope),
            control,
            tokens,
            manifest,
            by_name: manifest.weights().iter().map(|w| (w.name.as_str(), w)).collect(),
            used: HashSet::new(),
            plan,
        }
    }

    /// Ends the recording; every weight of the manifest must have found its use.
    fn finish(self, logits: BufferId) -> Result<Plan, ModelError> {
        if let Some(w) = self.manifest.weights().iter().find(|w| !self.used.contains(&w.name)) {
            return Err(ModelError::UnusedWeight {
                name: w.name.clone(),
                model_type: self.config.model_type.clone(),
                n_layers: self.config.layers.len(),
            });
        }
        let ports = Ports { control: self.control.buffer, tokens: self.tokens.buffer, logits };
        let BuildOptions { phase, rows, capacity, .. } = *self.options;
        Ok(self.plan.finish(phase, rows, capacity, ports))
    }

    pub(crate) fn push(&mut self, name: impl Into<String>, op: Op) {
        self.plan.push(name, op);
    }

    /// A buffer of `rows * dim` elements; sizes saturate and are then refused by the validator.
    pub(crate) fn buffer(
        &mut self,
        name: impl Into<String>,
        elem: Elem,
        shape: &[usize],
        class: BufferClass,
    ) -> Region {
        // The builder multiplies by the element size.
        let most = u64::MAX / elem.bytes();
        let len = shape.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64));
        self.plan.buffer(name, elem, len.min(most), class)
    }
    /// `F32[rows, dim]` that lives within the run.
    pub(crate) fn scratch(&mut self, name: impl Into<String>, rows: usize, dim: usize) -> Region {
        self.buffer(name, Elem::F32, &[rows, dim], BufferClass::Scratch)
    }

    /// `[rows, dim]` that feeds matrix products of `rows` rows and lives within the run.
    pub(crate) fn activations(
        &mut self,
        name: impl Into<String>,
        rows: usize,
        dim: usize,
    ) -> Region {
        // A product of one row is bound by its matrix: nothing is won by a smaller operand.
        let elem = if rows == 1 { Elem::F32 } else { self.options.activations };
        self.buffer(name, elem, &[rows, dim], BufferClass::Scratch)
    }
    /// The fusions that apply to this plan.
    pub(crate) fn fusions(&self) -> Fusions {
        if self.rows == 1 { self.options.fusions } else { self.options.fusions.several_rows() }
    }

    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, ModelError> {
        self.expert_matrix(name, 1, rows, cols)
    }
    pub(crate) fn expert_matrix(
        &mut self,
        name: &str,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, ModelError> {
        let fits = |shape: &WeightShape| {
            matches!(shape, WeightShape::Matrix(m)
                if (m.n_experts, m.rows, m.cols) == (n_experts, rows, cols))
        };
        let expected = describe_matrix(n_experts, rows, cols);
        self.weight(name, fits, expected, (n_experts, rows, cols))
    }
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<WeightId, ModelError> {
        let fits =
            |shape: &WeightShape| matches!(shape, WeightShape::Vector { len: l, .. } if *l == len);
        self.weight(name, fits, format!("vector [{len}]"), (1, len, 1))
    }
    pub(crate) fn conv(
        &mut self,
        name: &str,
        channels: usize,
        width: usize,
    ) -> Result<WeightId, ModelError> {
        let fits = |shape: &WeightShape| {
            matches!(shape, WeightShape::Conv { channels: c, width: w, .. }
                if (*c, *w) == (channels, width))
        };
        self.weight(name, fits, format!("conv [{channels}, {width}]"), (1, channels, width))
    }

    fn weight(
        &mut self,
        name: &str,
        fits: impl FnOnce(&WeightShape) -> bool,
        expected: String,
        (n_experts, rows, cols): (usize, usize, usize),
    ) -> Result<WeightId, ModelError> {
        let Some(info) = self.by_name.get(name) else {
            return Err(ModelError::MissingWeight { name: name.to_owned() });
        };
        if !fits(&info.shape) {
            let (name, found) = (name.to_owned(), describe(&info.shape));
            return Err(ModelError::WeightShape { name, expected, found });
        }
        self.used.insert(name.to_owned());
        let (name, bytes) = (name.to_owned(), info.shape.bytes());
        Ok(self.plan.weight(WeightDecl { name, n_experts, rows, cols, bytes }))
    }
}

fn describe(shape: &WeightShape) -> String {
    match *shape {
        WeightShape::Matrix(MatrixShape { n_experts, rows, cols, .. }) => {
            describe_matrix(n_experts, rows, cols)
        }
        WeightShape::Vector { len, .. } => format!("vector [{len}]"),
        WeightShape::Conv { channels, width, .. } => format!("conv [{channels}, {width}]"),
    }
}

fn describe_matrix(n_experts: usize, rows: usize, cols: usize) -> String {
    match n_experts {
        1 => format!("matrix [{rows}, {cols}]"),
        _ => format!("{n_experts} matrices [{rows}, {cols}]"),
    }
}
