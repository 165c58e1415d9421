//! Random checkpoints.

use lily_checkpoint::manifest::{MatrixFormat, WeightShape};
use lily_checkpoint::random::{RandomShape, RandomSpec, write_random};
use lily_checkpoint::{Checkpoint, CheckpointError, MatrixPart, describe};

fn tiny(layers: usize) -> RandomSpec {
    RandomSpec { shape: RandomShape::tiny(), ..RandomSpec::new(layers) }
}

fn bf16(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
}

/// First expert of a matrix, dequantised.
fn dequantised(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let WeightShape::Matrix(matrix) = checkpoint.manifest().get(name).unwrap().shape else {
        panic!("{name} is no matrix");
    };
    let MatrixFormat::Affine { bits, group_size, .. } = matrix.format else {
        panic!("{name} is not quantised");
    };
    let read = |part, row_bytes: usize| {
        let mut out = vec![0; matrix.rows * row_bytes];
        checkpoint.read_rows(name, part, 0, 0..matrix.rows, &mut out).unwrap();
        out
    };
    let words = read(MatrixPart::Weight, matrix.cols * bits as usize / 8);
    let scales = bf16(&read(MatrixPart::Scales, matrix.cols / group_size * 2));
    let biases = bf16(&read(MatrixPart::Biases, matrix.cols / group_size * 2));
    (0..matrix.rows * matrix.cols)
        .map(|i| {
            let q = match bits {
                4 => words[i / 2] >> (4 * (i % 2)) & 15,
                _ => words[i],
            };
            scales[i / group_size] * f32::from(q) + biases[i / group_size]
        })
        .collect()
}

#[test]
fn a_random_checkpoint_opens_without_a_warning_and_equals_its_description() {
    let dir = tempfile::tempdir().unwrap();
    for layers in [1, 4, 5] {
        let path = dir.path().join(format!("deep/{layers}"));
        write_random(&path, &tiny(layers)).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.warnings(), &[] as &[String]);
        assert_eq!(checkpoint.config().layers.len(), layers);
        let (config, manifest) = describe(&path).unwrap();
        assert_eq!((&config, &manifest), (checkpoint.config(), checkpoint.manifest()));
    }
}

#[test]
fn the_same_specification_gives_the_same_files_and_another_seed_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = "model-00001-of-00001.safetensors";
    let written = |name: &str, seed| {
        let path = dir.path().join(name);
        write_random(&path, &RandomSpec { seed, ..tiny(2) }).unwrap();
        std::fs::read(path.join(file)).unwrap()
    };
    let first = written("a", 1);
    assert_eq!(first, written("b", 1));
    assert_ne!(first, written("c", 2));
    // Fixed for all machines: any change of the generator shows here.
    let hash = first.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    assert_eq!(hash, 2_268_452_855_122_894_775);
}

#[test]
fn weights_are_centred_and_scaled_by_their_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    write_random(&path, &tiny(4)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for (name, expected) in [
        ("embed_tokens", 1.0),
        ("layers.0.linear_attn.in_proj_qkv", 1.0 / 128_f32.sqrt()),
        ("layers.3.self_attn.o_proj", 1.0 / 256_f32.sqrt()),
        ("layers.2.mlp.switch_mlp.down_proj", 1.0 / 64_f32.sqrt()),
        ("layers.1.mlp.gate", 2.0 / 128_f32.sqrt()),
    ] {
        let values = dequantised(&checkpoint, name);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.1 * expected, "{name}: mean {mean}");
        assert!((square.sqrt() / expected - 1.0).abs() < 0.1, "{name}: {}", square.sqrt());
    }
    let norm = checkpoint.read_vector("norm").unwrap();
    assert!(norm.iter().all(|value| (0.89..1.11).contains(value)));
}

#[test]
fn a_directory_that_holds_anything_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine"), "").unwrap();
    let error = write_random(dir.path(), &tiny(1)).unwrap_err();
    assert!(matches!(error, CheckpointError::NotEmpty { .. }));
    let error = write_random(&dir.path().join("mine"), &tiny(1)).unwrap_err();
    assert!(matches!(error, CheckpointError::NotEmpty { .. }));
    // What lies behind a file does not exist, so it is not in the way either.
    let error = write_random(&dir.path().join("mine/below"), &tiny(1)).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_empty_directory_gives_way_and_nothing_is_left_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    std::fs::create_dir(&path).unwrap();
    write_random(&path, &tiny(1)).unwrap();
    Checkpoint::open(&path).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_shape_that_no_model_has_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    let odd = RandomShape { hidden_size: 100, ..RandomShape::tiny() };
    for (layers, shape) in [(0, RandomShape::tiny()), (usize::MAX, RandomShape::tiny()), (1, odd)] {
        let spec = RandomSpec { layers, seed: 0, shape };
        assert!(write_random(&path, &spec).is_err());
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
