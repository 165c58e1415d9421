//! Signatures of norms and of operations on one element at a time.

use super::{Signature, divides};
use crate::op::{Add, RmsNorm, SwiGlu};

pub(super) fn rms_norm(o: &RmsNorm) -> Signature<'_> {
    Signature::new("rms_norm", o.rows)
        .dims(&[("dim", o.dim)])
        .read("x", &o.x, &[o.rows, o.dim])
        .vector("weight", o.weight, o.dim)
        .write_act("out", &o.out, &[o.rows, o.dim])
}

pub(super) fn swiglu(o: &SwiGlu) -> Signature<'_> {
    let token_rows = o.rows.checked_div(o.rows_per_token).unwrap_or(0);
    let whole = divides(o.rows_per_token, o.rows);
    Signature::new("swiglu", token_rows)
        .dims(&[("rows_per_token", o.rows_per_token), ("dim", o.dim)])
        .rule("rows", o.rows, whole, "a multiple of rows_per_token")
        .read("gate", &o.gate, &[o.rows, o.dim])
        .read("up", &o.up, &[o.rows, o.dim])
        .write_act("out", &o.out, &[o.rows, o.dim])
}

pub(super) fn add(o: &Add) -> Signature<'_> {
    Signature::new("add", o.rows).dims(&[("dim", o.dim)]).update("x", &o.x, &[o.rows, o.dim]).read(
        "y",
        &o.y,
        &[o.rows, o.dim],
    )
}
