//! Bytes of random tensors, from any position on.

use half::bf16;

use super::shape::{Draw, RandomTensor};

/// Fills `out` with the bytes of `tensor` from byte `start` on. `start` is a multiple of 8, and so
/// is the length of `out` unless it ends the tensor.
pub(super) fn fill(tensor: &RandomTensor, seed: u64, start: u64, out: &mut [u8]) {
    let stream = Stream { key: key(seed, &tensor.key) };
    match tensor.draw {
        Draw::Bits => {
            let mut words = out.chunks_exact_mut(8);
            let mut position = start / 8;
            for word in &mut words {
                word.copy_from_slice(&stream.word(position).to_le_bytes());
                position += 1;
            }
            let tail = words.into_remainder();
            tail.copy_from_slice(&stream.word(position).to_le_bytes()[..tail.len()]);
        }
        Draw::Scale { mean } => fill_bf16(out, start, |element| stream.scale(element, mean)),
        Draw::Bias { mean, half_range } => fill_bf16(out, start, |element| {
            -half_range * bf16::from_f32(stream.scale(element, mean)).to_f32()
        }),
        Draw::Uniform { low, high } => {
            fill_bf16(out, start, |element| low + (high - low) * stream.unit(element));
        }
    }
}

fn fill_bf16(out: &mut [u8], start: u64, value: impl Fn(u64) -> f32) {
    for (element, bytes) in (start / 2..).zip(out.chunks_exact_mut(2)) {
        bytes.copy_from_slice(&bf16::from_f32(value(element)).to_le_bytes());
    }
}

/// Random numbers by position.
#[derive(Clone, Copy)]
struct Stream {
    key: u64,
}

impl Stream {
    /// The SplitMix64 sequence from `key` on, entered at `position`.
    fn word(self, position: u64) -> u64 {
        mix(self.key.wrapping_add(position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// In `0.0..1.0`, a multiple of 2⁻²⁴ and so exact.
    fn unit(self, position: u64) -> f32 {
        (self.word(position) >> 40) as f32 / (1 << 24) as f32
    }

    /// Within a quarter of `mean`.
    fn scale(self, position: u64, mean: f32) -> f32 {
        mean * (0.75 + 0.5 * self.unit(position))
    }
}

/// Finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// FNV-1a of the name, mixed with the seed.
fn key(seed: u64, name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(hash ^ mix(seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(draw: Draw) -> RandomTensor {
        let (name, key) = ("w".to_owned(), "k".to_owned());
        RandomTensor { name, key, dtype: "BF16", shape: vec![999], bytes: 1998, draw }
    }

    #[test]
    fn any_cut_gives_the_same_bytes() {
        for draw in [
            Draw::Bits,
            Draw::Scale { mean: 0.1 },
            Draw::Bias { mean: 0.1, half_range: 7.5 },
            Draw::Uniform { low: -1.0, high: 2.0 },
        ] {
            let tensor = tensor(draw);
            let mut whole = vec![0; 1998];
            fill(&tensor, 7, 0, &mut whole);
            let mut parts = vec![0; 1998];
            for start in (0..1998).step_by(16) {
                let end = 1998.min(start + 16);
                fill(&tensor, 7, start as u64, &mut parts[start..end]);
            }
            assert_eq!(whole, parts);
        }
    }

    #[test]
    fn the_stream_is_the_published_splitmix64() {
        // First outputs of SplitMix64 for state 1234567.
        let stream = Stream { key: 1_234_567 };
        assert_eq!(stream.word(0), 6_457_827_717_110_365_317);
        assert_eq!(stream.word(1), 3_203_168_211_198_807_973);
    }

    #[test]
    fn seeds_and_names_change_everything() {
        assert_ne!(key(0, "a"), key(1, "a"));
        assert_ne!(key(0, "a"), key(0, "b"));
    }
}
