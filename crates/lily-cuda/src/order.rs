//! Which step waits for which, with as few edges as say the same.

use lily_plan::ValidPlan;

/// The steps of a plan in an order that respects its edges, and for each step those it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Step indices, every step after all that it waits for.
    pub(crate) steps: Vec<usize>,
    /// By step index; ascending by place in `steps`.
    pub(crate) waits_for: Vec<Vec<usize>>,
}

impl Order {
    /// The edges of the plan without those that follow from others.
    pub(crate) fn of(plan: &ValidPlan) -> Order {
        let steps = stage_order(plan);
        let edges = plan.edges().iter().map(|edge| (edge.from, edge.to));
        let waits_for = reduce(&steps, edges);
        Order { steps, waits_for }
    }

    /// Each step waits for the one before it.
    pub(crate) fn chain(plan: &ValidPlan) -> Order {
        let steps = stage_order(plan);
        let mut waits_for = vec![Vec::new(); steps.len()];
        for pair in steps.windows(2) {
            waits_for[pair[1]].push(pair[0]);
        }
        Order { steps, waits_for }
    }

    /// Edges in all.
    pub(crate) fn edges(&self) -> usize {
        self.waits_for.iter().map(Vec::len).sum()
    }
}

fn stage_order(plan: &ValidPlan) -> Vec<usize> {
    plan.stages().iter().flatten().copied().collect()
}

/// Transitive reduction of a graph whose edges point forward in `order`.
fn reduce(order: &[usize], edges: impl Iterator<Item = (usize, usize)>) -> Vec<Vec<usize>> {
    let mut place = vec![0; order.len()];
    for (at, &step) in order.iter().enumerate() {
        place[step] = at;
    }
    let mut before = vec![Vec::new(); order.len()];
    for (from, to) in edges {
        assert!(place[from] < place[to], "an edge from step {from} back to {to}");
        before[place[to]].push(place[from]);
    }
    // Ancestors of each place, one bit per place.
    let words = order.len().div_ceil(64);
    let mut ancestors = vec![0u64; words * order.len()];
    let mut waits_for = vec![Vec::new(); order.len()];
    for (at, mut candidates) in before.into_iter().enumerate() {
        candidates.sort_unstable();
        candidates.dedup();
        let (done, own) = ancestors.split_at_mut(at * words);
        let own = &mut own[..words];
        // The latest first: whatever leads to it is then known to be implied.
        for &from in candidates.iter().rev() {
            if own[from / 64] >> (from % 64) & 1 == 1 {
                continue;
            }
            own[from / 64] |= 1 << (from % 64);
            for (own, theirs) in own.iter_mut().zip(&done[from * words..(from + 1) * words]) {
                *own |= theirs;
            }
            waits_for[order[at]].push(order[from]);
        }
        waits_for[order[at]].reverse();
    }
    waits_for
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_that_follows_from_others_is_dropped() {
        let edges = [(0, 1), (1, 2), (0, 2), (0, 3), (2, 3), (0, 1)];
        assert_eq!(reduce(&[0, 1, 2, 3], edges.into_iter()), [vec![], vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn a_fork_and_a_join_keep_their_edges() {
        let edges = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)];
        assert_eq!(
            reduce(&[0, 1, 2, 3], edges.into_iter()),
            [vec![], vec![0], vec![0], vec![1, 2]]
        );
    }

    #[test]
    fn steps_may_run_in_another_order_than_they_were_recorded() {
        let edges = [(2, 0), (0, 1), (2, 1)];
        assert_eq!(reduce(&[2, 0, 1], edges.into_iter()), [vec![2], vec![0], vec![]]);
    }

    #[test]
    #[should_panic(expected = "an edge from step 1 back to 0")]
    fn an_edge_against_the_order_is_a_contradiction() {
        reduce(&[0, 1], [(1, 0)].into_iter());
    }

    /// Random graphs: what can be reached stays the same, and no kept edge can be left out.
    #[test]
    fn the_reduction_reaches_the_same_and_is_minimal() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..50 {
            let n = 2 + random(90) as usize;
            let order: Vec<usize> = (0..n).collect();
            let mut edges = Vec::new();
            for to in 1..n {
                for _ in 0..random(5) {
                    edges.push((random(to as u64) as usize, to));
                }
            }
            let kept = reduce(&order, edges.iter().copied());
            let flat = |lists: &[Vec<usize>]| {
                let pairs = lists.iter().enumerate();
                pairs.flat_map(|(to, l)| l.iter().map(move |&from| (from, to))).collect::<Vec<_>>()
            };
            let kept = flat(&kept);
            assert_eq!(reached(n, &kept), reached(n, &edges));
            for skip in 0..kept.len() {
                let mut fewer = kept.clone();
                fewer.remove(skip);
                assert_ne!(reached(n, &fewer), reached(n, &kept));
            }
        }
    }

    fn reached(n: usize, edges: &[(usize, usize)]) -> Vec<Vec<bool>> {
        let mut reach = vec![vec![false; n]; n];
        for to in 0..n {
            for &(from, _) in edges.iter().filter(|edge| edge.1 == to) {
                reach[to][from] = true;
                let theirs = reach[from].clone();
                for (own, theirs) in reach[to].iter_mut().zip(theirs) {
                    *own |= theirs;
                }
            }
        }
        reach
    }
}
