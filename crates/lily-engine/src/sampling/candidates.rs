//! Picking the largest of many logits and summing their exponentials, without sorting them.

use std::cmp::Ordering;

/// Values looked at together before any is looked at alone.
const BLOCK: usize = 64;

/// A token that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// The token.
    pub(crate) id: u32,
    /// Its logit.
    pub(crate) logit: f32,
}

/// Larger logits first, equal ones by id.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Calls `visit` with every index and value above a threshold, which `visit` returns anew.
fn above(values: &[f32], mut threshold: f32, mut visit: impl FnMut(usize, f32) -> f32) {
    for (block_idx, block) in values.chunks(BLOCK).enumerate() {
        // Nearly all blocks of a large vocabulary end here, at vector speed.
        if block.iter().fold(0u32, |any, &x| any | u32::from(x > threshold)) == 0 {
            continue;
        }
        for (i, &x) in block.iter().enumerate() {
            if x > threshold {
                threshold = visit(block_idx * BLOCK + i, x);
            }
        }
    }
}

/// The largest logit, the lowest id among equals. `logits` is not empty and not all negative infinity.
pub(crate) fn largest(logits: &[f32]) -> Candidate {
    let mut best = Candidate { id: 0, logit: logits[0] };
    above(logits, best.logit, |i, logit| {
        best = Candidate { id: i as u32, logit };
        logit
    });
    best
}

/// Fills `out` with the `k` largest of `logits` by rank; all of them when there are fewer. Negative
/// infinity is no candidate.
pub(crate) fn select_top(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    let k = k.min(logits.len());
    if k == 0 {
        return;
    }
    let room = k.saturating_mul(2).max(BLOCK);
    let mut threshold = f32::NEG_INFINITY;
    above(logits, threshold, |i, logit| {
        out.push(Candidate { id: i as u32, logit });
        if out.len() == room {
            // Ids come in ascending order: an equal logit that comes later ranks below.
            out.select_nth_unstable_by(k - 1, by_rank);
            out.truncate(k);
            threshold = out[k - 1].logit;
        }
        threshold
    });
    out.sort_unstable_by(by_rank);
    out.truncate(k);
}

/// Softmax without its division: `exp((logit - max) * scale)`, where `max` is the largest logit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpSum {
    max: f32,
    scale: f32,
}

impl ExpSum {
    /// Weights relative to `max`, at temperature `1 / scale`.
    pub(crate) fn new(max: f32, scale: f32) -> Self {
        ExpSum { max, scale }
    }

    /// The weight of a logit; 1 for the largest.
    #[inline]
    pub(crate) fn weight(&self, logit: f32) -> f32 {
        exp((logit - self.max) * self.scale)
    }

    /// Sum of the weights that are at least `least`.
    pub(crate) fn sum(&self, logits: &[f32], least: f32) -> f64 {
        logits.chunks(BLOCK).map(|block| self.block_sum(block, least)).sum()
    }

    fn block_sum(&self, block: &[f32], least: f32) -> f64 {
        // Several sums side by side, in an order that does not depend on the machine's vectors.
        let mut sums = [0.0f32; 8];
        for octet in self.block_weights(block, least).as_chunks::<8>().0 {
            for (sum, weight) in sums.iter_mut().zip(octet) {
                *sum += weight;
            }
        }
        sums.iter().map(|&sum| f64::from(sum)).sum()
    }

    /// Weights of at most a block of logits, 0 for those below `least` and behind the end.
    #[inline]
    fn block_weights(&self, block: &[f32], least: f32) -> [f32; BLOCK] {
        let mut weights = [0.0; BLOCK];
        for (weight, &logit) in weights.iter_mut().zip(block) {
            let full = self.weight(logit);
            *weight = if full < least { 0.0 } else { full };
        }
        weights
    }

    /// The token at which the running sum of weights of at least `least` passes `uniform` times
    /// their total, in order of ids.
    pub(crate) fn pick(
        &self,
        logits: &[f32],
        least: f32,
        uniform: f64,
        sums: &mut Vec<f64>,
    ) -> u32 {
        sums.clear();
        sums.extend(logits.chunks(BLOCK).map(|block| self.block_sum(block, least)));
        let mut rest = uniform * sums.iter().sum::<f64>();
        let last = sums.iter().rposition(|&sum| sum > 0.0).unwrap_or(0);
        let mut block_idx = 0;
        while block_idx < last && rest >= sums[block_idx] {
            rest -= sums[block_idx];
            block_idx += 1;
        }
        let start = block_idx * BLOCK;
        let block = &logits[start..logits.len().min(start + BLOCK)];
        let weights = self.block_weights(block, least);
        (start + pick_weighted(weights.into_iter(), rest)) as u32
    }
}

/// Fills `out` with the smallest leading set of `logits` by rank whose weights reach `share` of all,
/// in no particular but always the same order.
pub(crate) fn select_nucleus(
    logits: &[f32],
    weights: ExpSum,
    share: f32,
    out: &mut Vec<Candidate>,
) {
    let target = f64::from(share) * weights.sum(logits, 0.0);
    // Mostly a few tokens have nearly all of the weight.
    for few in [64, 1024] {
        select_top(logits, few, out);
        let mut sum = 0.0;
        let reached = out.iter().position(|candidate| {
            sum += f64::from(weights.weight(candidate.logit));
            sum >= target
        });
        if let Some(last) = reached {
            out.truncate(last + 1);
            return;
        }
    }
    // Weights are summed by bins of equal width in the logit: only the bin in which the share is
    // reached has to be sorted.
    const BINS: usize = 1024;
    let lowest = logits.iter().fold(weights.max, |least, &x| if x < least { x } else { least });
    let width = ((weights.max - lowest) * weights.scale).clamp(f32::MIN_POSITIVE, -LOWEST);
    let per_unit = (BINS - 1) as f32 / width;
    let bin = |x: f32| ((((weights.max - x) * weights.scale) * per_unit) as usize).min(BINS - 1);
    let mut sums = [0.0f64; BINS];
    for block in logits.chunks(BLOCK) {
        for (&logit, weight) in block.iter().zip(weights.block_weights(block, 0.0)) {
            sums[bin(logit)] += f64::from(weight);
        }
    }
    let mut sum = 0.0;
    let mut last_bin = 0;
    while last_bin < BINS - 1 && sum + sums[last_bin] < target {
        sum += sums[last_bin];
        last_bin += 1;
    }

    out.clear();
    let mut border = Vec::new();
    for (i, &logit) in logits.iter().enumerate() {
        let candidate = Candidate { id: i as u32, logit };
        match bin(logit).cmp(&last_bin) {
            Ordering::Less => out.push(candidate),
            Ordering::Equal => border.push(candidate),
            Ordering::Greater => {}
        }
    }
    border.sort_unstable_by(by_rank);
    for candidate in border {
        out.push(candidate);
        sum += f64::from(weights.weight(candidate.logit));
        if sum >= target {
            break;
        }
    }
}

/// The index at which the running sum passes `rest`; the last one that weighs anything when rounding
/// has left too much.
pub(crate) fn pick_weighted(weights: impl Iterator<Item = f32>, mut rest: f64) -> usize {
    let mut last = 0;
    for (i, weight) in weights.enumerate().filter(|&(_, weight)| weight > 0.0) {
        last = i;
        if rest < f64::from(weight) {
            break;
        }
        rest -= f64::from(weight);
    }
    last
}

/// Below this `exp` is 0.
const LOWEST: f32 = -87.0;

/// `e^x` for `x` at most 0, to about two units in the last place; 0 below -87.
///
/// Own code, because the system's differs between systems and does not vectorise.
#[inline]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let inside = if x < LOWEST { LOWEST } else { x };
    let shifted = inside * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = inside - n * LN_2_HIGH - n * LN_2_LOW;
    // Taylor series; |r| is at most ln(2) / 2.
    let tail = 1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0)));
    let series = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * tail)));
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let power = f32::from_bits(exponent << 23);
    if x < LOWEST { 0.0 } else { series * power }
}
