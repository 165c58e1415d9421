//! Rows of 4-bit matrices times one row of activations in whole numbers (`kernels/common/digits.h`), as machines with
//! [`Tuning::row_tiles`](lily_kernels::lower::Tuning::row_tiles) multiply them: against sums in `f64`.

use crate::product::{Activations, Product, SHAPES};
use crate::support;

/// Largest error, in the mean over the outputs and in units of theirs. Without the lowest of
/// three digits it is 1e-4.
const LIMIT: f64 = 2e-6;

#[test]
fn products_are_as_exact_as_sums_of_floats() {
    if !support::has_compiler() {
        return;
    }
    for shape in SHAPES {
        let product = Product::new(shape, &Activations::Random);
        let error = product.error(1, |source| source).unwrap();
        eprintln!("{error:.1e}: {shape:?}");
        assert!(error <= LIMIT, "{shape:?}: {error}");
    }
}

#[test]
fn the_order_of_threads_makes_no_difference() {
    if !support::has_compiler() {
        return;
    }
    for shape in SHAPES {
        let product = Product::new(shape, &Activations::Random);
        let bits = |seed| {
            let found = product.found(seed, |source| source).unwrap();
            found.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let first = bits(1);
        for seed in 2..6 {
            assert!(bits(seed) == first, "seed {seed}, {shape:?}");
        }
    }
}

#[test]
fn activations_of_any_size_lose_no_more_than_what_lies_far_below_the_largest_beside_them() {
    if !support::has_compiler() {
        return;
    }
    for shape in SHAPES.into_iter().filter(|shape| !shape.norm) {
        for activations in [
            Activations::Zero,
            Activations::OneHugePerGroup,
            Activations::OneHugeGroup,
            Activations::Scaled(1e30),
            Activations::Scaled(1e-30),
            Activations::Scaled(1e-36),
            Activations::Scaled(1e-44),
        ] {
            let product = Product::new(shape, &activations);
            let found = product.found(1, |source| source).unwrap();
            for (row, (found, (expected, bound))) in found.iter().zip(product.bounds()).enumerate()
            {
                let error = (f64::from(*found) - expected).abs();
                let what = || format!("{activations:?}, row {row} of {shape:?}");
                assert!(error <= bound, "{}: {found}, expected {expected} ± {bound}", what());
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    if !support::has_compiler() {
        return;
    }
    for shape in SHAPES {
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 63, 64, shape.k / 2 + 5, shape.k - 1] {
                let product = Product::new(shape, &Activations::With(at, x));
                let found = product.found(1, |source| source).unwrap();
                let number = found.iter().position(|y| y.is_finite());
                assert!(number.is_none(), "{x} at {at}: row {number:?} of {shape:?}");
            }
        }
    }
}

/// So every shape is multiplied by digits.
#[test]
fn the_lowest_digit_is_missed_in_every_shape() {
    if !support::has_compiler() {
        return;
    }
    for shape in SHAPES {
        let product = Product::new(shape, &Activations::Random);
        let without = |source: String| {
            source.replacen("second ? 65536.0f : 1.0f", "second ? 65536.0f : 0.0f", 1)
        };
        let error = product.error(1, without).unwrap();
        assert!(error > 10.0 * LIMIT, "{shape:?}: {error}");
    }
}

#[test]
fn faults_in_the_digits_show() {
    if !support::has_compiler() {
        return;
    }
    const SUMMED: &str =
        "/ 4 + 8] = y[1];\n  }\n  threadgroup_barrier(mem_flags::mem_threadgroup);";
    let faults = [
        // Digits left out.
        ("column % 4 < 3", "column % 4 < 2"),
        ("second ? 65536.0f : 1.0f", "second ? 65536.0f : 0.0f"),
        ("second ? 0.0f : 256.0f", "0.0f"),
        ("^ 0x00808080u", "^ 0x00800080u"),
        ("to[8 + odd * 4] = permute_bytes(low01, low23, 0x7632)", "to[8 + odd * 4] = 0"),
        // The other half of the weights, of the values or of the nibbles.
        ("column / 4 == q / 2", "column / 4 != q / 2"),
        ("column / 4 == q / 2 && ", ""),
        ("low[2 * h] * 16 + high[2 * h]", "low[2 * h] + high[2 * h] * 16"),
        ("v.x & ODD, u.y & ODD", "v.y & ODD, u.y & ODD"),
        ("odd.z, odd.w", "odd.w, odd.z"),
        ("permute_bytes(n0, n1, 0x0062)", "permute_bytes(n1, n0, 0x0062)"),
        ("(h == 0 ? row0.words : row1.words)", "row0.words"),
        // Another scale, unit or bias.
        ("(h == 0 ? row0.sides : row1.sides)", "row0.sides"),
        ("(chunk * 128 + q * 32) / F::GROUP", "chunk * 128 / F::GROUP"),
        ("sums[(chunk + i) * 2 + q / 2]", "sums[(chunk + i) * 2]"),
        ("(exponent - 25u) << 23", "(exponent - 24u) << 23"),
        ("second ? 0.0f : group.x", "group.x"),
        // Lanes, shares of K and simdgroups that are not waited for.
        (
            "UNROLL for (int m = 1; m < 4; m *= 2) {\n    y[0]",
            "UNROLL for (int m = 1; m < 2; m *= 2) {\n    y[0]",
        ),
        ("DIGIT_WORDS) + at.index] = 0;", "DIGIT_WORDS) + at.index] = 1;"),
        ("for (int s = 0; s < int(SPLITS); s++)", "for (int s = 1; s < int(SPLITS); s++)"),
        ("turn % 2 * (16 * SIMDGROUPS)", "turn % 1 * (16 * SIMDGROUPS)"),
        (SUMMED, "/ 4 + 8] = y[1];\n  }\n"),
    ];
    let shape = SHAPES[0];
    let product = Product::new(shape, &Activations::Random);
    for (right, wrong) in faults {
        let plant = |source: String| {
            assert_eq!(source.matches(right).count(), 1, "the source does not say {right:?} once");
            source.replacen(right, wrong, 1)
        };
        // What is not waited for is missed in some orders only.
        let largest = (1..6).map(|seed| product.error(seed, plant).unwrap_or(f64::INFINITY));
        let largest = largest.fold(0.0, f64::max);
        eprintln!("{largest:.1e}: {right:?}");
        assert!(largest > LIMIT, "{right:?}: {largest}");
    }
}
