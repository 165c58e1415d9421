//! Instruction sets: which one this machine has, and one vocabulary for all of them.

use std::fmt;
use std::str::FromStr;

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512F.
    Avx512,
    /// AArch64 with Advanced SIMD.
    Neon,
}

impl Isa {
    const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f") && Isa::Avx2.is_available(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns, reason = "depends on the target")]
            _ => false,
        }
    }

    /// Every instruction set this machine can run, the widest last.
    pub fn available() -> impl Iterator<Item = Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The widest instruction set of this machine.
    pub fn detect() -> Isa {
        Self::available().last().unwrap_or(Isa::Portable)
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512",
            Isa::Neon => "NEON",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no instruction set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set {found}: expected portable, avx2, avx512 or neon")]
pub struct UnknownIsa {
    /// The word.
    pub found: String,
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(word: &str) -> Result<Self, UnknownIsa> {
        match word.to_ascii_lowercase().as_str() {
            "portable" => Ok(Isa::Portable),
            "avx2" => Ok(Isa::Avx2),
            "avx512" | "avx-512" => Ok(Isa::Avx512),
            "neon" => Ok(Isa::Neon),
            _ => Err(UnknownIsa { found: word.to_owned() }),
        }
    }
}
