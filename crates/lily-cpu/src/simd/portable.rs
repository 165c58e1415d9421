//! Sixteen lanes in plain Rust; the compiler vectorises what the baseline target allows.

use std::array::from_fn;

use super::{ByteKernel, Bytes, Kernel, Simd};

#[derive(Clone, Copy)]
pub(super) struct Portable;

pub(super) fn enter<K: Kernel>(kernel: K) {
    kernel.run(Portable);
}

pub(super) fn enter_bytes<K: ByteKernel>(kernel: K) {
    kernel.run(Portable);
}

impl Simd for Portable {
    type F = [f32; 16];
    type U = [u32; 16];
    const GEMV_TILES: usize = 1;
    const GEMM_TILES: usize = 1;
    const GEMM_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; 16]
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; 16]) {
        *to = x;
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> Self::U {
        [x; 16]
    }
    #[inline(always)]
    fn load_u32(self, from: &[u32; 16]) -> Self::U {
        *from
    }
    #[inline(always)]
    fn load_u16(self, from: &[u16; 16]) -> Self::U {
        from.map(u32::from)
    }
    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn or(self, a: Self::U, b: Self::U) -> Self::U {
        from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn shl(self, a: Self::U, n: u32) -> Self::U {
        a.map(|a| a << n)
    }
    #[inline(always)]
    fn shr(self, a: Self::U, n: u32) -> Self::U {
        a.map(|a| a >> n)
    }
    #[inline(always)]
    fn equal(self, a: Self::U, b: Self::U) -> Self::U {
        from_fn(|i| if a[i] == b[i] { u32::MAX } else { 0 })
    }
    #[inline(always)]
    fn to_f32(self, a: Self::U) -> Self::F {
        a.map(|a| a.cast_signed() as f32)
    }
    #[inline(always)]
    fn as_f32(self, a: Self::U) -> Self::F {
        a.map(f32::from_bits)
    }
    #[inline(always)]
    fn as_u32(self, a: Self::F) -> Self::U {
        a.map(f32::to_bits)
    }
}

impl Bytes for Portable {
    #[inline(always)]
    fn dot4(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U {
        from_fn(|i| {
            let bytes = a[i].to_le_bytes().into_iter().zip(b[i].to_le_bytes());
            bytes.fold(sum[i], |sum, (a, b)| {
                let product = i32::from(a) * i32::from(b.cast_signed());
                sum.wrapping_add(product.cast_unsigned())
            })
        })
    }
}
