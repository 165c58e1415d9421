//! What a plan says of its runs: which tokens fit, and where the host finds logits and chosen tokens.

use crate::buffer::BufferId;
use crate::op::Op;
use crate::plan::{Phase, Plan};

/// A run that does not fit its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tokens} tokens at position {position} in a plan of {rows} rows and {capacity} positions")]
pub struct RunError {
    /// Tokens of the run: its active rows.
    pub tokens: usize,
    /// Position of the first of them.
    pub position: usize,
    /// The plan's rows: the most tokens of one run.
    pub rows: usize,
    /// The plan's capacity: positions that its KV cache holds.
    pub capacity: usize,
}

/// Where a plan that chooses its own next token ([`crate::op::Advance`]) leaves the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRing {
    /// `U32[slots]`, output.
    pub buffer: BufferId,
    /// Tokens it holds, at least 1: a slot must be read before the step that writes it anew starts.
    pub slots: usize,
}

impl TokenRing {
    /// Index of the slot in which the step that runs `position` leaves the token it chose.
    pub fn slot(&self, position: usize) -> usize {
        position % self.slots
    }
}

impl Plan {
    /// Whether the plan takes a run of `tokens` tokens whose first has that position.
    ///
    /// # Errors
    /// [`RunError`] when there is no token, when there are more than the plan's rows, or when one lies
    /// beyond its capacity.
    pub fn check_run(&self, tokens: usize, position: usize) -> Result<(), RunError> {
        let end = position.checked_add(tokens);
        if (1..=self.rows).contains(&tokens) && end.is_some_and(|end| end <= self.capacity) {
            return Ok(());
        }
        Err(RunError { tokens, position, rows: self.rows, capacity: self.capacity })
    }

    /// Elements of the logits port that a run of `tokens` tokens fills: one row of logits for the last
    /// token, or in score plans one for each.
    pub fn logits_len(&self, tokens: usize) -> usize {
        let elements = self.buffer(self.ports.logits).len as usize;
        match self.phase {
            Phase::Score => elements / self.rows * tokens,
            Phase::Prefill | Phase::Decode => elements,
        }
    }

    /// The ring of chosen tokens; `None` where the host chooses.
    pub fn ring(&self) -> Option<TokenRing> {
        self.steps.iter().find_map(|step| match &step.op {
            Op::Advance(op) => Some(TokenRing { buffer: op.ring.buffer, slots: op.ring_len }),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferClass, Elem};
    use crate::op::Advance;
    use crate::plan::{PlanBuilder, Ports};

    const VOCAB: usize = 10;

    /// A plan of 4 rows and 16 positions, with `ring` slots for chosen tokens if any.
    fn plan(phase: Phase, ring: Option<usize>) -> Plan {
        let rows = 4;
        let logits_rows = if phase == Phase::Score { rows } else { 1 };
        let mut plan = PlanBuilder::new();
        let control = plan.buffer("control", Elem::U32, 2, BufferClass::Input);
        let tokens = plan.buffer("tokens", Elem::U32, rows as u64, BufferClass::Input);
        let logits = (VOCAB * logits_rows) as u64;
        let logits = plan.buffer("logits", Elem::F32, logits, BufferClass::Output);
        let ports = Ports { control: control.buffer, tokens: tokens.buffer, logits: logits.buffer };
        if let Some(ring_len) = ring {
            let values = plan.buffer("values", Elem::F32, 1, BufferClass::Scratch);
            let ids = plan.buffer("ids", Elem::U32, 1, BufferClass::Scratch);
            let ring = plan.buffer("ring", Elem::U32, ring_len as u64, BufferClass::Output);
            let (rows, parts) = (1, 1);
            let advance = Advance { control, values, ids, tokens, ring, rows, parts, ring_len };
            plan.push("advance", Op::Advance(advance));
        }
        plan.finish(phase, rows, 16, ports)
    }

    #[test]
    fn a_run_has_one_to_rows_tokens_and_ends_within_the_capacity() {
        let plan = plan(Phase::Prefill, None);
        for (tokens, position) in [(1, 0), (4, 0), (4, 12), (1, 15)] {
            assert_eq!(plan.check_run(tokens, position), Ok(()), "{tokens} at {position}");
        }
        for (tokens, position) in [(0, 0), (5, 0), (4, 13), (1, 16), (1, usize::MAX)] {
            let refused = RunError { tokens, position, rows: 4, capacity: 16 };
            assert_eq!(plan.check_run(tokens, position), Err(refused));
        }
    }

    #[test]
    fn a_refused_run_is_told_with_what_the_plan_takes() {
        let error = plan(Phase::Prefill, None).check_run(5, 7).expect_err("5 of 4 rows");
        let message = "5 tokens at position 7 in a plan of 4 rows and 16 positions";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn score_plans_give_logits_of_every_token_and_others_of_the_last() {
        assert_eq!(plan(Phase::Prefill, None).logits_len(3), VOCAB);
        assert_eq!(plan(Phase::Decode, None).logits_len(1), VOCAB);
        assert_eq!(plan(Phase::Score, None).logits_len(3), 3 * VOCAB);
        assert_eq!(plan(Phase::Score, None).logits_len(4), 4 * VOCAB);
    }

    #[test]
    fn the_ring_is_that_of_the_step_that_chooses_tokens() {
        assert_eq!(plan(Phase::Decode, None).ring(), None);
        let plan = plan(Phase::Decode, Some(6));
        let ring = plan.ring().expect("a ring");
        assert_eq!((plan.buffer(ring.buffer).name.as_str(), ring.slots), ("ring", 6));
        assert_eq!([0, 5, 6, 13].map(|position| ring.slot(position)), [0, 5, 0, 1]);
    }
}
