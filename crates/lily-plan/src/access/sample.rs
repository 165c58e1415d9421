//! Signatures of the end of a pass.

use super::{Access, Home, Signature, U32};
use crate::buffer::BufferClass;
use crate::op::{Advance, ArgmaxParts, LastRow};

pub(super) fn last_row(o: &LastRow) -> Signature<'_> {
    Signature::new("last_row", o.rows)
        .dims(&[("dim", o.dim)])
        .control(&o.control)
        .read("x", &o.x, &[o.rows, o.dim])
        .write("out", &o.out, &[o.dim])
}

pub(super) fn argmax_parts(o: &ArgmaxParts) -> Signature<'_> {
    Signature::new("argmax_parts", o.rows)
        .dims(&[("vocab", o.vocab), ("parts", o.parts)])
        .one_row()
        .read("logits", &o.logits, &[o.rows, o.vocab])
        .write("values", &o.values, &[o.parts])
        .write_index("ids", &o.ids, &[o.parts])
}

pub(super) fn advance(o: &Advance) -> Signature<'_> {
    Signature::new("advance", o.rows)
        .dims(&[("parts", o.parts), ("ring_len", o.ring_len)])
        .one_row()
        .operand("control", &o.control, Access::Update, U32, &[2])
        .home(Home::Control)
        .read("values", &o.values, &[o.parts])
        .read_index("ids", &o.ids, &[o.parts])
        .write_index("tokens", &o.tokens, &[o.rows])
        .home(Home::Tokens)
        // A run fills one slot. The ring counts as written because nobody reads a slot before the
        // run that fills it.
        .write_index("ring", &o.ring, &[o.ring_len])
        .home(Home::Class(BufferClass::Output))
}
