//! Sixteen lanes as two AVX2 registers.

use std::arch::x86_64::*;

use super::{ByteKernel, Bytes, Kernel, Simd};

/// Exists only inside [`enter`], and with `VNNI` only inside [`enter_bytes`].
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(());

/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) fn enter<K: Kernel>(kernel: K) {
    kernel.run(Avx2::<false>(()));
}

/// # Safety
/// The machine has AVX2, FMA and AVX-VNNI.
#[target_feature(enable = "avx2,fma,avxvnni")]
pub(super) fn enter_bytes<K: ByteKernel>(kernel: K) {
    kernel.run(Avx2::<true>(()));
}

/// Intrinsics without memory operands, or on references.
macro_rules! intrinsics {
    ($e:expr) => {{
        // SAFETY: an `Avx2` exists only where AVX2 and FMA do; pointers come from references that
        // cover what is read or written.
        unsafe { $e }
    }};
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F = [__m256; 2];
    type U = [__m256i; 2];
    const GEMV_TILES: usize = 1;
    const GEMM_TILES: usize = 1;
    const GEMM_ROWS: usize = 6;

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(at.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        intrinsics!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        let p = from.as_ptr();
        intrinsics!([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))])
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; 16]) {
        let p = to.as_mut_ptr();
        intrinsics!({
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        });
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        intrinsics!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> Self::U {
        intrinsics!([_mm256_set1_epi32(x.cast_signed()); 2])
    }
    #[inline(always)]
    fn load_u32(self, from: &[u32; 16]) -> Self::U {
        let p = from.as_ptr().cast::<__m256i>();
        intrinsics!([_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))])
    }
    #[inline(always)]
    fn load_u16(self, from: &[u16; 16]) -> Self::U {
        let p = from.as_ptr().cast::<__m128i>();
        intrinsics!([
            _mm256_cvtepu16_epi32(_mm_loadu_si128(p)),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(1))),
        ])
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        intrinsics!([_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])])
    }
    #[inline(always)]
    fn or(self, a: Self::U, b: Self::U) -> Self::U {
        intrinsics!([_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])])
    }
    #[inline(always)]
    fn shl(self, a: Self::U, n: u32) -> Self::U {
        intrinsics!({
            let n = _mm_cvtsi32_si128(n.cast_signed());
            [_mm256_sll_epi32(a[0], n), _mm256_sll_epi32(a[1], n)]
        })
    }
    #[inline(always)]
    fn shr(self, a: Self::U, n: u32) -> Self::U {
        intrinsics!({
            let n = _mm_cvtsi32_si128(n.cast_signed());
            [_mm256_srl_epi32(a[0], n), _mm256_srl_epi32(a[1], n)]
        })
    }
    #[inline(always)]
    fn equal(self, a: Self::U, b: Self::U) -> Self::U {
        intrinsics!([_mm256_cmpeq_epi32(a[0], b[0]), _mm256_cmpeq_epi32(a[1], b[1])])
    }
    #[inline(always)]
    fn to_f32(self, a: Self::U) -> Self::F {
        intrinsics!([_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])])
    }
    #[inline(always)]
    fn as_f32(self, a: Self::U) -> Self::F {
        intrinsics!([_mm256_castsi256_ps(a[0]), _mm256_castsi256_ps(a[1])])
    }
    #[inline(always)]
    fn as_u32(self, a: Self::F) -> Self::U {
        intrinsics!([_mm256_castps_si256(a[0]), _mm256_castps_si256(a[1])])
    }
}

impl Bytes for Avx2<true> {
    #[inline(always)]
    fn dot4(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U {
        // SAFETY: an `Avx2<true>` exists only where AVX-VNNI does.
        unsafe {
            [
                _mm256_dpbusd_avx_epi32(sum[0], a[0], b[0]),
                _mm256_dpbusd_avx_epi32(sum[1], a[1], b[1]),
            ]
        }
    }
}
