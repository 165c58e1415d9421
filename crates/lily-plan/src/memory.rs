//! Places scratch buffers in one arena: two may share bytes when their lifetimes are disjoint.
//!
//! A lifetime counts stages, both ends included, because steps of one stage overlap.

use std::ops::RangeInclusive;

use crate::buffer::BufferClass;
use crate::error::PlanError;
use crate::plan::Plan;
use crate::valid::Placement;

/// Every placement starts at a multiple of this.
pub(crate) const ALIGNMENT: u64 = 64;

/// First and last stage in which each scratch buffer is touched; `None` for all others.
pub(crate) fn lifetimes(plan: &Plan, stages: &[Vec<usize>]) -> Vec<Option<RangeInclusive<usize>>> {
    let mut lifetimes: Vec<Option<RangeInclusive<usize>>> = vec![None; plan.buffers.len()];
    for (stage, steps) in stages.iter().enumerate() {
        for &step in steps {
            for operand in plan.steps[step].op.signature().operands {
                let id = operand.region.buffer;
                if plan.buffer(id).class != BufferClass::Scratch {
                    continue;
                }
                let lifetime = &mut lifetimes[id.0 as usize];
                let start = lifetime.as_ref().map_or(stage, |l| *l.start());
                *lifetime = Some(start..=stage);
            }
        }
    }
    lifetimes
}

/// Largest buffers first, each at the lowest offset where nothing that lives with it lies.
pub(crate) fn place(
    plan: &Plan,
    lifetimes: &[Option<RangeInclusive<usize>>],
) -> (Vec<Option<Placement>>, u64) {
    let mut order: Vec<(usize, &RangeInclusive<usize>)> =
        lifetimes.iter().enumerate().filter_map(|(i, l)| Some((i, l.as_ref()?))).collect();
    order.sort_by_key(|&(i, l)| (std::cmp::Reverse(plan.buffers[i].bytes()), *l.start(), i));

    let mut placements: Vec<Option<Placement>> = vec![None; plan.buffers.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut arena_bytes = 0;
    for (i, lifetime) in order {
        let bytes = plan.buffers[i].bytes();
        let mut taken: Vec<Placement> = placed
            .iter()
            .filter(|&&j| lifetimes[j].as_ref().is_some_and(|l| overlap(l, lifetime)))
            .filter_map(|&j| placements[j])
            .collect();
        taken.sort_by_key(|p| p.offset);
        let mut offset = 0u64;
        for other in taken {
            if other.offset >= offset + bytes {
                break;
            }
            offset = offset.max((other.offset + other.bytes).next_multiple_of(ALIGNMENT));
        }
        placements[i] = Some(Placement { offset, bytes });
        arena_bytes = arena_bytes.max(offset + bytes);
        placed.push(i);
    }
    (placements, arena_bytes.next_multiple_of(ALIGNMENT))
}

/// Checks a placement independently of how it was found.
pub(crate) fn check(
    plan: &Plan,
    lifetimes: &[Option<RangeInclusive<usize>>],
    placements: &[Option<Placement>],
) -> Result<(), PlanError> {
    let mut live: Vec<(u64, u64, usize)> = placements
        .iter()
        .enumerate()
        .filter_map(|(i, p)| p.map(|p| (p.offset, p.offset + p.bytes, i)))
        .collect();
    live.sort_unstable();
    for (n, &(_, end, i)) in live.iter().enumerate() {
        for &(_, _, j) in live[n + 1..].iter().take_while(|&&(start, _, _)| start < end) {
            let (Some(a), Some(b)) = (&lifetimes[i], &lifetimes[j]) else { continue };
            if overlap(a, b) {
                return Err(PlanError::SharedBytes {
                    first: plan.buffers[i].name.clone(),
                    second: plan.buffers[j].name.clone(),
                    stage: *a.start().max(b.start()),
                });
            }
        }
    }
    Ok(())
}

/// The most bytes that live in one stage: no placement can need less.
pub(crate) fn live_peak(plan: &Plan, lifetimes: &[Option<RangeInclusive<usize>>]) -> u64 {
    let last = lifetimes.iter().flatten().map(|l| *l.end()).max().unwrap_or(0);
    (0..=last)
        .map(|stage| {
            let live = lifetimes.iter().zip(&plan.buffers);
            live.filter(|(l, _)| l.as_ref().is_some_and(|l| l.contains(&stage)))
                .map(|(_, b)| b.bytes().next_multiple_of(ALIGNMENT))
                .sum::<u64>()
        })
        .max()
        .unwrap_or(0)
}

fn overlap(a: &RangeInclusive<usize>, b: &RangeInclusive<usize>) -> bool {
    a.start() <= b.end() && b.start() <= a.end()
}
