//! Signatures of routing, of routed experts and of their sum.

use super::Signature;
use crate::op::{
    ExpertGatedLinear, ExpertLinear, GroupByExpert, MoeCombine, Route, RoutedDown,
    RoutedGatedLinear,
};

impl Signature<'_> {
    fn experts(self, n_experts: usize, top_k: usize) -> Self {
        self.dims(&[("n_experts", n_experts), ("top_k", top_k)])
    }
    fn enough_experts(self, n_experts: usize, top_k: usize) -> Self {
        self.rule("top_k", top_k, top_k <= n_experts, "at most n_experts")
    }
}

pub(super) fn route(o: &Route) -> Signature<'_> {
    Signature::new("route", o.rows)
        .experts(o.n_experts, o.top_k)
        .enough_experts(o.n_experts, o.top_k)
        .read("logits", &o.logits, &[o.rows, o.n_experts])
        .write_index("experts", &o.experts, &[o.rows, o.top_k])
        .write("weights", &o.weights, &[o.rows, o.top_k])
}

pub(super) fn group_by_expert(o: &GroupByExpert) -> Signature<'_> {
    Signature::new("group_by_expert", o.rows)
        .experts(o.n_experts, o.top_k)
        .read_index("experts", &o.experts, &[o.rows, o.top_k])
        .write_index("offsets", &o.offsets, &[o.n_experts.saturating_add(1)])
        .write_index("order", &o.order, &[o.rows, o.top_k])
}

pub(super) fn expert_linear(o: &ExpertLinear) -> Signature<'_> {
    Signature::new("expert_linear", o.rows)
        .experts(o.n_experts, o.top_k)
        .dims(&[("n", o.n), ("k", o.k)])
        .read_act("x", &o.x, &[o.rows, if o.per_slot { o.top_k } else { 1 }, o.k])
        .read_index("offsets", &o.offsets, &[o.n_experts.saturating_add(1)])
        .read_index("order", &o.order, &[o.rows, o.top_k])
        .weight("weight", o.weight, o.n_experts, Some(o.n), o.k)
        .write("out", &o.out, &[o.rows, o.top_k, o.n])
}

pub(super) fn expert_gated_linear(o: &ExpertGatedLinear) -> Signature<'_> {
    Signature::new("expert_gated_linear", o.rows)
        .experts(o.n_experts, o.top_k)
        .dims(&[("n", o.n), ("k", o.k)])
        .read_act("x", &o.x, &[o.rows, o.k])
        .read_index("offsets", &o.offsets, &[o.n_experts.saturating_add(1)])
        .read_index("order", &o.order, &[o.rows, o.top_k])
        .weight("gate", o.gate, o.n_experts, Some(o.n), o.k)
        .weight("up", o.up, o.n_experts, Some(o.n), o.k)
        .write_act("out", &o.out, &[o.rows, o.top_k, o.n])
}

pub(super) fn routed_gated_linear(o: &RoutedGatedLinear) -> Signature<'_> {
    Signature::new("routed_gated_linear", o.rows)
        .experts(o.n_experts, o.top_k)
        .dims(&[("n", o.n), ("shared_n", o.shared_n), ("k", o.k)])
        .one_row()
        .enough_experts(o.n_experts, o.top_k)
        .read("x", &o.x, &[o.rows, o.k])
        .norm(o.norm.as_ref(), o.k)
        .read("logits", &o.logits, &[o.rows, o.n_experts])
        .read("shared_gate", &o.shared_gate, &[o.rows])
        .weight("gate", o.gate, o.n_experts, Some(o.n), o.k)
        .weight("up", o.up, o.n_experts, Some(o.n), o.k)
        .matrix("shared_gate_proj", o.shared_gate_proj, o.shared_n, o.k)
        .matrix("shared_up_proj", o.shared_up_proj, o.shared_n, o.k)
        .write_index("experts", &o.experts, &[o.rows, o.top_k])
        .write("weights", &o.weights, &[o.rows, o.top_k.saturating_add(1)])
        .write("out", &o.out, &[o.rows, o.top_k, o.n])
        .write("shared_out", &o.shared_out, &[o.rows, o.shared_n])
}

pub(super) fn routed_down(o: &RoutedDown) -> Signature<'_> {
    Signature::new("routed_down", o.rows)
        .experts(o.n_experts, o.top_k)
        .dims(&[("n", o.n), ("shared_n", o.shared_n), ("dim", o.dim)])
        .one_row()
        .enough_experts(o.n_experts, o.top_k)
        .read("mid", &o.mid, &[o.rows, o.top_k, o.n])
        .read("shared_mid", &o.shared_mid, &[o.rows, o.shared_n])
        .read_index("experts", &o.experts, &[o.rows, o.top_k])
        .read("weights", &o.weights, &[o.rows, o.top_k.saturating_add(1)])
        .weight("down", o.down, o.n_experts, Some(o.dim), o.n)
        .matrix("shared_down", o.shared_down, o.dim, o.shared_n)
        .update("x", &o.x, &[o.rows, o.dim])
}

pub(super) fn moe_combine(o: &MoeCombine) -> Signature<'_> {
    Signature::new("moe_combine", o.rows)
        .dims(&[("top_k", o.top_k), ("dim", o.dim)])
        .read("expert_out", &o.expert_out, &[o.rows, o.top_k, o.dim])
        .read("weights", &o.weights, &[o.rows, o.top_k])
        .read("shared_out", &o.shared_out, &[o.rows, o.dim])
        .read("shared_gate", &o.shared_gate, &[o.rows])
        .update("x", &o.x, &[o.rows, o.dim])
}
