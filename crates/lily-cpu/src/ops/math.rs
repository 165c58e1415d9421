//! Scalar functions and reductions written so that the compiler vectorises them, and the macro that
//! compiles them once per instruction set.

/// How a product and a sum are combined.
pub(super) trait Arithmetic: Copy {
    /// `a * b + c`.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// One rounding; for instruction sets that have the instruction.
#[derive(Clone, Copy)]
pub(super) struct Fused;

impl Arithmetic for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// Two roundings; where a fused operation would be a library call.
#[derive(Clone, Copy)]
pub(super) struct Separate;

impl Arithmetic for Separate {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Defines `fn name(isa: Isa, …)` that runs `body::<A>(…)` compiled for that instruction set.
/// `body` and all it calls must be `#[inline(always)]`, or they fall back to the baseline.
macro_rules! per_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "operands of a kernel")]
        $vis fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "operands of a kernel")]
            fn avx2($($arg: $ty),*) {
                $body::<$crate::ops::math::Fused>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "operands of a kernel")]
            fn avx512($($arg: $ty),*) {
                $body::<$crate::ops::math::Fused>($($arg),*)
            }
            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a device is only made for an instruction set that the machine has.
                $crate::simd::Isa::Avx2 | $crate::simd::Isa::AvxVnni => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::simd::Isa::Avx512 | $crate::simd::Isa::Avx512Vnni => unsafe {
                    avx512($($arg),*)
                },
                // Fused multiply-add is part of the baseline where NEON is.
                $crate::simd::Isa::Neon => $body::<$crate::ops::math::Fused>($($arg),*),
                _ => $body::<$crate::ops::math::Separate>($($arg),*),
            }
        }
    };
}
pub(super) use per_isa;

const EXP_MAX: f32 = 88.376_26;
const EXP_MIN: f32 = -87.336_54;

/// `eˣ` to about two units in the last place: a degree-6 polynomial after taking out powers of two.
/// Results below the normal range are 0; arguments above 88.37 count as 88.37; NaN stays NaN.
#[inline(always)]
pub(super) fn exp<A: Arithmetic>(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to an integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let y = if x > EXP_MAX { EXP_MAX } else { x };
    let y = if y < EXP_MIN { EXP_MIN } else { y };
    let shifted = A::mul_add(y, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = A::mul_add(n, -LN2_LOW, A::mul_add(n, -LN2_HIGH, y));
    let mut p = A::mul_add(1.987_569_1e-4, r, 1.398_199_9e-3);
    p = A::mul_add(p, r, 8.333_452e-3);
    p = A::mul_add(p, r, 4.166_579_6e-2);
    p = A::mul_add(p, r, 1.666_666_5e-1);
    p = A::mul_add(p, r, 0.5);
    let e = A::mul_add(p, r * r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < EXP_MIN { 0.0 } else { e * power }
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(super) fn sigmoid<A: Arithmetic>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<A>(-x))
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub(super) fn silu<A: Arithmetic>(x: f32) -> f32 {
    x / (1.0 + exp::<A>(-x))
}

/// `log(1 + eˣ)`.
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

const LANES: usize = 16;

/// `Σ a[i] · b[i]` over equally long slices, in 16 interleaved partial sums.
#[inline(always)]
pub(super) fn dot<A: Arithmetic>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail = a_chunks.remainder().iter().zip(b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] = A::mul_add(a[lane], b[lane], sums[lane]);
        }
    }
    let mut total = total(&whole(sums));
    for (a, b) in tail {
        total = A::mul_add(*a, *b, total);
    }
    total
}

/// Keeps partial sums in whole vectors: where the compiler sees the horizontal sum that follows, it
/// cuts the loop before into pairs of lanes.
#[inline(always)]
fn whole<T>(sums: T) -> T {
    std::hint::black_box(sums)
}

#[inline(always)]
fn total(sums: &[f32; LANES]) -> f32 {
    let mut four = [0.0f32; 4];
    for (lane, sum) in sums.iter().enumerate() {
        four[lane % 4] += sum;
    }
    (four[0] + four[2]) + (four[1] + four[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_right_to_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        let mut x = -87.3f32;
        while x < 88.3 {
            let want = f64::from(x).exp();
            for got in [exp::<Fused>(x), exp::<Separate>(x)] {
                worst = worst.max((f64::from(got) / want - 1.0).abs());
            }
            x += 0.00371;
        }
        assert!(worst < 2.5e-7, "{worst}");
    }

    #[test]
    fn exp_saturates_and_keeps_nan() {
        assert_eq!(exp::<Separate>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<Separate>(-200.0), 0.0);
        assert_eq!(exp::<Separate>(0.0), 1.0);
        assert!(exp::<Separate>(1e9) > 1e38);
        assert!(exp::<Separate>(f32::NAN).is_nan());
        assert!(silu::<Separate>(f32::NAN).is_nan());
        assert!(sigmoid::<Separate>(-200.0) < 1e-37);
        assert_eq!(sigmoid::<Separate>(200.0), 1.0);
    }

    #[test]
    fn softplus_has_no_step_where_it_turns_linear() {
        for x in [-80.0f32, -5.0, 0.0, 3.0, 19.99, 20.01, 90.0] {
            let want = f64::from(x).exp().ln_1p();
            assert!((f64::from(softplus(x)) - want).abs() <= 1e-6 * want.max(1e-30), "{x}");
        }
    }

    #[test]
    fn dot_agrees_with_a_plain_sum_for_any_length() {
        for n in [0, 1, 15, 16, 17, 64, 100] {
            let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
            let b: Vec<f32> = (0..n).map(|i| (i as f32 * 0.3).cos()).collect();
            let want: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot::<Fused>(&a, &b)) - want).abs() < 1e-5);
        }
    }
}
