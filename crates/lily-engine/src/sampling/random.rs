//! The generator behind a seed.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Weyl increment of SplitMix64: 2^64 divided by the golden ratio, made odd.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// A counter-based generator: the `n`-th number of a seed is SplitMix64's finaliser of the counter.
///
/// Being a function of seed and counter alone, it can move to a device without changing any text.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    key: u64,
    counter: u64,
}

impl Random {
    /// The sequence of that seed; `None` takes a seed from the system.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        // The hasher of a fresh RandomState is keyed by the operating system's randomness.
        let seed = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        // Mixing keeps the sequences of neighbouring seeds from being shifts of each other.
        Random { key: mix(seed ^ INCREMENT), counter: 0 }
    }

    /// Uniform in `0 .. 1`, 53 bits.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.counter += 1;
        let bits = mix(self.key.wrapping_add(self.counter.wrapping_mul(INCREMENT)));
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finaliser_is_the_published_one() {
        // First outputs of SplitMix64 for state 0.
        assert_eq!(mix(INCREMENT), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(INCREMENT.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn numbers_are_uniform_and_differ_by_seed() {
        let draw = |seed| {
            let mut random = Random::new(Some(seed));
            (0..4096).map(|_| random.uniform()).collect::<Vec<_>>()
        };
        let (a, b) = (draw(0), draw(1));
        assert_ne!(a, b);
        assert_eq!(a, draw(0));
        for numbers in [a, b] {
            assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
            let mean = numbers.iter().sum::<f64>() / 4096.0;
            assert!((mean - 0.5).abs() < 0.02, "{mean}");
        }
    }

    #[test]
    fn without_a_seed_two_generators_differ() {
        assert_ne!(Random::new(None).uniform(), Random::new(None).uniform());
    }
}
