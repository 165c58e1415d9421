//! Signatures of Gated DeltaNet between its projections.

use super::{Signature, divides};
use crate::op::{Conv, DeltaMix, GatedDelta, GatedRmsNorm};

pub(super) fn conv(o: &Conv) -> Signature<'_> {
    Signature::new("conv", o.rows)
        .dims(&[("channels", o.channels), ("width", o.width)])
        .rule("width", o.width, o.width >= 2, "at least 2")
        .control(&o.control)
        .read("x", &o.x, &[o.rows, o.channels])
        .weight("weight", o.weight, 1, Some(o.channels), o.width)
        .state("state", &o.state, &[o.width, o.channels])
        .write("out", &o.out, &[o.rows, o.channels])
}

/// Channels of the convolution: queries, keys and values.
fn channels(key_heads: usize, key_dim: usize, value_heads: usize, value_dim: usize) -> usize {
    let keys = key_heads.saturating_mul(key_dim);
    let values = value_heads.saturating_mul(value_dim);
    keys.saturating_mul(2).saturating_add(values)
}

pub(super) fn gated_delta(o: &GatedDelta) -> Signature<'_> {
    let conv_dim = channels(o.key_heads, o.key_dim, o.value_heads, o.value_dim);
    Signature::new("gated_delta", o.rows)
        .dims(&[
            ("key_heads", o.key_heads),
            ("value_heads", o.value_heads),
            ("key_dim", o.key_dim),
            ("value_dim", o.value_dim),
        ])
        .shared_keys(o.key_heads, o.value_heads)
        .read("qkv", &o.qkv, &[o.rows, conv_dim])
        .read("a", &o.a, &[o.rows, o.value_heads])
        .read("b", &o.b, &[o.rows, o.value_heads])
        .vector("a_log", o.a_log, o.value_heads)
        .vector("dt_bias", o.dt_bias, o.value_heads)
        .state("state", &o.state, &[o.value_heads, o.value_dim, o.key_dim])
        .write("out", &o.out, &[o.rows, o.value_heads, o.value_dim])
}

pub(super) fn gated_rms_norm(o: &GatedRmsNorm) -> Signature<'_> {
    Signature::new("gated_rms_norm", o.rows)
        .dims(&[("heads", o.heads), ("dim", o.dim)])
        .read("x", &o.x, &[o.rows, o.heads, o.dim])
        .in_place()
        .read("gate", &o.gate, &[o.rows, o.heads, o.dim])
        .vector("weight", o.weight, o.dim)
        .write_act("out", &o.out, &[o.rows, o.heads, o.dim])
}

pub(super) fn delta_mix(o: &DeltaMix) -> Signature<'_> {
    let channels = channels(o.key_heads, o.key_dim, o.value_heads, o.value_dim);
    Signature::new("delta_mix", o.rows)
        .dims(&[
            ("key_heads", o.key_heads),
            ("value_heads", o.value_heads),
            ("key_dim", o.key_dim),
            ("value_dim", o.value_dim),
            ("width", o.width),
        ])
        .one_row()
        .shared_keys(o.key_heads, o.value_heads)
        .rule("width", o.width, o.width >= 2, "at least 2")
        .control(&o.control)
        .read("qkv", &o.qkv, &[o.rows, channels])
        .read("z", &o.z, &[o.rows, o.value_heads, o.value_dim])
        .read("a", &o.a, &[o.rows, o.value_heads])
        .read("b", &o.b, &[o.rows, o.value_heads])
        .weight("conv", o.conv, 1, Some(channels), o.width)
        .state("conv_state", &o.conv_state, &[o.width, channels])
        .vector("a_log", o.a_log, o.value_heads)
        .vector("dt_bias", o.dt_bias, o.value_heads)
        .vector("norm", o.norm, o.value_dim)
        .state("state", &o.state, &[o.value_heads, o.value_dim, o.key_dim])
        .write("out", &o.out, &[o.rows, o.value_heads, o.value_dim])
}

impl Signature<'_> {
    /// Several value heads share a key head.
    fn shared_keys(self, key_heads: usize, value_heads: usize) -> Self {
        let holds = divides(key_heads, value_heads);
        self.rule("value_heads", value_heads, holds, "a multiple of key_heads")
    }
}
