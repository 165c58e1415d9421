//! The end of a pass: which row, which token.

use crate::buffer::Region;

/// `out[0] = x[active rows - 1]`: only the last row of a prefill chunk goes to the head.
#[derive(Clone, Debug, PartialEq)]
pub struct LastRow {
    /// Control block.
    pub control: Region,
    /// `F32[T, dim]`.
    pub x: Region,
    /// `F32[1, dim]`.
    pub out: Region,
    /// `T`.
    pub rows: usize,
    /// Width.
    pub dim: usize,
}

/// The largest logit of each of `parts` runs of the vocabulary (ties: lower id). A NaN counts as
/// positive infinity, so that it reaches [`Advance`].
#[derive(Clone, Debug, PartialEq)]
pub struct ArgmaxParts {
    /// `F32[1, vocab]`: the logits that may be chosen.
    pub logits: Region,
    /// `F32[parts]`: largest logit of run `i`, ids `i * ceil(vocab / parts) ..`; negative infinity
    /// for an empty run.
    pub values: Region,
    /// `U32[parts]`: its id.
    pub ids: Region,
    /// 1.
    pub rows: usize,
    /// Logits.
    pub vocab: usize,
    /// Runs.
    pub parts: usize,
}

/// What stands in place of a token id where the logits were no numbers.
pub const NO_TOKEN: u32 = u32::MAX;

/// Ends a decode step on the device: the most probable token becomes the input of the next step.
///
/// `tokens[0]` = id of the largest of `values` (ties: lower id); `ring[position mod ring_len]` = the
/// same id, or [`NO_TOKEN`] when that value is positive infinity; then the control block's position
/// grows by 1. So steps can follow each other without the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Advance {
    /// Control block, read and written.
    pub control: Region,
    /// `F32[parts]`.
    pub values: Region,
    /// `U32[parts]`.
    pub ids: Region,
    /// `U32[1]`: the plan's token input.
    pub tokens: Region,
    /// `U32[ring_len]`, by position of the step that chose the token.
    pub ring: Region,
    /// 1.
    pub rows: usize,
    /// Runs of the vocabulary.
    pub parts: usize,
    /// Slots of the ring.
    pub ring_len: usize,
}
