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
    /// The same with AVX-VNNI, which multiplies bytes.
    AvxVnni,
    /// x86-64 with AVX-512F.
    Avx512,
    /// The same with VNNI.
    Avx512Vnni,
    /// AArch64 with Advanced SIMD.
    Neon,
}

impl Isa {
    const ALL: [Isa; 6] =
        [Isa::Portable, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Avx512Vnni, Isa::Neon];

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => is_x86_feature_detected!("avxvnni") && Isa::Avx2.is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f") && Isa::Avx2.is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => is_x86_feature_detected!("avx512vnni") && Isa::Avx512.is_available(),
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
            Isa::AvxVnni => "AVX-VNNI",
            Isa::Avx512 => "AVX-512",
            Isa::Avx512Vnni => "AVX-512 VNNI",
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
#[error(
    "unknown instruction set {found}: expected portable, avx2, avx-vnni, avx512, avx512-vnni or neon"
)]
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
            "avx-vnni" => Ok(Isa::AvxVnni),
            "avx512" | "avx-512" => Ok(Isa::Avx512),
            "avx512-vnni" | "avx-512 vnni" => Ok(Isa::Avx512Vnni),
            "neon" => Ok(Isa::Neon),
            _ => Err(UnknownIsa { found: word.to_owned() }),
        }
    }
}

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

/// Sixteen lanes of one instruction set.
///
/// A value of an implementing type proves that the machine has the instructions, so every method is
/// safe. Methods are inlined into the [`Kernel`] that an `enter` function of the same module runs,
/// which is compiled for those instructions.
pub(crate) trait Simd: Copy {
    /// 16 `f32`.
    type F: Copy;
    /// 16 `u32`.
    type U: Copy;
    /// Tiles that a matrix-vector product takes side by side.
    const GEMV_TILES: usize;
    /// Tiles and rows of the block that a matrix-matrix product keeps in registers.
    const GEMM_TILES: usize;
    /// See [`Simd::GEMM_TILES`].
    const GEMM_ROWS: usize;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, from: &[f32; 16]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; 16]);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once where the machine can.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    fn splat_u32(self, x: u32) -> Self::U;
    fn load_u32(self, from: &[u32; 16]) -> Self::U;
    /// Widens.
    fn load_u16(self, from: &[u16; 16]) -> Self::U;
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    fn or(self, a: Self::U, b: Self::U) -> Self::U;
    fn shl(self, a: Self::U, n: u32) -> Self::U;
    fn shr(self, a: Self::U, n: u32) -> Self::U;
    /// All ones where equal.
    fn equal(self, a: Self::U, b: Self::U) -> Self::U;
    /// The value, as a signed number.
    fn to_f32(self, a: Self::U) -> Self::F;
    /// The bits.
    fn as_f32(self, a: Self::U) -> Self::F;

    /// Asks for the cache line at an address that may lie outside any allocation; a hint. Made for what a
    /// token reads once: where the machine can tell, the line does not take the place of what is read
    /// again (with it the recurrent state stays cached; 155 to 167 tokens/s on Zen 5).
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}

    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }

    /// Lane `i` is the sum of the lanes of vector `i`.
    #[inline(always)]
    fn totals(self, vectors: [Self::F; 16]) -> Self::F {
        let mut lanes = [[0.0; 16]; 16];
        for (vector, lanes) in vectors.into_iter().zip(&mut lanes) {
            self.store(vector, lanes);
        }
        let totals = lanes.map(|mut lanes| {
            for width in [8, 4, 2, 1] {
                for lane in 0..width {
                    lanes[lane] += lanes[lane + width];
                }
            }
            lanes[0]
        });
        self.load(&totals)
    }

    /// bfloat16 in the low halves.
    #[inline(always)]
    fn bf16_to_f32(self, a: Self::U) -> Self::F {
        self.as_f32(self.shl(a, 16))
    }

    /// IEEE half in the low halves; the high halves are zero.
    #[inline(always)]
    fn f16_to_f32(self, a: Self::U) -> Self::F {
        let exponent = self.splat_u32(0x7c00);
        let special = self.equal(self.and(a, exponent), exponent);
        let magnitude = self.shl(self.and(a, self.splat_u32(0x7fff)), 13);
        let sign = self.shl(self.and(a, self.splat_u32(0x8000)), 16);
        // Moves the exponent's bias from 15 to 127, subnormals included; infinities and NaN
        // become 2^16 and more and get their exponent back.
        let value = self.mul(self.as_f32(magnitude), self.splat(f32::from_bits(0x7780_0000)));
        let special = self.and(special, self.splat_u32(0x7f80_0000));
        self.as_f32(self.or(self.or(self.as_u32(value), special), sign))
    }

    /// The bits.
    fn as_u32(self, a: Self::F) -> Self::U;
}

/// Lanes whose words can be taken as bytes and multiplied.
pub(crate) trait Bytes: Simd {
    /// `sum` plus four products: unsigned bytes of `a` with signed ones of `b`; 32 bits, wrapping.
    fn dot4(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U;
}

/// As [`Kernel`], for work with bytes.
pub(crate) trait ByteKernel {
    /// Implementations are `#[inline(always)]`.
    fn run<S: Bytes>(self, s: S);
}

/// Work that is written once and compiled for every instruction set.
pub(crate) trait Kernel {
    /// Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, s: S);
}

impl Isa {
    /// Tiles that a matrix-matrix product takes side by side.
    pub(crate) fn gemm_tiles(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::Avx2::<false>::GEMM_TILES,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::Avx512::<false>::GEMM_TILES,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::Neon::GEMM_TILES,
            #[allow(unreachable_patterns, reason = "depends on the target")]
            _ => portable::Portable::GEMM_TILES,
        }
    }

    /// Runs a kernel with this instruction set.
    ///
    /// # Panics
    /// When the machine lacks it.
    #[inline]
    pub(crate) fn run(self, kernel: impl Kernel) {
        debug_assert!(self.is_available());
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` that is used was found available (`Matrix::pack` checks it).
            Isa::Avx2 | Isa::AvxVnni => unsafe { avx2::enter(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512 | Isa::Avx512Vnni => unsafe { avx512::enter(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon => unsafe { neon::enter(kernel) },
            #[allow(unreachable_patterns, reason = "depends on the target")]
            _ => portable::enter(kernel),
        }
    }

    /// Whether multiplying bytes is faster with it than multiplying `f32`.
    pub(crate) fn multiplies_bytes(self) -> bool {
        matches!(self, Isa::AvxVnni | Isa::Avx512Vnni)
    }

    /// Runs a kernel with this instruction set, or in plain Rust where it has no products of bytes.
    ///
    /// # Panics
    /// When the machine lacks it.
    #[inline]
    pub(crate) fn run_bytes(self, kernel: impl ByteKernel) {
        debug_assert!(self.is_available());
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as for `run`.
            Isa::AvxVnni => unsafe { avx2::enter_bytes(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512Vnni => unsafe { avx512::enter_bytes(kernel) },
            _ => portable::enter_bytes(kernel),
        }
    }
}

#[cfg(test)]
mod tests;
