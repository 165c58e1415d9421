//! Sixteen lanes as one AVX-512 register.

use std::arch::x86_64::*;

use super::{ByteKernel, Bytes, Kernel, Simd};

/// Exists only inside [`enter`], and with `VNNI` only inside [`enter_bytes`].
#[derive(Clone, Copy)]
pub(super) struct Avx512<const VNNI: bool>(());

/// # Safety
/// The machine has AVX-512F.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(super) fn enter<K: Kernel>(kernel: K) {
    kernel.run(Avx512::<false>(()));
}

/// # Safety
/// The machine has AVX-512F and AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512vnni,avx2,fma")]
pub(super) fn enter_bytes<K: ByteKernel>(kernel: K) {
    kernel.run(Avx512::<true>(()));
}

/// Intrinsics without memory operands, or on references.
macro_rules! intrinsics {
    ($e:expr) => {{
        // SAFETY: an `Avx512` exists only where AVX-512F does; pointers come from references that
        // cover what is read or written.
        unsafe { $e }
    }};
}

impl<const VNNI: bool> Simd for Avx512<VNNI> {
    type F = __m512;
    type U = __m512i;
    const GEMV_TILES: usize = 4;
    const GEMM_TILES: usize = 2;
    const GEMM_ROWS: usize = 12;

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(at.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        intrinsics!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        intrinsics!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; 16]) {
        intrinsics!(_mm512_storeu_ps(to.as_mut_ptr(), x));
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        intrinsics!(_mm512_fmadd_ps(a, b, c))
    }
    /// Sums of two vectors that have the lanes of both, four times over.
    #[inline(always)]
    fn totals(self, v: [Self::F; 16]) -> Self::F {
        let v: [_; 8] = std::array::from_fn(|i| self.add_lanes(v[2 * i], v[2 * i + 1]));
        let v: [_; 4] = std::array::from_fn(|i| self.add_pairs(v[2 * i], v[2 * i + 1]));
        self.add_quarters(self.add_quarters(v[0], v[1]), self.add_quarters(v[2], v[3]))
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> Self::U {
        intrinsics!(_mm512_set1_epi32(x.cast_signed()))
    }
    #[inline(always)]
    fn load_u32(self, from: &[u32; 16]) -> Self::U {
        intrinsics!(_mm512_loadu_si512(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn load_u16(self, from: &[u16; 16]) -> Self::U {
        intrinsics!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        intrinsics!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: Self::U, b: Self::U) -> Self::U {
        intrinsics!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn shl(self, a: Self::U, n: u32) -> Self::U {
        intrinsics!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(n.cast_signed())))
    }
    #[inline(always)]
    fn shr(self, a: Self::U, n: u32) -> Self::U {
        intrinsics!(_mm512_srl_epi32(a, _mm_cvtsi32_si128(n.cast_signed())))
    }
    #[inline(always)]
    fn equal(self, a: Self::U, b: Self::U) -> Self::U {
        intrinsics!(_mm512_maskz_set1_epi32(_mm512_cmpeq_epi32_mask(a, b), -1))
    }
    #[inline(always)]
    fn to_f32(self, a: Self::U) -> Self::F {
        intrinsics!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn as_f32(self, a: Self::U) -> Self::F {
        intrinsics!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn as_u32(self, a: Self::F) -> Self::U {
        intrinsics!(_mm512_castps_si512(a))
    }
}

impl<const VNNI: bool> Avx512<VNNI> {
    /// Of each quarter `[a0 + a2, b0 + b2, a1 + a3, b1 + b3]`.
    #[inline(always)]
    fn add_lanes(self, a: __m512, b: __m512) -> __m512 {
        intrinsics!(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)))
    }
    /// Of each quarter `[a0 + a2, a1 + a3, b0 + b2, b1 + b3]`.
    #[inline(always)]
    fn add_pairs(self, a: __m512, b: __m512) -> __m512 {
        intrinsics!({
            let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
            let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
            _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
        })
    }
    /// Quarters `[a0 + a1, a2 + a3, b0 + b1, b2 + b3]`.
    #[inline(always)]
    fn add_quarters(self, a: __m512, b: __m512) -> __m512 {
        intrinsics!({
            let (even, odd) =
                (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            _mm512_add_ps(even, odd)
        })
    }
}

impl Bytes for Avx512<true> {
    #[inline(always)]
    fn dot4(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U {
        // SAFETY: an `Avx512<true>` exists only where VNNI does.
        unsafe { _mm512_dpbusd_epi32(sum, a, b) }
    }
}
