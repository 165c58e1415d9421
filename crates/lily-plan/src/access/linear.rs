//! Signatures of the embedding and the dense projections.

use super::{Access, F32, Signature};
use crate::op::{Embed, GatedLinear, Linear, StackedLinear};

pub(super) fn embed(o: &Embed) -> Signature<'_> {
    Signature::new("embed", o.rows)
        .dims(&[("dim", o.dim)])
        .read_index("tokens", &o.tokens, &[o.rows])
        .weight("table", o.table, 1, None, o.dim)
        .write("out", &o.out, &[o.rows, o.dim])
}

pub(super) fn linear(o: &Linear) -> Signature<'_> {
    let access = if o.accumulate { Access::Update } else { Access::Write };
    Signature::new("linear", o.rows)
        .dims(&[("n", o.n), ("k", o.k)])
        .read_act("x", &o.x, &[o.rows, o.k])
        .matrix("weight", o.weight, o.n, o.k)
        .operand("out", &o.out, access, F32, &[o.rows, o.n])
}

/// Names of a part's dimension, weight and output.
const PARTS: [(&str, &str, &str); StackedLinear::MOST_PARTS] = [
    ("n0", "weight0", "out0"),
    ("n1", "weight1", "out1"),
    ("n2", "weight2", "out2"),
    ("n3", "weight3", "out3"),
];

pub(super) fn stacked_linear(o: &StackedLinear) -> Signature<'_> {
    let parts = o.parts.len();
    let mut signature = Signature::new("stacked_linear", o.rows)
        .dims(&[("k", o.k)])
        .rule("parts", parts, (1..=PARTS.len()).contains(&parts), "1 to 4")
        .read("x", &o.x, &[o.rows, o.k])
        .norm(o.norm.as_ref(), o.k);
    for ((dimension, weight, out), part) in PARTS.into_iter().zip(&o.parts) {
        signature = signature
            .dims(&[(dimension, part.n)])
            .matrix(weight, part.weight, part.n, o.k)
            .write(out, &part.out, &[o.rows, part.n]);
    }
    signature
}

pub(super) fn gated_linear(o: &GatedLinear) -> Signature<'_> {
    Signature::new("gated_linear", o.rows)
        .dims(&[("n", o.n), ("k", o.k)])
        .read_act("x", &o.x, &[o.rows, o.k])
        .norm(o.norm.as_ref(), o.k)
        .matrix("gate", o.gate, o.n, o.k)
        .matrix("up", o.up, o.n, o.k)
        .write_act("out", &o.out, &[o.rows, o.n])
}
