//! Final norm and head, and the choice of the next token.

use lily_plan::buffer::{BufferClass, BufferId, Elem, Region};
use lily_plan::op::{Advance, ArgmaxParts, LastRow, Op};
use lily_plan::plan::Phase;

use crate::build::{Builder, GENERATED, GENERATED_LEN};
use crate::error::ModelError;

/// Runs of the vocabulary whose largest logits are found side by side.
const ARGMAX_PARTS: usize = 128;

/// Norm and logits of all rows (score), or of the last active row only.
pub(crate) fn head(b: &mut Builder<'_>, x: &Region) -> Result<BufferId, ModelError> {
    let (hidden, vocab) = (b.config.hidden_size, b.config.vocab_size);
    let (x, rows) = match b.options.phase {
        Phase::Score | Phase::Decode => (x.clone(), b.rows),
        Phase::Prefill => (last_row(b, x), 1),
    };
    let h = b.normed("norm", &x, rows, true)?;
    let name = if b.config.tie_word_embeddings { "embed_tokens" } else { "lm_head" };
    let logits = b.buffer("logits", Elem::F32, &[rows, vocab], BufferClass::Output);
    let projection = [(name.to_owned(), vocab)];
    b.project_into("lm_head", &h, (rows, hidden), projection, std::slice::from_ref(&logits))?;
    if b.options.token_slot && b.options.phase == Phase::Decode {
        choose(b, &logits);
    }
    Ok(logits.buffer)
}

fn last_row(b: &mut Builder<'_>, x: &Region) -> Region {
    let (rows, dim) = (b.rows, b.config.hidden_size);
    let out = b.scratch("last_row", 1, dim);
    let control = b.control.clone();
    let op = LastRow { control, x: x.clone(), out: out.clone(), rows, dim };
    b.push("last_row", Op::LastRow(op));
    out
}

/// The most probable token becomes the next input.
fn choose(b: &mut Builder<'_>, logits: &Region) {
    let vocab = b.options.token_limit.unwrap_or(b.config.vocab_size);
    let (rows, parts, ring_len) = (1, ARGMAX_PARTS, GENERATED_LEN);
    let values = b.scratch("argmax.values", 1, parts);
    let ids = b.buffer("argmax.ids", Elem::U32, &[parts], BufferClass::Scratch);
    let ring = b.buffer(GENERATED, Elem::U32, &[ring_len], BufferClass::Output);
    let start = logits.bytes.start;
    let bytes = start..start + vocab as u64 * Elem::F32.bytes();
    let logits = Region { buffer: logits.buffer, bytes };
    let op = ArgmaxParts { logits, values: values.clone(), ids: ids.clone(), rows, vocab, parts };
    b.push("argmax", Op::ArgmaxParts(op));
    let (control, tokens) = (b.control.clone(), b.tokens.clone());
    b.push(
        "advance",
        Op::Advance(Advance { control, values, ids, tokens, ring, rows, parts, ring_len }),
    );
}
