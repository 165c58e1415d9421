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
