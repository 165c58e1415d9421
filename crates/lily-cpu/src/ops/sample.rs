//! The most probable token, and the step to the next position.

use lily_plan::op::{self, NO_TOKEN};

use super::{Kernel, Part, Run, Workspace, tasks_by_work};

/// The first of the largest values and its index; NaN counts as infinite. `None` when none is larger
/// than negative infinity.
fn largest(values: &[f32]) -> Option<(usize, f32)> {
    let mut best = None;
    for (i, &value) in values.iter().enumerate() {
        let value = if value.is_nan() { f32::INFINITY } else { value };
        if value > best.map_or(f32::NEG_INFINITY, |(_, best)| best) {
            best = Some((i, value));
        }
    }
    best
}

pub(super) struct ArgmaxParts(pub(super) op::ArgmaxParts);

impl Kernel for ArgmaxParts {
    fn tasks(&self, run: &Run<'_>) -> usize {
        tasks_by_work(run, self.0.parts, self.0.vocab.div_ceil(self.0.parts))
    }

    fn task(&self, run: &Run<'_>, part: Part, _: &mut Workspace) {
        let op = &self.0;
        let per_part = op.vocab.div_ceil(op.parts);
        for i in part.of(op.parts) {
            let ids = (i * per_part).min(op.vocab)..((i + 1) * per_part).min(op.vocab);
            // SAFETY: the plan's hazards exclude writers of the logits; outputs have runs of their
            // own per task.
            let (logits, value, id) = unsafe {
                (
                    run.memory.read::<f32>(&op.logits, ids.clone()),
                    run.memory.write::<f32>(&op.values, i..i + 1),
                    run.memory.write::<u32>(&op.ids, i..i + 1),
                )
            };
            let (at, largest) = largest(logits).unwrap_or((0, f32::NEG_INFINITY));
            (value[0], id[0]) = (largest, (ids.start + at) as u32);
        }
    }
}

pub(super) struct Advance(pub(super) op::Advance);

impl Kernel for Advance {
    fn tasks(&self, _: &Run<'_>) -> usize {
        1
    }

    fn task(&self, run: &Run<'_>, _: Part, _: &mut Workspace) {
        let op = &self.0;
        let position = run.active.position;
        let slot = position % op.ring_len;
        // SAFETY: the plan's hazards exclude others from what is read and written here; this is the
        // step's only task.
        let (values, ids, token, ring, control) = unsafe {
            (
                run.memory.read::<f32>(&op.values, 0..op.parts),
                run.memory.read::<u32>(&op.ids, 0..op.parts),
                run.memory.write::<u32>(&op.tokens, 0..1),
                run.memory.write::<u32>(&op.ring, slot..slot + 1),
                run.memory.write::<u32>(&op.control, 0..1),
            )
        };
        let (at, value) = largest(values).unwrap_or((0, f32::NEG_INFINITY));
        token[0] = ids[at];
        ring[0] = if value == f32::INFINITY { NO_TOKEN } else { ids[at] };
        control[0] = position as u32 + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Active;
    use super::super::testing::Bench;
    use super::*;
    use crate::simd::Isa;

    /// Token, ring and control block after the logits were seen at `position`.
    fn choose(logits: &[f32], parts: usize, position: usize) -> (u32, Vec<u32>, Vec<u32>) {
        let mut bench = Bench::default();
        let (values, ids) = (bench.f32s(&vec![9.0; parts]), bench.u32s(&vec![9; parts]));
        let (control, tokens) = (bench.u32s(&[position as u32, 1]), bench.u32s(&[9]));
        let ring = bench.u32s(&[9; 4]);
        let (vocab, rows, ring_len) = (logits.len(), 1, 4);
        let logits = bench.f32s(logits);
        let active = Active { position, rows };
        let (v, i) = (values.clone(), ids.clone());
        let op = op::ArgmaxParts { logits, values: v, ids: i, rows, vocab, parts };
        bench.run(&ArgmaxParts(op), Isa::detect(), active);
        let (c, t, r) = (control.clone(), tokens.clone(), ring.clone());
        let op = op::Advance { control: c, values, ids, tokens: t, ring: r, rows, parts, ring_len };
        bench.run(&Advance(op), Isa::detect(), active);
        (bench.get_u32s(&tokens)[0], bench.get_u32s(&ring), bench.get_u32s(&control))
    }

    #[test]
    fn the_most_probable_token_is_the_next_input_and_goes_to_the_ring() {
        let logits: Vec<f32> = (0..37).map(|i| ((i * 31) % 37) as f32).collect();
        let best = (0..37u32).max_by_key(|i| i * 31 % 37).unwrap();
        for parts in [1, 3, 5, 37, 128] {
            let (token, ring, control) = choose(&logits, parts, 6);
            assert_eq!((token, control), (best, vec![7, 1]), "{parts} parts");
            assert_eq!(ring, [9, 9, best, 9]);
        }
    }

    #[test]
    fn of_equal_logits_the_lower_id_is_chosen() {
        for parts in [1, 2, 4] {
            assert_eq!(choose(&[0.0, 2.0, 1.0, 2.0], parts, 0).0, 1);
        }
    }

    #[test]
    fn logits_that_are_no_numbers_leave_no_token_in_the_ring() {
        for bad in [f32::NAN, f32::INFINITY] {
            let (token, ring, _) = choose(&[0.0, 3.0, bad, 2.0], 2, 1);
            assert_eq!((token, ring[1]), (2, NO_TOKEN), "{bad}");
        }
    }
}
