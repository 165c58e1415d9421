//! The packed form of matrices: words as stored, scale and bias side by side.

use lily_checkpoint::manifest::{Dtype, MatrixFormat, MatrixShape, WeightShape};
use lily_checkpoint::packed::PackedMatrix;
use lily_checkpoint::random::{RandomShape, RandomSpec, write_random};
use lily_checkpoint::{Checkpoint, MatrixPart};

fn affine(n_experts: usize, rows: usize, cols: usize, scale: Dtype) -> MatrixShape {
    let format = MatrixFormat::Affine { bits: 4, group_size: 64, scale };
    MatrixShape { n_experts, rows, cols, format }
}

#[test]
fn the_side_table_starts_at_the_next_multiple_of_the_alignment() {
    let packed = PackedMatrix::of(&affine(3, 5, 128, Dtype::Bf16)).unwrap();
    assert_eq!((packed.row_bytes, packed.side_row_bytes), (64, 8));
    assert_eq!((packed.side_offset, packed.bytes), (1024, 1280));
    assert_eq!(packed.words(2, &(1..4)), (11 * 64)..(14 * 64));
    assert_eq!(packed.side(1, &(0..5)), (1024 + 5 * 8)..(1024 + 10 * 8));
}

#[test]
fn a_float_matrix_has_no_side_table() {
    let shape =
        MatrixShape { format: MatrixFormat::Float(Dtype::Bf16), ..affine(1, 3, 10, Dtype::F32) };
    let packed = PackedMatrix::of(&shape).unwrap();
    assert_eq!((packed.row_bytes, packed.side_row_bytes, packed.bytes), (20, 0, 256));
}

#[test]
fn a_size_that_overflows_has_no_layout() {
    assert_eq!(PackedMatrix::of(&affine(usize::MAX, 8, 64, Dtype::Bf16)), None);
}

#[test]
fn packing_keeps_the_words_and_puts_scale_and_bias_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let spec = RandomSpec { shape: RandomShape::tiny(), ..RandomSpec::new(4) };
    write_random(dir.path(), &spec).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    for info in checkpoint.manifest().weights() {
        let WeightShape::Matrix(shape) = info.shape else { continue };
        let packed = PackedMatrix::of(&shape).unwrap();
        let (expert, rows) = (shape.n_experts - 1, 0..shape.rows);
        let sized = |bytes: std::ops::Range<u64>| vec![0; (bytes.end - bytes.start) as usize];
        let mut words = sized(packed.words(expert, &rows));
        let mut side = sized(packed.side(expert, &rows));
        checkpoint.pack_rows(&info.name, expert, rows.clone(), &mut words, &mut side).unwrap();
        let read = |part, bytes| {
            let mut out = vec![0; bytes];
            checkpoint.read_rows(&info.name, part, expert, rows.clone(), &mut out).unwrap();
            out
        };
        assert_eq!(words, read(MatrixPart::Weight, words.len()), "{}", info.name);
        let scales = read(MatrixPart::Scales, side.len() / 2);
        let biases = read(MatrixPart::Biases, side.len() / 2);
        for (i, pair) in side.chunks_exact(4).enumerate() {
            assert_eq!(pair[..2], scales[2 * i..2 * i + 2], "{} scale {i}", info.name);
            assert_eq!(pair[2..], biases[2 * i..2 * i + 2], "{} bias {i}", info.name);
        }
    }
}
