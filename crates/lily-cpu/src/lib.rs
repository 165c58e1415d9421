//! The CPU device: runs plans with AVX2, AVX-512, NEON or portable code.

pub mod matrix;
pub mod pool;
pub mod simd;
