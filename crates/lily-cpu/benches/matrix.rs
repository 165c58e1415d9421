//! Speed of matrix products and of packing, by format.
//!
//! `cargo bench -p lily-cpu --bench matrix [-- FILTER]`; best of several passes, GB/s of stored
//! weights for up to four rows, whose inputs are prepared once for all passes, GFLOP/s for many. `LILY_ISA` and `LILY_THREADS` choose what is measured.
#![allow(clippy::print_stdout, reason = "a report for people")]

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use lily_checkpoint::MatrixPart;
use lily_checkpoint::manifest::{Dtype, MatrixFormat, MatrixShape};
use lily_cpu::matrix::{Matrix, Mode, OutRows, RowIndex, Scratch, XRows};
use lily_cpu::pool::{Pool, SharedSlice};
use lily_cpu::simd::Isa;

/// The shortest of many passes: other work on the machine lengthens some, and shortens none.
fn best(mut pass: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    for n in 1.. {
        let start = Instant::now();
        pass();
        best = best.min(start.elapsed().as_secs_f64());
        if n >= 3 && begin.elapsed().as_secs_f64() > 0.5 {
            break;
        }
    }
    best
}

fn random(shape: MatrixShape, isa: Isa, pool: &Pool) -> Matrix {
    let read = |part: MatrixPart, expert: usize, rows: Range<usize>, out: &mut [u8]| {
        if part == MatrixPart::Weight && !matches!(shape.format, MatrixFormat::Float(_)) {
            let mut state = (expert * shape.rows + rows.start) as u64 + 1;
            for word in out.chunks_mut(8) {
                state =
                    state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                word.copy_from_slice(&state.rotate_left(32).to_le_bytes()[..word.len()]);
            }
        } else {
            out.fill(0x3c);
        }
        Ok(())
    };
    Matrix::pack("bench", shape, isa, pool, &|_| {}, &read).expect("enough memory")
}

/// Sum of a plain read of `bytes` bytes by all threads: what the memory gives.
fn read_bandwidth(pool: &Pool) -> f64 {
    let data = vec![1u64; 64 << 20];
    let parts = 64;
    let time = best(|| {
        pool.run(parts, |part, _| {
            let n = data.len() / parts;
            let mut sums = [0u64; 16];
            for line in data[part * n..][..n].chunks_exact(16) {
                for (sum, &x) in sums.iter_mut().zip(line) {
                    *sum ^= x;
                }
            }
            black_box(sums);
        });
    });
    (data.len() * 8) as f64 / time / 1e9
}

fn product(matrix: &Matrix, x: &[f32], out: &mut [f32], m: usize, pool: &Pool) {
    let shape = *matrix.shape();
    let per_task = matrix.tiles_per_task(shape.n_experts, pool.threads());
    let tasks = matrix.n_tiles().div_ceil(per_task);
    let out = SharedSlice::new(out);
    thread_local! {
        static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::default();
    }
    pool.run(tasks * shape.n_experts, |task, _| {
        let first = task % tasks * per_task;
        let tiles = first..(first + per_task).min(matrix.n_tiles());
        let expert = task / tasks;
        let rows = RowIndex::Contiguous { first: 0, count: m };
        let x = XRows::new(x, shape.cols, rows);
        let index = RowIndex::Contiguous { first: expert * m, count: m };
        // SAFETY: tasks have their own rows or columns.
        let out = unsafe { OutRows::new(out, shape.rows, index) };
        SCRATCH.with_borrow_mut(|scratch| {
            matrix.multiply(expert, tiles, &x, &out, Mode::Overwrite, scratch);
        });
    });
}

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let isa = std::env::var("LILY_ISA").map_or(Isa::detect(), |w| w.parse().expect("LILY_ISA"));
    let threads = std::env::var("LILY_THREADS")
        .map_or(std::thread::available_parallelism().map_or(1, usize::from), |n| {
            n.parse().expect("LILY_THREADS")
        });
    let pool = Pool::new(threads);
    println!("{isa}, {} threads, plain read {:.1} GB/s", pool.threads(), read_bandwidth(&pool));
    let affine = |bits| MatrixFormat::Affine { bits, group_size: 64, scale: Dtype::Bf16 };
    let mut cases = vec![
        ("cached 4-bit".to_owned(), 1, 2048, 2048, affine(4)),
        ("head 4-bit".to_owned(), 1, 124_160, 2048, affine(4)),
        ("experts gate 4-bit".to_owned(), 256, 512, 2048, affine(4)),
        ("experts down 4-bit".to_owned(), 256, 2048, 512, affine(4)),
        ("qkv 4-bit".to_owned(), 1, 8192, 2048, affine(4)),
    ];
    for bits in [2, 3, 5, 6, 8] {
        cases.push((format!("{bits}-bit"), 1, 32_768, 2048, affine(bits)));
    }
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        cases.push((format!("{dtype:?}"), 1, 16_384, 2048, MatrixFormat::Float(dtype)));
    }
    for (name, n_experts, rows, cols, format) in cases {
        if !filter.is_empty() && !filter.iter().any(|f| name.contains(f)) {
            continue;
        }
        let shape = MatrixShape { n_experts, rows, cols, format };
        let start = Instant::now();
        let matrix = random(shape, isa, &pool);
        let packing = start.elapsed().as_secs_f64();
        print!("{name:20} pack {:5.2} GB/s |", shape.bytes() as f64 / packing / 1e9);
        let x: Vec<f32> = (0..512 * cols).map(|i| (i % 17) as f32 - 8.0).collect();
        for m in [1, 2, 4, 6, 16, 64, 512] {
            if n_experts * rows * m > 64 << 20 {
                continue;
            }
            let mut out = vec![0.0; n_experts * rows * m];
            let time = best(|| product(&matrix, &x, &mut out, m, &pool));
            let flop = 2.0 * (n_experts * rows * cols * m) as f64;
            if m <= 4 {
                print!(" {m}: {:.1} GB/s", shape.bytes() as f64 / time / 1e9);
            } else {
                print!(" {m}: {:.0} GFLOP/s", flop / time / 1e9);
            }
        }
        println!();
    }
}
