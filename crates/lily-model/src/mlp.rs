//! The feed-forward part: SwiGLU of one width, or routed experts and a shared one.

use lily_checkpoint::config::MlpConfig;
use lily_plan::buffer::{BufferClass, Elem, Region};
use lily_plan::op::{
    ExpertGatedLinear, ExpertLinear, GatedLinear, GroupByExpert, MoeCombine, Op, Route, SwiGlu,
};

use crate::build::Builder;
use crate::error::ModelError;

/// Norm, then the kind of feed-forward part the configuration names; ends in the residual stream.
pub(crate) fn layer(b: &mut Builder<'_>, path: &str, x: &Region) -> Result<(), ModelError> {
    let norm = format!("{path}.post_attention_layernorm");
    let h = b.norm(&norm, &norm, x, b.rows)?;
    let path = format!("{path}.mlp");
    match b.config.mlp {
        MlpConfig::Dense { intermediate_size } => {
            let mid = swiglu(b, &path, &h, intermediate_size)?;
            b.project_residual(&format!("{path}.down_proj"), &mid, x, intermediate_size)
        }
        MlpConfig::Moe { n_experts, top_k, expert_intermediate_size, shared_intermediate_size } => {
            let experts = Experts { n_experts, top_k, width: expert_intermediate_size };
            moe(b, &path, &h, x, &experts, shared_intermediate_size)
        }
    }
}

/// `silu(h Wgᵀ) * (h Wuᵀ)`, in one step or three.
fn swiglu(b: &mut Builder<'_>, path: &str, h: &Region, n: usize) -> Result<Region, ModelError> {
    let (rows, k) = (b.rows, b.config.hidden_size);
    let (gate, up) = (format!("{path}.gate_proj"), format!("{path}.up_proj"));
    let name = format!("{path}.swiglu");
    if b.options.fusions.swiglu {
        let (gate, up) = (b.matrix(&gate, n, k)?, b.matrix(&up, n, k)?);
        let out = b.scratch(&name, rows, n);
        let (x, norm) = (h.clone(), None);
        let op = GatedLinear { x, norm, gate, up, out: out.clone(), rows, n, k };
        b.push(name, Op::GatedLinear(op));
        return Ok(out);
    }
    let (gate, up) = (b.project(&gate, h, n, k)?, b.project(&up, h, n, k)?);
    let out = b.scratch(&name, rows, n);
    let op = SwiGlu { gate, up, out: out.clone(), rows, rows_per_token: 1, dim: n };
    b.push(name, Op::SwiGlu(op));
    Ok(out)
}

/// The routed experts of one layer.
struct Experts {
    n_experts: usize,
    top_k: usize,
    width: usize,
}

/// Slots sorted by expert.
struct Grouping {
    offsets: Region,
    order: Region,
}

/// Router, shared gate, shared SwiGLU · route, shared down · group · experts · combine.
fn moe(
    b: &mut Builder<'_>,
    path: &str,
    h: &Region,
    x: &Region,
    experts: &Experts,
    shared_width: usize,
) -> Result<(), ModelError> {
    let (rows, hidden) = (b.rows, b.config.hidden_size);
    let logits = b.project(&format!("{path}.gate"), h, experts.n_experts, hidden)?;
    let shared_gate = b.project(&format!("{path}.shared_expert_gate"), h, 1, hidden)?;
    let shared = format!("{path}.shared_expert");
    let mid = swiglu(b, &shared, h, shared_width)?;
    let shared_out = b.project(&format!("{shared}.down_proj"), &mid, hidden, shared_width)?;

    let (weights, grouping) = route(b, path, logits, experts);
    let mid = expert_swiglu(b, path, h, &grouping, experts)?;
    let expert_out = expert_linear(b, path, "down_proj", mid, &grouping, experts)?;
    let (top_k, dim, x) = (experts.top_k, hidden, x.clone());
    let op = MoeCombine { expert_out, weights, shared_out, shared_gate, x, rows, top_k, dim };
    b.push(format!("{path}.combine"), Op::MoeCombine(op));
    Ok(())
}

/// Chooses experts and sorts the slots by them; returns the slots' weights and the grouping.
fn route(b: &mut Builder<'_>, path: &str, logits: Region, experts: &Experts) -> (Region, Grouping) {
    let Experts { n_experts, top_k, .. } = *experts;
    let rows = b.rows;
    let mut index = |name: &str, shape: &[usize]| {
        b.buffer(format!("{path}.{name}"), Elem::U32, shape, BufferClass::Scratch)
    };
    let chosen = index("experts", &[rows, top_k]);
    let offsets = index("offsets", &[n_experts.saturating_add(1)]);
    let order = index("order", &[rows, top_k]);
    let weights = b.scratch(format!("{path}.weights"), rows, top_k);
    let (experts, slots) = (chosen.clone(), weights.clone());
    let op = Route { logits, experts, weights: slots, rows, n_experts, top_k };
    b.push(format!("{path}.route"), Op::Route(op));
    let grouping = Grouping { offsets: offsets.clone(), order: order.clone() };
    let op = GroupByExpert { experts: chosen, offsets, order, rows, n_experts, top_k };
    b.push(format!("{path}.group"), Op::GroupByExpert(op));
    (weights, grouping)
}

/// The experts' `silu(gate) * up`, one row per slot, in one step or three.
fn expert_swiglu(
    b: &mut Builder<'_>,
    path: &str,
    h: &Region,
    grouping: &Grouping,
    experts: &Experts,
) -> Result<Region, ModelError> {
    let Experts { n_experts, top_k, width: n } = *experts;
    let (rows, k) = (b.rows, b.config.hidden_size);
    let name = format!("{path}.switch_mlp.swiglu");
    if b.options.fusions.swiglu {
        let gate = b.expert_matrix(&format!("{path}.switch_mlp.gate_proj"), n_experts, n, k)?;
        let up = b.expert_matrix(&format!("{path}.switch_mlp.up_proj"), n_experts, n, k)?;
        let out = b.buffer(&name, Elem::F32, &[rows, top_k, n], BufferClass::Scratch);
        let op = ExpertGatedLinear {
            x: h.clone(),
            offsets: grouping.offsets.clone(),
            order: grouping.order.clone(),
            gate,
            up,
            out: out.clone(),
            rows,
            n_experts,
            top_k,
            n,
            k,
        };
        b.push(name, Op::ExpertGatedLinear(op));
        return Ok(out);
    }
    let gate = expert_linear(b, path, "gate_proj", h.clone(), grouping, experts)?;
    let up = expert_linear(b, path, "up_proj", h.clone(), grouping, experts)?;
    let out = b.buffer(&name, Elem::F32, &[rows, top_k, n], BufferClass::Scratch);
    let (rows, rows_per_token) = (rows.saturating_mul(top_k), top_k);
    let op = SwiGlu { gate, up, out: out.clone(), rows, rows_per_token, dim: n };
    b.push(name, Op::SwiGlu(op));
    Ok(out)
}

/// One projection of the experts; `down_proj` reads one row per slot, the others one per token.
fn expert_linear(
    b: &mut Builder<'_>,
    path: &str,
    part: &str,
    x: Region,
    grouping: &Grouping,
    experts: &Experts,
) -> Result<Region, ModelError> {
    let Experts { n_experts, top_k, width } = *experts;
    let (rows, hidden) = (b.rows, b.config.hidden_size);
    let per_slot = part == "down_proj";
    let (n, k) = if per_slot { (hidden, width) } else { (width, hidden) };
    let name = format!("{path}.switch_mlp.{part}");
    let weight = b.expert_matrix(&name, n_experts, n, k)?;
    let out = b.buffer(&name, Elem::F32, &[rows, top_k, n], BufferClass::Scratch);
    let op = ExpertLinear {
        x,
        offsets: grouping.offsets.clone(),
        order: grouping.order.clone(),
        weight,
        out: out.clone(),
        rows,
        n_experts,
        top_k,
        n,
        k,
        per_slot,
    };
    b.push(name, Op::ExpertLinear(op));
    Ok(out)
}
