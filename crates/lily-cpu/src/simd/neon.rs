//! Sixteen lanes as four Advanced SIMD registers.

use std::arch::aarch64::*;

use super::{Kernel, Simd};

/// Exists only inside [`enter`].
#[derive(Clone, Copy)]
pub(super) struct Neon(());

/// # Safety
/// The machine has Advanced SIMD.
#[target_feature(enable = "neon")]
pub(super) fn enter<K: Kernel>(kernel: K) {
    kernel.run(Neon(()));
}

/// Intrinsics without memory operands, or on references.
macro_rules! intrinsics {
    ($e:expr) => {{
        // SAFETY: a `Neon` exists only where Advanced SIMD does; pointers come from references that
        // cover what is read or written.
        unsafe { $e }
    }};
}

/// Applies an intrinsic to each of the four registers.
macro_rules! each {
    ($i:ident => $e:expr) => {
        intrinsics!([
            { const $i: usize = 0; $e },
            { const $i: usize = 1; $e },
            { const $i: usize = 2; $e },
            { const $i: usize = 3; $e },
        ])
    };
}

impl Simd for Neon {
    type F = [float32x4_t; 4];
    type U = [uint32x4_t; 4];
    const GEMV_TILES: usize = 2;
    const GEMM_TILES: usize = 1;
    const GEMM_ROWS: usize = 6;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        intrinsics!([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        each!(I => vld1q_f32(from.as_ptr().add(4 * I)))
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; 16]) {
        let _: [(); 4] = each!(I => vst1q_f32(to.as_mut_ptr().add(4 * I), x[I]));
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each!(I => vaddq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each!(I => vmulq_f32(a[I], b[I]))
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(I => vfmaq_f32(c[I], a[I], b[I]))
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> Self::U {
        intrinsics!([vdupq_n_u32(x); 4])
    }
    #[inline(always)]
    fn load_u32(self, from: &[u32; 16]) -> Self::U {
        each!(I => vld1q_u32(from.as_ptr().add(4 * I)))
    }
    #[inline(always)]
    fn load_u16(self, from: &[u16; 16]) -> Self::U {
        each!(I => vmovl_u16(vld1_u16(from.as_ptr().add(4 * I))))
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        each!(I => vandq_u32(a[I], b[I]))
    }
    #[inline(always)]
    fn or(self, a: Self::U, b: Self::U) -> Self::U {
        each!(I => vorrq_u32(a[I], b[I]))
    }
    #[inline(always)]
    fn shl(self, a: Self::U, n: u32) -> Self::U {
        each!(I => vshlq_u32(a[I], vdupq_n_s32(n.cast_signed())))
    }
    #[inline(always)]
    fn shr(self, a: Self::U, n: u32) -> Self::U {
        each!(I => vshlq_u32(a[I], vdupq_n_s32(-n.cast_signed())))
    }
    #[inline(always)]
    fn equal(self, a: Self::U, b: Self::U) -> Self::U {
        each!(I => vceqq_u32(a[I], b[I]))
    }
    #[inline(always)]
    fn to_f32(self, a: Self::U) -> Self::F {
        each!(I => vcvtq_f32_s32(vreinterpretq_s32_u32(a[I])))
    }
    #[inline(always)]
    fn as_f32(self, a: Self::U) -> Self::F {
        each!(I => vreinterpretq_f32_u32(a[I]))
    }
    #[inline(always)]
    fn as_u32(self, a: Self::F) -> Self::U {
        each!(I => vreinterpretq_u32_f32(a[I]))
    }
}
