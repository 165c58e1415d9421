//! Routing, fused experts of one token, and their sum.

mod routed;
mod routing;

pub(super) use routed::{routed_down, routed_gated_linear};
pub(super) use routing::{group_by_expert, moe_combine, route};
