//! The feed-forward part: SwiGLU of one width, or routed experts and a shared one.

use lily_checkpoint::config::MlpConfig;
use lily_plan::buffer::{BufferClass, Elem, Region};
use lily_plan::op::{
    ExpertGatedLinear, ExpertLinear, GatedLinear, GroupByExpert, MoeCombine, Op, Route, RoutedDown,
    RoutedGatedLinear, SwiGlu,
};

use crate::build::Builder;
use crate::error::ModelError;
use crate::project::Normed;

/// Norm, then the kind of feed-forward part the configuration names; ends in the residual stream.
pub(crate) fn layer(b: &mut Builder<'_>, path: &str, x: &Region) -> Result<(), ModelError> {
    let norm = format!("{path}.post_attention_layernorm");
    let path = format!("{path}.mlp");
    match b.config.mlp {
        MlpConfig::Dense { intermediate_size } => {
            let h = b.normed(&norm, x, b.rows, true)?;
            let mid = swiglu(b, &path, &h, intermediate_size)?;
            b.project_residual(&format!("{path}.down_proj"), &mid, x, intermediate_size)
        }
        MlpConfig::Moe { n_experts, top_k, expert_intermediate_size, shared_intermediate_size } => {
            let experts = Experts { n_experts, top_k, width: expert_intermediate_size };
            // Experts that are steps of their own read the norm.
            let h = b.normed(&norm, x, b.rows, b.fusions().routing)?;
            moe(b, &path, &h, x, &experts, shared_intermediate_size)
        }
    }
}

/// `silu(h Wgᵀ) * (h Wuᵀ)`, in one step or several.
fn swiglu(b: &mut Builder<'_>, path: &str, h: &Normed, n: usize) -> Result<Region, ModelError> {
    let (rows, k) = (b.rows, b.config.hidden_size);
    let (gate, up) = (format!("{path}.gate_proj"), format!("{path}.up_proj"));
    let name = format!("{path}.swiglu");
    if b.fusions().swiglu {
        let (gate, up) = (b.matrix(&gate, n, k)?, b.matrix(&up, n, k)?);
        let out = b.activations(&name, rows, n);
        let Normed { x, norm } = h.clone();
        let op = GatedLinear { x, norm, gate, up, out: out.clone(), rows, n, k };
        b.push(name, Op::GatedLinear(op));
        return Ok(out);
    }
    let [gate, up] = b.project_all(&format!("{path}.gate_up_proj"), h, [(gate, n), (up, n)])?;
    let out = b.activations(&name, rows, n);
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

/// Router, shared gate · experts and shared SwiGLU · down projections and their sum.
fn moe(
    b: &mut Builder<'_>,
    path: &str,
    h: &Normed,
    x: &Region,
    experts: &Experts,
    shared_width: usize,
) -> Result<(), ModelError> {
    let projections =
        [(format!("{path}.gate"), experts.n_experts), (format!("{path}.shared_expert_gate"), 1)];
    let gates = b.project_all(&format!("{path}.gates"), h, projections)?;
    if b.fusions().routing {
        routed(b, path, h, x, gates, experts, shared_width)
    } else {
        grouped(b, path, h, x, gates, experts, shared_width)
    }
}

/// Experts of one row: chosen and run in one step, summed in another.
fn routed(
    b: &mut Builder<'_>,
    path: &str,
    h: &Normed,
    x: &Region,
    [logits, shared_gate]: [Region; 2],
    experts: &Experts,
    shared_n: usize,
) -> Result<(), ModelError> {
    let Experts { n_experts, top_k, width: n } = *experts;
    let (rows, k) = (b.rows, b.config.hidden_size);
    let (switch, shared) = (format!("{path}.switch_mlp"), format!("{path}.shared_expert"));
    let chosen =
        b.buffer(format!("{path}.experts"), Elem::U32, &[rows, top_k], BufferClass::Scratch);
    let weights = b.scratch(format!("{path}.weights"), rows, top_k.saturating_add(1));
    let mid = b.scratch(format!("{switch}.swiglu"), top_k, n);
    let shared_mid = b.scratch(format!("{shared}.swiglu"), rows, shared_n);
    let op = RoutedGatedLinear {
        x: h.x.clone(),
        norm: h.norm,
        logits,
        shared_gate,
        gate: b.expert_matrix(&format!("{switch}.gate_proj"), n_experts, n, k)?,
        up: b.expert_matrix(&format!("{switch}.up_proj"), n_experts, n, k)?,
        shared_gate_proj: b.matrix(&format!("{shared}.gate_proj"), shared_n, k)?,
        shared_up_proj: b.matrix(&format!("{shared}.up_proj"), shared_n, k)?,
        experts: chosen.clone(),
        weights: weights.clone(),
        out: mid.clone(),
        shared_out: shared_mid.clone(),
        rows,
        n_experts,
        top_k,
        n,
        shared_n,
        k,
    };
    b.push(format!("{path}.routed_swiglu"), Op::RoutedGatedLinear(op));
    let op = RoutedDown {
        mid,
        shared_mid,
        experts: chosen,
        weights,
        down: b.expert_matrix(&format!("{switch}.down_proj"), n_experts, k, n)?,
        shared_down: b.matrix(&format!("{shared}.down_proj"), k, shared_n)?,
        x: x.clone(),
        rows,
        n_experts,
        top_k,
        n,
        shared_n,
        dim: k,
    };
    b.push(format!("{path}.routed_down"), Op::RoutedDown(op));
    Ok(())
}

/// Experts over rows sorted by expert.
fn grouped(
    b: &mut Builder<'_>,
    path: &str,
    h: &Normed,
    x: &Region,
    [logits, shared_gate]: [Region; 2],
    experts: &Experts,
    shared_width: usize,
) -> Result<(), ModelError> {
    let (rows, hidden) = (b.rows, b.config.hidden_size);
    let shared = format!("{path}.shared_expert");
    let mid = swiglu(b, &shared, h, shared_width)?;
    let shared_out = b.project(&format!("{shared}.down_proj"), &mid, hidden, shared_width)?;

    let (weights, grouping) = route(b, path, logits, experts);
    let mid = expert_swiglu(b, path, &h.x, &grouping, experts)?;
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

/// One row per slot that feeds a matrix product.
fn slots(b: &mut Builder<'_>, name: &str, top_k: usize, n: usize) -> Region {
    let elem = if b.rows == 1 { Elem::F32 } else { b.options.activations };
    b.buffer(name, elem, &[b.rows, top_k, n], BufferClass::Scratch)
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
    if b.fusions().swiglu {
        let gate = b.expert_matrix(&format!("{path}.switch_mlp.gate_proj"), n_experts, n, k)?;
        let up = b.expert_matrix(&format!("{path}.switch_mlp.up_proj"), n_experts, n, k)?;
        let out = slots(b, &name, top_k, n);
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
    let out = slots(b, &name, top_k, n);
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
