//! Random plans: every order that respects the dependencies gives the serial result, also with
//! scratch placed in the arena.
//!
//! The interpreter knows no arithmetic. A step hashes every byte it reads and fills what it writes
//! from the hash, so a single wrong byte changes all that follows.

mod common;

use std::hash::{DefaultHasher, Hash, Hasher};

use common::{Toy, part};
use lily_plan::ValidPlan;
use lily_plan::buffer::{BufferClass, Region};
use lily_plan::hazard::Hazard;
use proptest::prelude::*;

/// Where buffers lie.
#[derive(Clone, Copy)]
enum Layout {
    /// Every buffer has its own memory.
    Separate,
    /// Scratch lies in the arena.
    Placed,
}

struct Memory<'a> {
    valid: &'a ValidPlan,
    layout: Layout,
    own: Vec<Vec<u8>>,
    arena: Vec<u8>,
}

impl<'a> Memory<'a> {
    fn new(valid: &'a ValidPlan, layout: Layout) -> Self {
        let buffers = valid.plan().buffers.iter();
        Memory {
            valid,
            layout,
            own: buffers.map(|b| vec![7; b.bytes() as usize]).collect(),
            arena: vec![9; valid.arena_bytes() as usize],
        }
    }
    fn bytes(&mut self, region: &Region) -> &mut [u8] {
        let id = region.buffer.0 as usize;
        let (start, end) = (region.bytes.start as usize, region.bytes.end as usize);
        match (self.layout, self.valid.placements()[id]) {
            (Layout::Placed, Some(p)) => {
                &mut self.arena[p.offset as usize + start..p.offset as usize + end]
            }
            _ => &mut self.own[id][start..end],
        }
    }
}

/// What a run can be told by: the hash of what each step read, and the buffers that outlive it.
#[derive(Debug, PartialEq)]
struct Trace {
    read: Vec<u64>,
    kept: Vec<Vec<u8>>,
}

fn run(valid: &ValidPlan, layout: Layout, order: &[usize]) -> Trace {
    let plan = valid.plan();
    let mut memory = Memory::new(valid, layout);
    let mut read = vec![0; plan.steps.len()];
    for &step in order {
        let signature = plan.steps[step].op.signature();
        let mut hasher = DefaultHasher::new();
        step.hash(&mut hasher);
        for operand in signature.operands.iter().filter(|o| o.access.reads()) {
            memory.bytes(operand.region).hash(&mut hasher);
        }
        read[step] = hasher.finish();
        for operand in signature.operands.iter().filter(|o| o.access.writes()) {
            for (i, byte) in memory.bytes(operand.region).iter_mut().enumerate() {
                *byte = (read[step] >> (8 * (i % 8))) as u8 ^ i as u8;
            }
        }
    }
    let kept = plan.buffers.iter().zip(memory.own);
    let kept = kept.filter(|(b, _)| b.class != BufferClass::Scratch).map(|(_, m)| m).collect();
    Trace { read, kept }
}

/// Of the steps whose predecessors have run, always the one with the lowest priority next.
fn order(n_steps: usize, edges: &[Hazard], priorities: &[u32]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..n_steps).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let ready = left
            .iter()
            .copied()
            .filter(|step| edges.iter().all(|e| e.to != *step || order.contains(&e.from)));
        let next = ready.min_by_key(|&s| (priorities[s % priorities.len()], s));
        let next = next.expect("the graph has no cycle");
        left.retain(|&s| s != next);
        order.push(next);
    }
    order
}

/// One random step: which operation, which buffers, which ranges.
#[derive(Clone, Debug)]
struct Draw {
    kind: u8,
    out: (usize, u64),
    x: (usize, u64),
    len: u64,
    other_len: u64,
}

fn draws() -> impl Strategy<Value = Vec<Draw>> {
    let region = || (0usize..9, 0u64..6);
    let draw = (0u8..5, region(), region(), 1u64..5, 1u64..5)
        .prop_map(|(kind, out, x, len, other_len)| Draw { kind, out, x, len, other_len });
    proptest::collection::vec(draw, 1..40)
}

/// Builds a plan from draws. Scratch that a step would read unwritten is filled just before it, so
/// that lifetimes start anywhere.
fn build(draws: &[Draw]) -> ValidPlan {
    let mut toy = Toy::new(10);
    let mut buffers = vec![toy.logits.clone(), toy.state("state", 10)];
    buffers.extend((0..7).map(|i| toy.scratch(&format!("s{i}"), 10)));
    let mut written = vec![[true; 10]; 2];
    written.resize(buffers.len(), [false; 10]);

    for draw in draws {
        let range = |(_, start): (usize, u64), len: u64| start..start + len;
        let out = part(&buffers[draw.out.0], range(draw.out, draw.len));
        let x_len = if draw.kind >= 3 { draw.other_len } else { draw.len };
        let x = part(&buffers[draw.x.0], range(draw.x, x_len));
        if x.overlaps(&out) {
            continue;
        }
        let updates = matches!(draw.kind, 2 | 4);
        for (at, region, len, read) in
            [(draw.x, &x, x_len, draw.kind > 0), (draw.out, &out, draw.len, updates)]
        {
            let slots = &mut written[at.0][at.1 as usize..(at.1 + len) as usize];
            if read && slots.contains(&false) {
                toy.fill(region);
                slots.fill(true);
            }
        }
        match draw.kind {
            0 => toy.fill(&out),
            1 => toy.copy(&x, &out),
            2 => toy.add(&out, &x),
            3 => toy.linear(&x, &out, false),
            _ => toy.linear(&x, &out, true),
        };
        written[draw.out.0][draw.out.1 as usize..(draw.out.1 + draw.len) as usize].fill(true);
    }
    ValidPlan::new(toy.finish()).expect("the generator makes valid plans")
}

fn serial(valid: &ValidPlan) -> Trace {
    let order: Vec<usize> = (0..valid.plan().steps.len()).collect();
    run(valid, Layout::Separate, &order)
}

proptest! {
    #[test]
    fn any_order_that_respects_the_hazards_gives_the_serial_result(
        draws in draws(),
        priorities in proptest::collection::vec(any::<u32>(), 64..65),
    ) {
        let valid = build(&draws);
        let order = order(valid.plan().steps.len(), valid.hazards(), &priorities);
        prop_assert_eq!(run(&valid, Layout::Separate, &order), serial(&valid));
    }

    #[test]
    fn any_order_that_respects_the_edges_gives_the_serial_result_in_the_arena(
        draws in draws(),
        priorities in proptest::collection::vec(any::<u32>(), 64..65),
    ) {
        let valid = build(&draws);
        let order = order(valid.plan().steps.len(), valid.edges(), &priorities);
        prop_assert_eq!(run(&valid, Layout::Placed, &order), serial(&valid));
    }

    #[test]
    fn stages_give_the_serial_result_in_the_arena_whatever_the_order_inside_them(
        draws in draws(),
        priorities in proptest::collection::vec(any::<u32>(), 64..65),
    ) {
        let valid = build(&draws);
        let mut order = Vec::new();
        for stage in valid.stages() {
            let mut stage = stage.clone();
            stage.sort_by_key(|s| priorities[s % priorities.len()]);
            order.extend(stage);
        }
        prop_assert_eq!(run(&valid, Layout::Placed, &order), serial(&valid));
    }

    #[test]
    fn no_step_of_a_stage_writes_bytes_that_another_one_touches(draws in draws()) {
        let valid = build(&draws);
        // Separate buffers never meet in this address space.
        let physical = |region: &Region| {
            let base = match valid.placements()[region.buffer.0 as usize] {
                Some(placement) => placement.offset,
                None => (u64::from(region.buffer.0) + 1) << 32,
            };
            base + region.bytes.start..base + region.bytes.end
        };
        let steps = &valid.plan().steps;
        for stage in valid.stages() {
            for (&a, &b) in stage.iter().flat_map(|a| stage.iter().map(move |b| (a, b))) {
                if a == b {
                    continue;
                }
                let (first, second) = (steps[a].op.signature(), steps[b].op.signature());
                for x in first.operands.iter().filter(|o| o.access.writes()) {
                    for y in &second.operands {
                        let (x, y) = (physical(x.region), physical(y.region));
                        prop_assert!(x.end <= y.start || y.end <= x.start, "{} {}", a, b);
                    }
                }
            }
        }
    }

    #[test]
    fn the_arena_holds_what_lives_and_no_more_than_all_scratch(draws in draws()) {
        let valid = build(&draws);
        let unshared: u64 = valid.placements().iter().flatten()
            .map(|p| p.bytes.next_multiple_of(64)).sum();
        prop_assert!(valid.live_bytes() <= valid.arena_bytes());
        prop_assert!(valid.arena_bytes() <= unshared);
        for placement in valid.placements().iter().flatten() {
            prop_assert_eq!(placement.offset % 64, 0);
        }
    }
}

#[test]
fn an_order_that_breaks_a_hazard_changes_the_result() {
    let mut toy = Toy::new(4);
    let a = toy.scratch("a", 4);
    toy.fill(&a);
    toy.add(&toy.logits.clone(), &a);
    let valid = ValidPlan::new(toy.finish()).expect("a valid plan");
    assert_ne!(run(&valid, Layout::Separate, &[0, 2, 1]), serial(&valid));
    assert_eq!(run(&valid, Layout::Separate, &[1, 0, 2]), serial(&valid));
}
