//! One test per kind of hazard, with the ranges that tell it from none.

mod common;

use common::{Toy, part};
use lily_plan::ValidPlan;
use lily_plan::hazard::{Hazard, HazardKind};

/// The kinds of hazard between two steps, in order.
fn between(valid: &ValidPlan, from: usize, to: usize) -> Vec<HazardKind> {
    let hazards = valid.hazards().iter().filter(|h| (h.from, h.to) == (from, to));
    hazards.map(|h| h.kind).collect()
}

fn stage_of(valid: &ValidPlan, step: usize) -> usize {
    valid.stages().iter().position(|s| s.contains(&step)).expect("every step has a stage")
}

fn valid(toy: Toy) -> ValidPlan {
    ValidPlan::new(toy.finish()).expect("a valid plan")
}

#[test]
fn a_read_waits_for_the_write_before_it() {
    let mut toy = Toy::new(4);
    let (a, b) = (toy.scratch("a", 4), toy.scratch("b", 4));
    let write = toy.fill(&a);
    let read = toy.copy(&a, &b);
    let valid = valid(toy);
    assert_eq!(between(&valid, write, read), [HazardKind::Raw]);
    assert_eq!(stage_of(&valid, write) + 1, stage_of(&valid, read));
}

#[test]
fn a_write_waits_for_the_reads_before_it() {
    let mut toy = Toy::new(4);
    let (s, b, c) = (toy.state("s", 4), toy.scratch("b", 4), toy.scratch("c", 4));
    let first = toy.copy(&s, &b);
    let second = toy.copy(&s, &c);
    let write = toy.fill(&s);
    let valid = valid(toy);
    assert_eq!(between(&valid, first, write), [HazardKind::War]);
    assert_eq!(between(&valid, second, write), [HazardKind::War]);
    assert_eq!(between(&valid, first, second), []);
    assert_eq!(stage_of(&valid, first), stage_of(&valid, second));
}

#[test]
fn a_write_waits_for_the_write_before_it() {
    let mut toy = Toy::new(4);
    let a = toy.scratch("a", 4);
    let first = toy.fill(&a);
    let second = toy.fill(&a);
    let valid = valid(toy);
    assert_eq!(between(&valid, first, second), [HazardKind::Waw]);
    assert_eq!(stage_of(&valid, first) + 1, stage_of(&valid, second));
}

#[test]
fn an_update_waits_as_a_read_and_as_a_write() {
    let mut toy = Toy::new(4);
    let (a, b) = (toy.scratch("a", 4), toy.scratch("b", 4));
    let fill = toy.fill(&a);
    let other = toy.fill(&b);
    let update = toy.add(&a, &b);
    let again = toy.add(&a, &b);
    let valid = valid(toy);
    assert_eq!(between(&valid, fill, update), [HazardKind::Raw, HazardKind::Waw]);
    assert_eq!(between(&valid, other, update), [HazardKind::Raw]);
    assert_eq!(between(&valid, update, again), [HazardKind::Raw, HazardKind::Waw]);
}

#[test]
fn two_reads_do_not_wait_for_each_other() {
    let mut toy = Toy::new(4);
    let (a, b, c) = (toy.scratch("a", 4), toy.scratch("b", 4), toy.scratch("c", 4));
    toy.fill(&a);
    let first = toy.copy(&a, &b);
    let second = toy.copy(&a, &c);
    assert_eq!(between(&valid(toy), first, second), []);
}

#[test]
fn ranges_that_share_one_element_conflict() {
    let mut toy = Toy::new(4);
    let (a, b) = (toy.scratch("a", 8), toy.scratch("b", 4));
    let left = toy.fill(&part(&a, 0..5));
    let right = toy.fill(&part(&a, 4..8));
    let read = toy.copy(&part(&a, 1..5), &b);
    let valid = valid(toy);
    assert_eq!(between(&valid, left, right), [HazardKind::Waw]);
    assert_eq!(between(&valid, left, read), [HazardKind::Raw], "elements 1 to 3 are the left's");
    assert_eq!(between(&valid, right, read), [HazardKind::Raw], "element 4 is the right's");
}

#[test]
fn ranges_that_touch_do_not_conflict() {
    let mut toy = Toy::new(4);
    let (a, b) = (toy.scratch("a", 8), toy.scratch("b", 4));
    let left = toy.fill(&part(&a, 0..4));
    let right = toy.fill(&part(&a, 4..8));
    let read = toy.copy(&part(&a, 4..8), &b);
    let valid = valid(toy);
    assert_eq!(between(&valid, left, right), []);
    assert_eq!(between(&valid, left, read), []);
    assert_eq!(stage_of(&valid, left), stage_of(&valid, right));
}

#[test]
fn a_range_inside_another_conflicts_and_leaves_the_rest_alone() {
    let mut toy = Toy::new(4);
    let (a, b, c) = (toy.scratch("a", 12), toy.scratch("b", 4), toy.scratch("c", 4));
    let whole = toy.fill(&a);
    let inner = toy.fill(&part(&a, 4..8));
    let read_inner = toy.copy(&part(&a, 4..8), &b);
    let read_rest = toy.copy(&part(&a, 8..12), &c);
    let valid = valid(toy);
    assert_eq!(between(&valid, whole, inner), [HazardKind::Waw]);
    assert_eq!(between(&valid, inner, read_inner), [HazardKind::Raw]);
    assert_eq!(between(&valid, whole, read_inner), [], "its bytes were overwritten");
    assert_eq!(between(&valid, whole, read_rest), [HazardKind::Raw]);
    assert_eq!(between(&valid, inner, read_rest), []);
}

#[test]
fn equal_ranges_of_two_buffers_do_not_conflict() {
    let mut toy = Toy::new(4);
    let (a, b) = (toy.scratch("a", 4), toy.scratch("b", 4));
    let first = toy.fill(&a);
    let second = toy.fill(&b);
    assert_eq!(between(&valid(toy), first, second), []);
}

#[test]
fn buffers_that_share_arena_bytes_are_ordered_by_a_reuse_edge() {
    let mut toy = Toy::new(4);
    let (a, b, c) = (toy.scratch("a", 4), toy.scratch("b", 4), toy.scratch("c", 4));
    toy.fill(&a);
    let last_use = toy.copy(&a, &b);
    let reuse = toy.copy(&b, &c);
    toy.add(&toy.logits.clone(), &c);
    let valid = valid(toy);
    let placed = |region: &lily_plan::buffer::Region| valid.placements()[region.buffer.0 as usize];
    assert_eq!(placed(&a), placed(&c), "a is dead when c is written");
    assert_eq!(valid.arena_bytes(), 2 * 64);
    let edge = Hazard { from: last_use, to: reuse, kind: HazardKind::Reuse, buffer: c.buffer };
    assert!(valid.edges().contains(&edge), "{:?}", valid.edges());
}

#[test]
fn steps_of_one_stage_never_share_scratch() {
    let mut toy = Toy::new(4);
    let (a, b) = (toy.scratch("a", 4), toy.scratch("b", 4));
    let (c, d) = (toy.scratch("c", 4), toy.scratch("d", 4));
    toy.fill(&a);
    toy.copy(&a, &b);
    toy.fill(&c);
    toy.copy(&c, &d);
    let valid = valid(toy);
    assert_eq!(valid.stages().len(), 2);
    assert_eq!(valid.arena_bytes(), 4 * 64, "in program order a and c could share, in stages not");
}
