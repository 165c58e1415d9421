//! Final norm and head.

use lily_plan::buffer::{BufferClass, BufferId, Elem, Region};
use lily_plan::op::{LastRow, Linear, Op};
use lily_plan::plan::Phase;

use crate::build::Builder;
use crate::error::ModelError;

/// Norm and logits of all rows (score), or of the last active row only.
pub(crate) fn head(b: &mut Builder<'_>, x: &Region) -> Result<BufferId, ModelError> {
    let (hidden, vocab) = (b.config.hidden_size, b.config.vocab_size);
    let (x, rows) = match b.options.phase {
        Phase::Score | Phase::Decode => (x.clone(), b.rows),
        Phase::Prefill => (last_row(b, x), 1),
    };
    let h = b.norm("norm", "norm", &x, rows)?;
    let name = if b.config.tie_word_embeddings { "embed_tokens" } else { "lm_head" };
    let weight = b.matrix(name, vocab, hidden)?;
    let logits = b.buffer("logits", Elem::F32, &[rows, vocab], BufferClass::Output);
    let id = logits.buffer;
    let (n, k, accumulate) = (vocab, hidden, false);
    let op = Linear { x: h, weight, out: logits, rows, n, k, accumulate };
    b.push("lm_head", Op::Linear(op));
    Ok(id)
}

fn last_row(b: &mut Builder<'_>, x: &Region) -> Region {
    let (rows, dim) = (b.rows, b.config.hidden_size);
    let out = b.scratch("last_row", 1, dim);
    let control = b.control.clone();
    let op = LastRow { control, x: x.clone(), out: out.clone(), rows, dim };
    b.push("last_row", Op::LastRow(op));
    out
}
