//! Frequencies of the rotary position embedding.

use lily_checkpoint::config::{RopeConfig, RopeScaling};

/// Turns per position of each pair, and the factor on cosine and sine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    pub(crate) inv_freq: Vec<f32>,
    pub(crate) scale: f32,
}

/// Plain rope: pair `i` of `d / 2` turns by `theta^(-2i / d)` per position.
///
/// YaRN divides the slow frequencies by the factor and leaves the fast ones alone ("NTK by parts"),
/// with a linear ramp between the pairs that make `beta_fast` and `beta_slow` turns over the trained
/// context, and scales attention by `0.1 ln(factor) + 1` on cosine and sine.
///
/// # Source
/// Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models",
/// sections 3.2 and 3.4; bounds rounded outwards and clamped to `0 ..= d - 1` as
/// transformers 5.24 does (`_compute_yarn_parameters`, truncated).
pub(crate) fn rope(config: &RopeConfig) -> Rope {
    let dim = config.rotary_dim as f64;
    let pairs = config.rotary_dim / 2;
    let plain = |i: usize| config.theta.powf(-2.0 * i as f64 / dim);
    match config.scaling {
        RopeScaling::None => {
            Rope { inv_freq: (0..pairs).map(|i| plain(i) as f32).collect(), scale: 1.0 }
        }
        RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow } => {
            let context = original_max_position as f64;
            // The pair that makes `turns` full turns over the trained context.
            let pair_of = |turns: f64| {
                dim * (context / (turns * std::f64::consts::TAU)).ln() / (2.0 * config.theta.ln())
            };
            let low = pair_of(beta_fast).floor().max(0.0);
            let high = pair_of(beta_slow).ceil().min(dim - 1.0);
            let width = if high == low { 0.001 } else { high - low };
            let inv_freq = (0..pairs).map(|i| {
                let slow = ((i as f64 - low) / width).clamp(0.0, 1.0);
                (plain(i) * (slow / factor + 1.0 - slow)) as f32
            });
            let scale = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            Rope { inv_freq: inv_freq.collect(), scale: scale as f32 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 1e7, rotary_dim: 64, scaling }
    }

    fn yarn(factor: f64) -> RopeConfig {
        let (original_max_position, beta_fast, beta_slow) = (262_144, 32.0, 1.0);
        config(RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow })
    }

    fn close(found: f32, expected: f64) -> bool {
        (f64::from(found) - expected).abs() <= 1e-6 * expected
    }

    #[test]
    fn plain_frequencies_fall_from_one_by_a_constant_ratio() {
        let rope = rope(&config(RopeScaling::None));
        assert_eq!((rope.inv_freq.len(), rope.inv_freq[0], rope.scale), (32, 1.0, 1.0));
        let ratio = 1e7f64.powf(-1.0 / 32.0);
        for (i, &f) in rope.inv_freq.iter().enumerate() {
            assert!(close(f, ratio.powi(i as i32)), "{i}: {f}");
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_slows_slow_ones_and_ramps_between() {
        let plain = rope(&config(RopeScaling::None)).inv_freq;
        let yarn = rope(&yarn(4.0));
        // Turns over 262,144 tokens: pair 14 makes 36, pair 15 makes 22, pair 21 makes 1.06 and
        // pair 22 makes 0.64; so the ramp runs from 14 to 22.
        for (i, (&plain, &yarn)) in plain.iter().zip(&yarn.inv_freq).enumerate() {
            let slow = ((i as f64 - 14.0) / 8.0).clamp(0.0, 1.0);
            let expected = f64::from(plain) * (1.0 - 0.75 * slow);
            assert!(close(yarn, expected), "{i}: {yarn} {expected}");
        }
        assert!(close(yarn.scale, 0.1 * 4f64.ln() + 1.0));
    }

    #[test]
    fn yarn_of_factor_one_is_plain() {
        let (plain, yarn) = (rope(&config(RopeScaling::None)), rope(&yarn(1.0)));
        assert_eq!(plain, yarn);
    }
}
