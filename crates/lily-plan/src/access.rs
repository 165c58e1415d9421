//! What an operation reads, writes and expects of its operands.
//!
//! [`Op::signature`] is the single place where these facts stand; the validator, the hazards, the
//! statistics and the dump all read them here.

use crate::buffer::{BufferClass, Elem, Region, WeightId};
use crate::op::Op;

/// How an operation touches an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads all of it.
    Read,
    /// Overwrites all of it without looking.
    Write,
    /// Reads it, or keeps parts of it, and writes it.
    Update,
}

impl Access {
    /// Whether the bytes held before matter.
    pub fn reads(self) -> bool {
        matches!(self, Access::Read | Access::Update)
    }
    /// Whether the bytes may differ afterwards.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::Update)
    }
}

/// Which buffers may hold an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Any buffer that the access allows.
    Any,
    /// Only buffers of this class.
    Class(BufferClass),
    /// The plan's control block.
    Control,
}

/// One operand with everything the operation demands of it.
#[derive(Clone, Debug)]
pub struct Operand<'a> {
    /// Field name in the operation.
    pub name: &'static str,
    /// Where it lies.
    pub region: &'a Region,
    /// How it is touched.
    pub access: Access,
    /// Allowed element types.
    pub elems: &'static [Elem],
    /// Elements; `None` when the product of the dimensions overflows.
    pub len: Option<u64>,
    /// Allowed buffers.
    pub home: Home,
    /// Whether this read operand may be the very region that the operation writes.
    pub in_place: bool,
}

/// One weight with the shape the operation demands of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightUse {
    /// Field name in the operation.
    pub name: &'static str,
    /// The weight.
    pub id: WeightId,
    /// Experts.
    pub n_experts: usize,
    /// Rows; `None` where any number will do (the vocabulary of an embedding).
    pub rows: Option<usize>,
    /// Columns.
    pub cols: usize,
}

/// A relation between dimensions that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What must hold, in words.
    pub expected: &'static str,
    /// The offending dimension.
    pub dimension: &'static str,
    /// Its value.
    pub found: usize,
    /// Whether it holds.
    pub holds: bool,
}

/// Everything that is known of an operation without running it.
#[derive(Clone, Debug)]
pub struct Signature<'a> {
    /// Name of the operation.
    pub kind: &'static str,
    /// Token rows: the plan's rows, or 1 behind a `LastRow`.
    pub rows: usize,
    /// Dimensions, in the order of the operation's fields; all at least 1.
    pub dims: Vec<(&'static str, usize)>,
    /// Operands, in the order of the operation's fields.
    pub operands: Vec<Operand<'a>>,
    /// Weights, in the order of the operation's fields.
    pub weights: Vec<WeightUse>,
    /// Relations between dimensions.
    pub rules: Vec<Rule>,
}

const F32: &[Elem] = &[Elem::F32];
const U32: &[Elem] = &[Elem::U32];
const CACHE: &[Elem] = &[Elem::F32, Elem::Bf16];

/// The product of dimensions in elements, if it fits.
fn product(shape: &[usize]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))
}

impl<'a> Signature<'a> {
    fn new(kind: &'static str, rows: usize) -> Self {
        Signature {
            kind,
            rows,
            dims: vec![("rows", rows)],
            operands: Vec::new(),
            weights: Vec::new(),
            rules: Vec::new(),
        }
    }

    fn dims(mut self, dims: &[(&'static str, usize)]) -> Self {
        self.dims.extend_from_slice(dims);
        self
    }

    fn operand(
        mut self,
        name: &'static str,
        region: &'a Region,
        access: Access,
        elems: &'static [Elem],
        shape: &[usize],
    ) -> Self {
        let len = product(shape);
        let home = Home::Any;
        self.operands.push(Operand { name, region, access, elems, len, home, in_place: false });
        self
    }

    fn read(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Read, F32, shape)
    }
    fn write(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Write, F32, shape)
    }
    fn update(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Update, F32, shape)
    }
    fn read_index(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Read, U32, shape)
    }
    fn write_index(self, name: &'static str, region: &'a Region, shape: &[usize]) -> Self {
        self.operand(name, region, Access::Write, U32, shape)
    }
    fn control(self, region: &'a Region) -> Self {
        self.read_index("control", region, &[2]).home(Home::Control)
    }
    fn cache(
        self,
        name: &'static str,
        region: &'a Region,
        access: Access,
        shape: &[usize],
    ) -> Self {
        self.operand(name, region, access, CACHE, shape).home(Home::Class(BufferClass::KvCache))
    }
    fn state(self, region: &'a Region, shape: &[usize]) -> Self {
        self.update("state", region, shape).home(Home::Class(BufferClass::State))
    }

    /// Restricts the operand added last.
    fn home(mut self, home: Home) -> Self {
        if let Some(last) = self.operands.last_mut() {
            last.home = home;
        }
        self
    }
    /// Lets the operand added last be the region that is written.
    fn in_place(mut self) -> Self {
        if let Some(last) = self.operands.last_mut() {
            last.in_place = true;
        }
        self
    }

    fn weight(
        mut self,
        name: &'static str,
        id: WeightId,
        n_experts: usize,
        rows: Option<usize>,
        cols: usize,
    ) -> Self {
        self.weights.push(WeightUse { name, id, n_experts, rows, cols });
        self
    }
    fn matrix(self, name: &'static str, id: WeightId, n: usize, k: usize) -> Self {
        self.weight(name, id, 1, Some(n), k)
    }
    fn vector(self, name: &'static str, id: WeightId, len: usize) -> Self {
        self.weight(name, id, 1, Some(len), 1)
    }

    fn rule(
        mut self,
        dimension: &'static str,
        found: usize,
        holds: bool,
        expected: &'static str,
    ) -> Self {
        self.rules.push(Rule { expected, dimension, found, holds });
        self
    }
}

fn divides(divisor: usize, n: usize) -> bool {
    divisor != 0 && n.is_multiple_of(divisor)
}

impl Op {
    /// Reads, writes, weights, dimensions and their rules.
    pub fn signature(&self) -> Signature<'_> {
        match self {
            Op::Embed(o) => Signature::new("embed", o.rows)
                .dims(&[("dim", o.dim)])
                .read_index("tokens", &o.tokens, &[o.rows])
                .weight("table", o.table, 1, None, o.dim)
                .write("out", &o.out, &[o.rows, o.dim]),
            Op::RmsNorm(o) => Signature::new("rms_norm", o.rows)
                .dims(&[("dim", o.dim)])
                .read("x", &o.x, &[o.rows, o.dim])
                .vector("weight", o.weight, o.dim)
                .write("out", &o.out, &[o.rows, o.dim]),
            Op::Linear(o) => Signature::new("linear", o.rows)
                .dims(&[("n", o.n), ("k", o.k)])
                .read("x", &o.x, &[o.rows, o.k])
                .matrix("weight", o.weight, o.n, o.k)
                .operand(
                    "out",
                    &o.out,
                    if o.accumulate { Access::Update } else { Access::Write },
                    F32,
                    &[o.rows, o.n],
                ),
            Op::GatedLinear(o) => Signature::new("gated_linear", o.rows)
                .dims(&[("n", o.n), ("k", o.k)])
                .read("x", &o.x, &[o.rows, o.k])
                .matrix("gate", o.gate, o.n, o.k)
                .matrix("up", o.up, o.n, o.k)
                .write("out", &o.out, &[o.rows, o.n]),
            Op::SwiGlu(o) => {
                let token_rows = o.rows.checked_div(o.rows_per_token).unwrap_or(0);
                Signature::new("swiglu", token_rows)
                    .dims(&[("rows_per_token", o.rows_per_token), ("dim", o.dim)])
                    .rule(
                        "rows",
                        o.rows,
                        divides(o.rows_per_token, o.rows),
                        "a multiple of rows_per_token",
                    )
                    .read("gate", &o.gate, &[o.rows, o.dim])
                    .read("up", &o.up, &[o.rows, o.dim])
                    .write("out", &o.out, &[o.rows, o.dim])
            }
            Op::Add(o) => Signature::new("add", o.rows)
                .dims(&[("dim", o.dim)])
                .update("x", &o.x, &[o.rows, o.dim])
                .read("y", &o.y, &[o.rows, o.dim]),
            Op::Conv(o) => Signature::new("conv", o.rows)
                .dims(&[("channels", o.channels), ("width", o.width)])
                .rule("width", o.width, o.width >= 2, "at least 2")
                .read("x", &o.x, &[o.rows, o.channels])
                .weight("weight", o.weight, 1, Some(o.channels), o.width)
                .state(&o.state, &[o.width.saturating_sub(1), o.channels])
                .write("out", &o.out, &[o.rows, o.channels]),
            Op::GatedDelta(o) => gated_delta(o),
            Op::GatedRmsNorm(o) => Signature::new("gated_rms_norm", o.rows)
                .dims(&[("heads", o.heads), ("dim", o.dim)])
                .read("x", &o.x, &[o.rows, o.heads, o.dim])
                .in_place()
                .read("gate", &o.gate, &[o.rows, o.heads, o.dim])
                .vector("weight", o.weight, o.dim)
                .write("out", &o.out, &[o.rows, o.heads, o.dim]),
            Op::RopeAppend(o) => rope_append(o),
            Op::Attention(o) => attention(o),
            Op::OutputGate(o) => Signature::new("output_gate", o.rows)
                .dims(&[("n_heads", o.n_heads), ("head_dim", o.head_dim)])
                .update("x", &o.x, &[o.rows, o.n_heads, o.head_dim])
                .read("q_gate", &o.q_gate, &[o.rows, o.n_heads, 2, o.head_dim]),
            Op::Route(o) => Signature::new("route", o.rows)
                .dims(&[("n_experts", o.n_experts), ("top_k", o.top_k)])
                .rule("top_k", o.top_k, o.top_k <= o.n_experts, "at most n_experts")
                .read("logits", &o.logits, &[o.rows, o.n_experts])
                .write_index("experts", &o.experts, &[o.rows, o.top_k])
                .write("weights", &o.weights, &[o.rows, o.top_k]),
            Op::GroupByExpert(o) => Signature::new("group_by_expert", o.rows)
                .dims(&[("n_experts", o.n_experts), ("top_k", o.top_k)])
                .read_index("experts", &o.experts, &[o.rows, o.top_k])
                .write_index("offsets", &o.offsets, &[o.n_experts.saturating_add(1)])
                .write_index("order", &o.order, &[o.rows, o.top_k]),
            Op::ExpertLinear(o) => Signature::new("expert_linear", o.rows)
                .dims(&[("n_experts", o.n_experts), ("top_k", o.top_k), ("n", o.n), ("k", o.k)])
                .read("x", &o.x, &[o.rows, if o.per_slot { o.top_k } else { 1 }, o.k])
                .read_index("offsets", &o.offsets, &[o.n_experts.saturating_add(1)])
                .read_index("order", &o.order, &[o.rows, o.top_k])
                .weight("weight", o.weight, o.n_experts, Some(o.n), o.k)
                .write("out", &o.out, &[o.rows, o.top_k, o.n]),
            Op::ExpertGatedLinear(o) => Signature::new("expert_gated_linear", o.rows)
                .dims(&[("n_experts", o.n_experts), ("top_k", o.top_k), ("n", o.n), ("k", o.k)])
                .read("x", &o.x, &[o.rows, o.k])
                .read_index("offsets", &o.offsets, &[o.n_experts.saturating_add(1)])
                .read_index("order", &o.order, &[o.rows, o.top_k])
                .weight("gate", o.gate, o.n_experts, Some(o.n), o.k)
                .weight("up", o.up, o.n_experts, Some(o.n), o.k)
                .write("out", &o.out, &[o.rows, o.top_k, o.n]),
            Op::MoeCombine(o) => Signature::new("moe_combine", o.rows)
                .dims(&[("top_k", o.top_k), ("dim", o.dim)])
                .read("expert_out", &o.expert_out, &[o.rows, o.top_k, o.dim])
                .read("weights", &o.weights, &[o.rows, o.top_k])
                .read("shared_out", &o.shared_out, &[o.rows, o.dim])
                .read("shared_gate", &o.shared_gate, &[o.rows])
                .update("x", &o.x, &[o.rows, o.dim]),
            Op::LastRow(o) => Signature::new("last_row", o.rows)
                .dims(&[("dim", o.dim)])
                .control(&o.control)
                .read("x", &o.x, &[o.rows, o.dim])
                .write("out", &o.out, &[o.dim]),
        }
    }
}

fn gated_delta(o: &crate::op::GatedDelta) -> Signature<'_> {
    let keys = o.key_heads.saturating_mul(o.key_dim);
    let values = o.value_heads.saturating_mul(o.value_dim);
    let conv_dim = keys.saturating_mul(2).saturating_add(values);
    Signature::new("gated_delta", o.rows)
        .dims(&[
            ("key_heads", o.key_heads),
            ("value_heads", o.value_heads),
            ("key_dim", o.key_dim),
            ("value_dim", o.value_dim),
        ])
        .rule(
            "value_heads",
            o.value_heads,
            divides(o.key_heads, o.value_heads),
            "a multiple of key_heads",
        )
        .read("qkv", &o.qkv, &[o.rows, conv_dim])
        .read("a", &o.a, &[o.rows, o.value_heads])
        .read("b", &o.b, &[o.rows, o.value_heads])
        .vector("a_log", o.a_log, o.value_heads)
        .vector("dt_bias", o.dt_bias, o.value_heads)
        .state(&o.state, &[o.value_heads, o.value_dim, o.key_dim])
        .write("out", &o.out, &[o.rows, o.value_heads, o.value_dim])
}

fn rope_append(o: &crate::op::RopeAppend) -> Signature<'_> {
    let cache = [o.n_kv_heads, o.capacity, o.head_dim];
    let pairs = o.inv_freq.len();
    Signature::new("rope_append", o.rows)
        .dims(&[
            ("n_heads", o.n_heads),
            ("n_kv_heads", o.n_kv_heads),
            ("head_dim", o.head_dim),
            ("capacity", o.capacity),
        ])
        .rule("n_heads", o.n_heads, divides(o.n_kv_heads, o.n_heads), "a multiple of n_kv_heads")
        .rule("inv_freq", pairs, pairs <= o.head_dim / 2, "at most head_dim / 2 pairs")
        .control(&o.control)
        .read("q_gate", &o.q_gate, &[o.rows, o.n_heads, 2, o.head_dim])
        .read("k", &o.k, &[o.rows, o.n_kv_heads, o.head_dim])
        .read("v", &o.v, &[o.rows, o.n_kv_heads, o.head_dim])
        .vector("q_norm", o.q_norm, o.head_dim)
        .vector("k_norm", o.k_norm, o.head_dim)
        .write("q", &o.q, &[o.rows, o.n_heads, o.head_dim])
        .cache("k_cache", &o.k_cache, Access::Update, &cache)
        .cache("v_cache", &o.v_cache, Access::Update, &cache)
}

fn attention(o: &crate::op::Attention) -> Signature<'_> {
    let cache = [o.n_kv_heads, o.capacity, o.head_dim];
    let signature = Signature::new("attention", o.rows)
        .dims(&[
            ("n_heads", o.n_heads),
            ("n_kv_heads", o.n_kv_heads),
            ("head_dim", o.head_dim),
            ("capacity", o.capacity),
        ])
        .rule("n_heads", o.n_heads, divides(o.n_kv_heads, o.n_heads), "a multiple of n_kv_heads")
        .control(&o.control)
        .read("q", &o.q, &[o.rows, o.n_heads, o.head_dim])
        .cache("k_cache", &o.k_cache, Access::Read, &cache)
        .cache("v_cache", &o.v_cache, Access::Read, &cache);
    let signature = match &o.q_gate {
        Some(gate) => signature.read("q_gate", gate, &[o.rows, o.n_heads, 2, o.head_dim]),
        None => signature,
    };
    signature.write("out", &o.out, &[o.rows, o.n_heads, o.head_dim])
}
