//! A block of keys against the queries of few rows, as decode has them.
//!
//! Reading the cache is what takes time here, so keys and values are read once, in the order in which they
//! lie in memory, and asked for ahead. Scores are sums along the elements of keys, sixteen of them brought
//! into the lanes of one vector at a time; they lie by query, so the softmax runs along keys.

use super::super::math::{Arithmetic, exp, per_isa};
use super::KEY_BLOCK;
use crate::matrix::Stored;
use crate::simd::{Isa, Kernel, Simd};

/// Head sizes come in multiples of this.
pub(super) const ELEMENTS: usize = 2 * LANES;
/// Queries come in multiples of this.
pub(super) const QUERIES: usize = 8;

const LANES: usize = 16;
/// Keys and queries whose scores fill one vector.
const SIDE: usize = 4;
const LINE: usize = 64;

/// Keys and values of one block, `[key][element]`, and the keys of the block that comes after it.
pub(super) struct Cache<'a, D: Stored> {
    pub(super) k: &'a [D::Bits],
    pub(super) v: &'a [D::Bits],
    pub(super) next_k: &'a [D::Bits],
}

/// What queries carry from block to block: `[query]`, and `[query][element]`, not normalised.
pub(super) struct Carried<'a> {
    pub(super) max: &'a mut [f32],
    pub(super) sum: &'a mut [f32],
    pub(super) out: &'a mut [f32],
}

/// Floats of working memory for that many queries.
pub(super) fn work(queries: usize) -> usize {
    queries * (KEY_BLOCK + 1)
}

/// One step of the running softmax. `queries` is `[query][element]`, scaled; `visible(query)` is how many
/// keys of the block a query sees; `work` has [`work`] floats.
pub(super) fn attend<D: Stored>(
    isa: Isa,
    queries: &[f32],
    cache: &Cache<'_, D>,
    visible: impl Fn(usize) -> usize,
    work: &mut [f32],
    carried: &mut Carried<'_>,
) {
    let n = carried.max.len();
    let dim = queries.len() / n;
    let keys = cache.k.len() / dim;
    assert!(n.is_multiple_of(QUERIES) && dim.is_multiple_of(ELEMENTS) && keys <= KEY_BLOCK);
    let (corrections, scores) = work.split_at_mut(n);
    let (scores, _) = scores.as_chunks_mut::<KEY_BLOCK>();
    isa.run(Scores { dim, queries, cache, scores });
    for (query, scores) in scores.iter_mut().enumerate() {
        scores[visible(query).min(keys)..].fill(f32::NEG_INFINITY);
        let (max, sum) = (&mut carried.max[query], &mut carried.sum[query]);
        weigh(isa, scores, max, sum, &mut corrections[query]);
    }
    isa.run(Values { dim, weights: scores, corrections, cache, out: carried.out });
}

/// `scores[query][key]`; those past the last key are left as they are.
struct Scores<'a, D: Stored> {
    dim: usize,
    queries: &'a [f32],
    cache: &'a Cache<'a, D>,
    scores: &'a mut [[f32; KEY_BLOCK]],
}

impl<D: Stored> Kernel for Scores<'_, D> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Scores { dim, queries, cache, scores } = self;
        let keys = cache.k.len() / dim;
        for first in (0..keys).step_by(SIDE) {
            // Behind the last key it stands in for those that a vector still has room for.
            let keys: [&[D::Bits]; SIDE] =
                std::array::from_fn(|i| &cache.k[(first + i).min(keys - 1) * dim..][..dim]);
            let queries = queries.chunks_exact(SIDE * dim).zip(scores.chunks_exact_mut(SIDE));
            for (set, (queries, scores)) in queries.enumerate() {
                let queries = std::array::from_fn(|i| &queries[i * dim..][..dim]);
                if set == 0 {
                    // Their values are next.
                    let values = &cache.v[first * dim..];
                    ask(s, &values[..values.len().min(SIDE * dim)]);
                }
                let mut sums = [0.0; SIDE * SIDE];
                s.store(s.totals(sums_of::<S, D>(s, queries, keys)), &mut sums);
                for (scores, sums) in scores.iter_mut().zip(sums.as_chunks::<SIDE>().0) {
                    scores[first..first + SIDE].copy_from_slice(sums);
                }
            }
        }
    }
}

/// Asks for memory.
#[inline(always)]
fn ask<S: Simd, T>(s: S, memory: &[T]) {
    for line in memory.chunks(LINE / size_of::<T>()) {
        s.prefetch(line.as_ptr().cast());
    }
}

/// Products of each query with each key, by lanes.
#[inline(always)]
fn sums_of<S: Simd, D: Stored>(
    s: S,
    queries: [&[f32]; SIDE],
    keys: [&[D::Bits]; SIDE],
) -> [S::F; SIDE * SIDE] {
    let mut sums = [s.zero(); SIDE * SIDE];
    let queries = queries.map(|query| query.as_chunks::<LANES>().0);
    let keys = keys.map(|key| key.as_chunks::<LANES>().0);
    for at in 0..queries[0].len() {
        let keys: [S::F; SIDE] = std::array::from_fn(|i| D::widen(s, &keys[i][at]));
        for i in 0..SIDE {
            let query = s.load(&queries[i][at]);
            for j in 0..SIDE {
                sums[i * SIDE + j] = s.mul_add(query, keys[j], sums[i * SIDE + j]);
            }
        }
    }
    sums
}

#[inline(always)]
fn weigh_scores<A: Arithmetic>(
    scores: &mut [f32; KEY_BLOCK],
    max: &mut f32,
    sum: &mut f32,
    correction: &mut f32,
) {
    let (lines, _) = scores.as_chunks_mut::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    for line in lines.iter() {
        for (m, s) in largest.iter_mut().zip(line) {
            *m = if *s > *m { *s } else { *m };
        }
    }
    let largest = largest.into_iter().fold(*max, |m, s| if s > m { s } else { m });
    // A query that has not seen a key yet has nothing to correct.
    let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
    let mut sums = [0.0f32; LANES];
    for line in lines {
        for (s, sum) in line.iter_mut().zip(&mut sums) {
            *s = exp::<A>(*s - base);
            *sum += *s;
        }
    }
    *correction = exp::<A>(*max - base);
    *sum = A::mul_add(*sum, *correction, sums.into_iter().sum());
    *max = largest;
}
per_isa! {
    /// Turns the scores of a query into weights; `correction` is what its earlier ones are worth now.
    fn weigh(
        scores: &mut [f32; KEY_BLOCK],
        max: &mut f32,
        sum: &mut f32,
        correction: &mut f32,
    ) = weigh_scores
}

/// `out[query] = correction · out[query] + Σ weight · value`.
struct Values<'a, D: Stored> {
    dim: usize,
    weights: &'a [[f32; KEY_BLOCK]],
    corrections: &'a [f32],
    cache: &'a Cache<'a, D>,
    out: &'a mut [f32],
}

impl<D: Stored> Kernel for Values<'_, D> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        // As many sums as there are registers for.
        if S::GEMM_ROWS >= 8 && S::GEMM_TILES >= 2 {
            self.panels::<S, 8, 2>(s);
        } else {
            self.panels::<S, 4, 1>(s);
        }
    }
}

impl<D: Stored> Values<'_, D> {
    /// Panels of `C` vectors of elements, `Q` queries at a time.
    #[inline(always)]
    fn panels<S: Simd, const Q: usize, const C: usize>(&mut self, s: S) {
        const { assert!(QUERIES.is_multiple_of(Q) && ELEMENTS.is_multiple_of(C * LANES)) };
        let dim = self.dim;
        let mut coming = self.cache.next_k.chunks(C * LANES);
        for column in (0..dim).step_by(C * LANES) {
            for first in (0..self.weights.len()).step_by(Q) {
                let mut sums: [[S::F; C]; Q] = std::array::from_fn(|i| {
                    let correction = s.splat(self.corrections[first + i]);
                    let lines = &*self.lines::<C>((first + i) * dim + column);
                    std::array::from_fn(|c| s.mul(s.load(&lines[c]), correction))
                });
                let weights: [&[f32; KEY_BLOCK]; Q] =
                    std::array::from_fn(|i| &self.weights[first + i]);
                for (key, values) in self.cache.v.chunks_exact(dim).enumerate() {
                    if first == 0
                        && let Some(coming) = coming.next()
                    {
                        ask(s, coming);
                    }
                    let (values, _) = values[column..].as_chunks::<LANES>();
                    let values: [S::F; C] = std::array::from_fn(|c| D::widen(s, &values[c]));
                    for (weights, sums) in weights.iter().zip(&mut sums) {
                        let weight = s.splat(weights[key]);
                        for (value, sum) in values.iter().zip(sums) {
                            *sum = s.mul_add(weight, *value, *sum);
                        }
                    }
                }
                for (i, sums) in sums.into_iter().enumerate() {
                    let lines = self.lines::<C>((first + i) * dim + column);
                    for (sum, line) in sums.into_iter().zip(lines) {
                        s.store(sum, line);
                    }
                }
            }
        }
    }

    /// `C` vectors of the outputs.
    #[inline(always)]
    fn lines<const C: usize>(&mut self, first: usize) -> &mut [[f32; LANES]] {
        &mut self.out[first..].as_chunks_mut::<LANES>().0[..C]
    }
}
