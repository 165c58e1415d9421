use lily_checkpoint::MatrixPart;
use lily_checkpoint::manifest::Dtype;
use proptest::prelude::*;

use super::layout::{CHUNK, Place};
use super::*;

/// A matrix as a checkpoint stores it.
struct Stored {
    shape: MatrixShape,
    parts: [Vec<u8>; 3],
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// In `-1.0 .. 1.0`.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

fn store(value: f32, dtype: Dtype, to: &mut Vec<u8>) {
    match dtype {
        Dtype::Bf16 => to.extend(half::bf16::from_f32(value).to_le_bytes()),
        Dtype::F16 => to.extend(half::f16::from_f32(value).to_le_bytes()),
        Dtype::F32 | Dtype::U32 => to.extend(value.to_le_bytes()),
    }
}

fn fetch(bytes: &[u8], dtype: Dtype, i: usize) -> f64 {
    let at = &bytes[i * dtype.bytes()..][..dtype.bytes()];
    f64::from(match dtype {
        Dtype::Bf16 => half::bf16::from_le_bytes(at.try_into().unwrap()).to_f32(),
        Dtype::F16 => half::f16::from_le_bytes(at.try_into().unwrap()).to_f32(),
        Dtype::F32 | Dtype::U32 => f32::from_le_bytes(at.try_into().unwrap()),
    })
}

impl Stored {
    fn random(shape: MatrixShape, seed: u64) -> Stored {
        let mut random = Random(seed);
        let mut parts = [const { Vec::new() }; 3];
        let n = shape.n_experts * shape.rows * shape.cols;
        match shape.format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                parts[0] = (0..n * bits as usize / 8).map(|_| random.next() as u8).collect();
                for _ in 0..n / group_size {
                    store(random.float() / (1 << bits) as f32, scale, &mut parts[1]);
                    store(random.float() / 2.0, scale, &mut parts[2]);
                }
            }
            MatrixFormat::Float(dtype) => {
                (0..n).for_each(|_| store(random.float(), dtype, &mut parts[0]));
            }
        }
        Stored { shape, parts }
    }

    fn pack(&self, isa: Isa, pool: &Pool) -> Matrix {
        let read = |part: MatrixPart, expert: usize, rows: Range<usize>, out: &mut [u8]| {
            let bytes = &self.parts[part as usize];
            let row = bytes.len() / (self.shape.n_experts * self.shape.rows);
            assert_eq!(out.len(), rows.len() * row);
            out.copy_from_slice(
                &bytes[(expert * self.shape.rows + rows.start) * row..][..out.len()],
            );
            Ok(())
        };
        Matrix::pack("m", self.shape, isa, pool, &|_| {}, &read).unwrap()
    }

    /// The exact weight, read bit by bit.
    fn weight(&self, expert: usize, row: usize, col: usize) -> f64 {
        let i = (expert * self.shape.rows + row) * self.shape.cols + col;
        match self.shape.format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                let bits = bits as usize;
                let q: u32 = (0..bits)
                    .map(|b| {
                        let at = i * bits + b;
                        u32::from(self.parts[0][at / 8] >> (at % 8) & 1) << b
                    })
                    .sum();
                let group = i / group_size;
                fetch(&self.parts[1], scale, group) * f64::from(q)
                    + fetch(&self.parts[2], scale, group)
            }
            MatrixFormat::Float(dtype) => fetch(&self.parts[0], dtype, i),
        }
    }

    /// `Σ x·w` and `Σ |x·w|`, which bounds the rounding errors.
    fn dot(&self, expert: usize, row: usize, x: &[f32]) -> (f64, f64) {
        x.iter().enumerate().fold((0.0, 0.0), |(sum, size), (col, &x)| {
            let product = f64::from(x) * self.weight(expert, row, col);
            (sum + product, size + product.abs())
        })
    }
}

fn affine(bits: u32, group_size: usize, scale: Dtype) -> MatrixFormat {
    MatrixFormat::Affine { bits, group_size, scale }
}

fn formats() -> Vec<MatrixFormat> {
    let mut all = Vec::new();
    for scale in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        all.push(MatrixFormat::Float(scale));
        for bits in [2, 3, 4, 5, 6, 8] {
            for group_size in [32, 64, 128] {
                all.push(affine(bits, group_size, scale));
            }
        }
    }
    all
}

fn contiguous(count: usize) -> RowIndex<'static> {
    RowIndex::Contiguous { first: 0, count }
}

/// The whole product of one expert, in tasks of `tiles` tiles.
fn product(matrix: &Matrix, expert: usize, x: &XRows<'_>, tiles: usize) -> Vec<f32> {
    product_with(matrix, expert, x, tiles, &mut Scratch::default())
}

fn product_with(
    matrix: &Matrix,
    expert: usize,
    x: &XRows<'_>,
    tiles: usize,
    scratch: &mut Scratch,
) -> Vec<f32> {
    let n = matrix.shape().rows;
    let mut out = vec![f32::NAN; x.len() * n];
    let rows = OutRows::exclusive(&mut out, n, contiguous(x.len()));
    for first in (0..matrix.n_tiles()).step_by(tiles) {
        let some = first..(first + tiles).min(matrix.n_tiles());
        matrix.multiply(expert, some, x, &rows, Mode::Overwrite, scratch);
    }
    out
}

fn assert_close(found: f32, (expected, size): (f64, f64), what: &str) {
    let error = (f64::from(found) - expected).abs();
    assert!(error <= 2e-6 * size + 1e-30, "{what}: {found} instead of {expected}, off by {error}");
}

#[test]
fn products_of_every_format_and_instruction_set_equal_the_exact_sums() {
    let pool = Pool::new(2);
    for format in formats() {
        for (rows, cols) in [(16, 128), (37, 384), (1, 128), (80, 640)] {
            let shape = MatrixShape { n_experts: 1, rows, cols, format };
            let stored = Stored::random(shape, 7);
            let x = Random(9).floats(13 * cols);
            let expected: Vec<_> = (0..13 * rows)
                .map(|i| stored.dot(0, i % rows, &x[i / rows * cols..][..cols]))
                .collect();
            for isa in Isa::available() {
                let matrix = stored.pack(isa, &pool);
                for count in [1, 2, 3, 4, 5, 7, 13] {
                    let x = XRows::new(&x, cols, contiguous(count));
                    let found = product(&matrix, 0, &x, usize::MAX >> 1);
                    for (i, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                        let what = format!("{isa} {shape:?}, {count} rows, element {i}");
                        assert_close(found, expected, &what);
                    }
                }
            }
        }
    }
}

/// The product by digits in plain Rust, which every machine can run.
fn product_by_digits(matrix: &Matrix, x: &XRows<'_>) -> Vec<f32> {
    let MatrixShape { rows, cols, format, .. } = *matrix.shape();
    let MatrixFormat::Affine { bits, group_size, scale } = format else { unreachable!() };
    let layout = AffineLayout::new(cols, bits, group_size, scale);
    let mut digits = Digits::default();
    digits.fill(Isa::Portable, &layout, x);
    let mut out = vec![f32::NAN; x.len() * rows];
    let to = OutRows::exclusive(&mut out, rows, contiguous(x.len()));
    let target = Target { out: &to, tile: 0, n: rows, mode: Mode::Overwrite };
    let tiles = lines(matrix.tiles(0, 0..matrix.n_tiles()));
    digits::affine(Isa::Portable, &layout, tiles, &digits, x.len(), target);
    out
}

#[test]
fn products_by_digits_equal_the_exact_sums_however_far_inputs_are_apart() {
    let pool = Pool::new(1);
    for (bits, group_size) in [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64)] {
        let (rows, cols) = (37, 384);
        let format = affine(bits, group_size, Dtype::Bf16);
        let stored = Stored::random(MatrixShape { n_experts: 1, rows, cols, format }, 5);
        let matrix = stored.pack(Isa::Portable, &pool);
        for scale in [1.0, 1e-28, 1e30] {
            let mut x = Random(11).floats(3 * cols);
            x.iter_mut().for_each(|x| *x *= scale);
            (x[3], x[70], x[cols]) = (1000.0 * scale, -scale / 1e6, -0.0);
            let rows_of_x = XRows::new(&x, cols, contiguous(3));
            for (i, &found) in product_by_digits(&matrix, &rows_of_x).iter().enumerate() {
                let expected = stored.dot(0, i % rows, &x[i / rows * cols..][..cols]);
                assert_close(found, expected, &format!("{bits} bits, scale {scale}, element {i}"));
            }
        }
    }
}

#[test]
fn inputs_too_small_for_digits_count_as_zero_all_together() {
    let (cols, format) = (128, affine(4, 64, Dtype::Bf16));
    let stored = Stored::random(MatrixShape { n_experts: 1, rows: 16, cols, format }, 6);
    let matrix = stored.pack(Isa::Portable, &Pool::new(1));
    let mut x = Random(3).floats(cols);
    x.iter_mut().for_each(|x| *x *= 1e-30);
    let product = product_by_digits(&matrix, &XRows::new(&x, cols, contiguous(1)));
    assert_eq!(product, [0.0; 16]);
}

#[test]
fn digits_of_nothing_are_nothing_and_those_of_no_number_give_none() {
    let (cols, format) = (128, affine(4, 64, Dtype::Bf16));
    let stored = Stored::random(MatrixShape { n_experts: 1, rows: 16, cols, format }, 6);
    let matrix = stored.pack(Isa::Portable, &Pool::new(1));
    let product = |x: &[f32]| product_by_digits(&matrix, &XRows::new(x, cols, contiguous(1)));
    assert_eq!(product(&vec![0.0; cols]), [0.0; 16]);
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = vec![1.0; cols];
        x[77] = odd;
        assert!(product(&x).iter().all(|y| !y.is_finite()), "{odd}");
    }
}

#[test]
fn float_matrices_may_have_any_number_of_inputs() {
    let pool = Pool::new(1);
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for cols in [1, 5, 63, 65, 257, 300] {
            let format = MatrixFormat::Float(dtype);
            let stored = Stored::random(MatrixShape { n_experts: 1, rows: 19, cols, format }, 3);
            let x = Random(4).floats(6 * cols);
            for isa in Isa::available() {
                let matrix = stored.pack(isa, &pool);
                for count in [1, 6] {
                    let found = product(&matrix, 0, &XRows::new(&x, cols, contiguous(count)), 1);
                    for (i, &found) in found.iter().enumerate() {
                        let expected = stored.dot(0, i % 19, &x[i / 19 * cols..][..cols]);
                        assert_close(found, expected, &format!("{isa} {dtype:?} {cols}"));
                    }
                }
            }
        }
    }
}

#[test]
fn rows_widen_to_the_stored_values() {
    let pool = Pool::new(1);
    for format in formats() {
        let shape = MatrixShape { n_experts: 2, rows: 21, cols: 256, format };
        let stored = Stored::random(shape, 1);
        let matrix = stored.pack(Isa::Portable, &pool);
        let mut out = vec![0.0; 256];
        for (expert, row) in [(0, 0), (1, 15), (0, 16), (1, 20)] {
            matrix.row_to_f32(expert, row, &mut out);
            for (col, &found) in out.iter().enumerate() {
                let expected = stored.weight(expert, row, col);
                assert!((f64::from(found) - expected).abs() <= 1e-6, "{format:?} {row} {col}");
            }
        }
    }
}

#[test]
fn the_split_into_tasks_changes_no_bit() {
    let pool = Pool::new(1);
    for format in [affine(4, 64, Dtype::Bf16), affine(3, 32, Dtype::F16)] {
        let shape = MatrixShape { n_experts: 1, rows: 150, cols: 512, format };
        let stored = Stored::random(shape, 11);
        let x = Random(12).floats(9 * 512);
        for isa in Isa::available() {
            let matrix = stored.pack(isa, &pool);
            for count in [1, 2, 4, 9] {
                let x = XRows::new(&x, 512, contiguous(count));
                let whole = product(&matrix, 0, &x, 10);
                for tiles in [1, 2, 3, 7] {
                    assert_eq!(product(&matrix, 0, &x, tiles), whole, "{isa} {format:?} {tiles}");
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company_on_the_same_path() {
    let pool = Pool::new(1);
    let format = affine(4, 64, Dtype::Bf16);
    let stored = Stored::random(MatrixShape { n_experts: 1, rows: 64, cols: 512, format }, 5);
    let x = Random(6).floats(200 * 512);
    for isa in Isa::available() {
        let matrix = stored.pack(isa, &pool);
        for counts in [[1, 2, 3, 4], [5, 13, 40, 200]] {
            let products =
                counts.map(|n| product(&matrix, 0, &XRows::new(&x, 512, contiguous(n)), 4));
            for pair in products.windows(2) {
                assert_eq!(pair[0][..64], pair[1][..64], "{isa} {counts:?}");
            }
        }
    }
}

#[test]
fn inputs_that_are_prepared_once_serve_no_other_product() {
    let pool = Pool::new(1);
    let formats = [(4, 64), (4, 32), (8, 64), (2, 64)];
    let stored = formats.map(|(bits, group_size)| {
        let format = affine(bits, group_size, Dtype::Bf16);
        Stored::random(MatrixShape { n_experts: 1, rows: 48, cols: 256, format }, 5)
    });
    let mut x = Random(6).floats(5 * 256);
    for isa in Isa::available() {
        let matrices: Vec<_> = stored.iter().map(|stored| stored.pack(isa, &pool)).collect();
        let mut scratch = Scratch::default();
        for round in 0..3 {
            for matrix in &matrices {
                for (first, count) in [(0, 1), (1, 1), (0, 1), (0, 2), (1, 4), (0, 4), (0, 3)] {
                    let x = XRows::new(&x, 256, RowIndex::Contiguous { first, count });
                    let found = product_with(matrix, 0, &x, 2, &mut scratch);
                    let format = matrix.shape().format;
                    let what = format!("round {round}, {isa} {format:?}, rows {first}+{count}");
                    assert_eq!(found, product(matrix, 0, &x, 2), "{what}");
                }
            }
            x.rotate_left(7);
            scratch.forget();
        }
    }
}

#[test]
fn every_row_of_a_long_chunk_equals_the_exact_sums() {
    let pool = Pool::new(1);
    for format in [affine(4, 64, Dtype::Bf16), MatrixFormat::Float(Dtype::Bf16)] {
        let shape = MatrixShape { n_experts: 1, rows: 20, cols: 384, format };
        let stored = Stored::random(shape, 5);
        let x = Random(6).floats(203 * 384);
        for isa in Isa::available() {
            let matrix = stored.pack(isa, &pool);
            let found = product(&matrix, 0, &XRows::new(&x, 384, contiguous(203)), 2);
            for (i, &found) in found.iter().enumerate() {
                let expected = stored.dot(0, i % 20, &x[i / 20 * 384..][..384]);
                assert_close(found, expected, &format!("{isa} {format:?}, element {i}"));
            }
        }
    }
}

#[test]
fn experts_read_gathered_rows_and_add_to_scattered_ones() {
    let pool = Pool::new(2);
    for format in [affine(4, 64, Dtype::Bf16), MatrixFormat::Float(Dtype::Bf16)] {
        let shape = MatrixShape { n_experts: 3, rows: 40, cols: 128, format };
        let stored = Stored::random(shape, 21);
        let x = Random(22).floats(10 * 128);
        for isa in Isa::available() {
            let matrix = stored.pack(isa, &pool);
            for list in [&[7u32][..], &[17, 4, 9], &[0, 3, 5, 8, 12, 13, 19]] {
                let before = Random(23).floats(20 * 50);
                let mut out = before.clone();
                let x = XRows::new(&x, 128, RowIndex::Listed { list, divisor: 2 });
                let rows = OutRows::exclusive(&mut out, 50, RowIndex::Listed { list, divisor: 1 });
                matrix.multiply(2, 1..3, &x, &rows, Mode::Accumulate, &mut Scratch::default());
                for (i, (&found, &before)) in out.iter().zip(&before).enumerate() {
                    let (slot, col) = (i / 50, i % 50);
                    if list.contains(&(slot as u32)) && (16..40).contains(&col) {
                        let row = list.iter().position(|&l| l as usize == slot).unwrap();
                        let (sum, size) = stored.dot(2, col, x.row(row, 128));
                        assert_close(found, (sum + f64::from(before), size + 1.0), "scattered");
                    } else {
                        assert_eq!(found, before, "{isa}: element {i} is not the product's");
                    }
                }
            }
        }
    }
}

#[test]
fn the_gated_product_equals_its_two_halves() {
    let pool = Pool::new(1);
    let shape = |bits| MatrixShape {
        n_experts: 2,
        rows: 90,
        cols: 256,
        format: affine(bits, 64, Dtype::Bf16),
    };
    let x = Random(1).floats(30 * 256);
    for isa in Isa::available() {
        for (gate_bits, up_bits) in [(4, 4), (4, 8)] {
            let gate = Stored::random(shape(gate_bits), 2).pack(isa, &pool);
            let up = Stored::random(shape(up_bits), 3).pack(isa, &pool);
            for count in [1, 3, 30] {
                let x = XRows::new(&x, 256, contiguous(count));
                let (g, u) = (product(&gate, 1, &x, 6), product(&up, 1, &x, 6));
                let mut out = vec![0.0; count * 90];
                let rows = OutRows::exclusive(&mut out, 90, contiguous(count));
                Matrix::multiply_gated(&gate, &up, 1, 0..6, &x, &rows, &mut Scratch::default());
                for ((&found, g), u) in out.iter().zip(g).zip(u) {
                    let expected = g / (1.0 + (-g).exp()) * u;
                    assert!((found - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "{isa}");
                }
            }
        }
    }
}

#[test]
fn the_first_read_error_is_returned_and_ends_the_load() {
    let format = affine(4, 64, Dtype::Bf16);
    let shape = MatrixShape { n_experts: 4, rows: 64, cols: 256, format };
    let broken = || DeviceError::Memory { what: "third expert".into(), bytes: 3 };
    let read = |_: MatrixPart, expert: usize, _: Range<usize>, _: &mut [u8]| {
        if expert == 2 { Err(broken()) } else { Ok(()) }
    };
    let result = Matrix::pack("m", shape, Isa::Portable, &Pool::new(2), &|_| {}, &read);
    assert_eq!(result.unwrap_err().to_string(), broken().to_string());
}

#[test]
fn progress_counts_every_stored_byte_and_memory_is_no_larger_than_the_file() {
    for format in formats() {
        let shape = MatrixShape { n_experts: 3, rows: 64, cols: 256, format };
        let stored = Stored::random(shape, 1);
        let seen = std::sync::atomic::AtomicU64::new(0);
        let count = |bytes| {
            seen.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        };
        let read = |_: MatrixPart, _: usize, _: Range<usize>, _: &mut [u8]| Ok(());
        let pool = Pool::new(2);
        let matrix = Matrix::pack("m", stored.shape, Isa::Portable, &pool, &count, &read).unwrap();
        assert_eq!(seen.into_inner(), shape.bytes());
        assert_eq!(matrix.bytes(), shape.bytes());
    }
}

proptest! {
    #[test]
    fn every_number_of_a_chunk_is_found_where_the_bit_stream_has_it(
        bits in prop::sample::select(vec![2usize, 3, 4, 5, 6, 8]),
        words in prop::collection::vec(any::<u32>(), 8),
    ) {
        let mask = (1u32 << bits) - 1;
        for j in 0..CHUNK {
            let expected: u32 = (0..bits)
                .map(|b| (words[(j * bits + b) / 32] >> ((j * bits + b) % 32) & 1) << b)
                .sum();
            let place = Place::of(bits, j);
            let number = match place {
                Place::Low { word, shift } => words[word] & mask << shift,
                Place::High { word, shift } => words[word] >> 16 & mask << shift,
                Place::Across { word, shift } => words[word] >> shift & mask,
                Place::Split { word, shift } => {
                    (words[word] >> shift | words[word + 1] << (32 - shift)) & mask
                }
            };
            prop_assert_eq!(number as f32 * place.factor(), expected as f32);
        }
    }
}
