//! Safetensors files that lie.

use lily_checkpoint::write::header;
use lily_checkpoint::{Checkpoint, CheckpointError};
use proptest::prelude::*;

use crate::support::{Model, SINGLE};

/// Opens a usual model whose only shard is replaced by `bytes`.
fn open(bytes: &[u8]) -> Result<Checkpoint, CheckpointError> {
    let mut model = Model::usual();
    model.shards.clear();
    model.files.insert(SINGLE.into(), bytes.to_vec());
    model.open()
}

fn file(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// Declares one test per rule: a file with this header and so many bytes of data is refused.
macro_rules! lies {
    ($($name:ident: $json:expr, $data:expr => $words:expr;)*) => {$(
        #[test]
        fn $name() {
            let error = open(&file($json, $data)).unwrap_err();
            assert_eq!(error.to_string(), $words);
        }
    )*};
}

lies! {
    an_unknown_element_type:
        r#"{"a": {"dtype": "Q4", "shape": [1], "data_offsets": [0, 4]}}"#, 4 =>
        "tensor a in model.safetensors has unknown dtype Q4";
    a_product_of_dimensions_that_overflows:
        r#"{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}}"#, 0 =>
        "tensor a in model.safetensors has impossible shape [4294967296, 4294967296]";
    an_overflow_hidden_behind_a_zero:
        r#"{"a": {"dtype": "F32", "shape": [0, 4294967296, 4294967296], "data_offsets": [0, 0]}}"#, 0 =>
        "tensor a in model.safetensors has impossible shape [0, 4294967296, 4294967296]";
    nine_dimensions:
        r#"{"a": {"dtype": "U8", "shape": [1, 1, 1, 1, 1, 1, 1, 1, 1], "data_offsets": [0, 1]}}"#, 1 =>
        "tensor a in model.safetensors has impossible shape [1, 1, 1, 1, 1, 1, 1, 1, 1]";
    half_a_byte:
        r#"{"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}"#, 1 =>
        "tensor a in model.safetensors has impossible shape [3]";
    a_range_that_runs_backwards:
        r#"{"a": {"dtype": "U8", "shape": [1], "data_offsets": [2, 1]}}"#, 2 =>
        "tensor a in model.safetensors has byte range 2..1";
    a_range_of_another_size:
        r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}"#, 4 =>
        "tensor a in model.safetensors occupies 4 bytes, 8 expected for F32 [2]";
    overlapping_tensors:
        r#"{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}"#, 6 =>
        "tensors a and b in model.safetensors overlap";
    a_hole_between_tensors:
        r#"{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            "b": {"dtype": "U8", "shape": [4], "data_offsets": [6, 10]}}"#, 10 =>
        "bytes 4..6 before tensor b in model.safetensors belong to no tensor";
    a_hole_before_the_first_tensor:
        r#"{"a": {"dtype": "U8", "shape": [4], "data_offsets": [1, 5]}}"#, 5 =>
        "bytes 0..1 before tensor a in model.safetensors belong to no tensor";
    a_truncated_file:
        r#"{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}"#, 3 =>
        "model.safetensors is truncated: 72 bytes expected, 71 found";
    bytes_after_the_last_tensor:
        r#"{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}"#, 5 =>
        "model.safetensors has 73 bytes, 72 expected";
    ranges_at_the_end_of_the_number_line:
        r#"{"a": {"dtype": "U8", "shape": [1], "data_offsets": [18446744073709551614, 18446744073709551615]}}"#,
        1 =>
        "bytes 0..18446744073709551614 before tensor a in model.safetensors belong to no tensor";
}

#[test]
fn a_tensor_named_twice_is_refused_by_name() {
    let json = r#"{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                   "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}"#;
    let error = open(&file(json, 2)).unwrap_err();
    assert!(matches!(error, CheckpointError::HeaderDuplicate { tensor, .. } if tensor == "a"));
}

#[test]
fn headers_of_the_wrong_form_are_refused() {
    for json in [
        "",
        "[]",
        "{",
        r#"{"a": 1}"#,
        r#"{"a": {"dtype": "U8", "shape": [1]}}"#,
        r#"{"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}"#,
        r#"{"a": {"dtype": "U8", "shape": [1.5], "data_offsets": [0, 1]}}"#,
        r#"{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}"#,
        r#"{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "more": 1}}"#,
        r#"{"a": {"dtype": "U8", "dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}"#,
        r#"{"a": {"dtype": "U8", "shape": [36893488147419103232], "data_offsets": [0, 1]}}"#,
    ] {
        let error = open(&file(json, 1)).unwrap_err();
        assert!(matches!(error, CheckpointError::Header { .. }), "{json}: {error}");
    }
}

#[test]
fn deep_nesting_in_a_header_is_refused() {
    for json in [
        format!("{{\"a\": {}", "[".repeat(1_000_000)),
        format!("{{\"__metadata__\": {}", "[".repeat(1_000_000)),
    ] {
        let error = open(&file(&json, 0)).unwrap_err();
        assert!(matches!(error, CheckpointError::Header { .. }));
    }
}

#[test]
fn a_header_length_beyond_the_file_or_the_limit_is_refused() {
    for short in [&[][..], &[1, 2, 3]] {
        assert!(matches!(open(short).unwrap_err(), CheckpointError::Truncated { expected: 8, .. }));
    }
    let error = open(&100_u64.to_le_bytes()).unwrap_err();
    assert!(matches!(error, CheckpointError::Truncated { expected: 108, found: 8, .. }));
    let error = open(&u64::MAX.to_le_bytes()).unwrap_err();
    assert!(matches!(error, CheckpointError::HeaderTooLong { found: u64::MAX, .. }));
}

#[test]
fn a_padded_header_and_empty_tensors_are_fine() {
    let mut model = Model::usual();
    model.float("vision_tower.empty", "F32", &[0, 3]);
    let tensors = model.shards.remove(SINGLE).unwrap();
    let bytes = Model::shard_bytes(&tensors);
    let json = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut padded = (json as u64 + 13).to_le_bytes().to_vec();
    padded.extend_from_slice(&bytes[8..8 + json]);
    padded.extend_from_slice(&[b' '; 13]);
    padded.extend_from_slice(&bytes[8 + json..]);
    open(&padded).unwrap();
}

#[test]
fn a_file_cut_after_opening_is_an_error_not_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    Model::usual().write(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let file = std::fs::File::options().write(true).open(dir.path().join(SINGLE)).unwrap();
    file.set_len(100).unwrap();
    let error = checkpoint.read_vector("norm").unwrap_err();
    assert!(matches!(error, CheckpointError::Io { path, .. } if path == SINGLE));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        length in 0_u64..250,
        honest in any::<bool>(),
    ) {
        let mut file = if honest { length.to_le_bytes().to_vec() } else { Vec::new() };
        file.extend_from_slice(&bytes);
        prop_assert!(open(&file).is_err());
    }

    #[test]
    fn arbitrary_headers_never_panic(
        entries in proptest::collection::vec(
            ("[ab.]{1,3}", "BF16|U32|F32|F4|X", proptest::collection::vec(any::<u64>(), 0..4),
             any::<u64>(), any::<u64>()),
            0..4,
        ),
        small in any::<bool>(),
    ) {
        let mut map = serde_json::Map::new();
        for (name, dtype, mut shape, mut start, mut end) in entries {
            if small {
                shape.iter_mut().for_each(|dim| *dim %= 4);
                (start, end) = (start % 16, end % 16);
            }
            let entry =
                serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            map.insert(name, entry);
        }
        prop_assert!(open(&file(&serde_json::Value::Object(map).to_string(), 8)).is_err());
    }

    #[test]
    fn a_changed_file_never_panics(
        position in any::<proptest::sample::Index>(),
        value in any::<u8>(),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut bytes = Model::shard_bytes(&Model::usual().shards[SINGLE]);
        let entries = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let position = position.index(8 + entries);
        bytes[position] = value;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        // A changed space or a changed skipped name may still be a right file.
        if let Ok(checkpoint) = open(&bytes) {
            let usual = Model::usual().open().unwrap();
            prop_assert_eq!(checkpoint.manifest(), usual.manifest());
        }
    }

    #[test]
    fn a_changed_configuration_never_panics(
        position in any::<proptest::sample::Index>(),
        text in "[0-9a-z{}\\[\\],:\".-]{0,4}",
    ) {
        let model = Model::usual();
        let dir = tempfile::tempdir().unwrap();
        model.write(dir.path());
        let mut config = model.config.to_string();
        let position = position.index(config.len());
        config.replace_range(position..=position, &text);
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let opened = Checkpoint::open(dir.path());
        let described = lily_checkpoint::describe(dir.path());
        // Whatever opens can also be described.
        prop_assert!(opened.is_err() || described.is_ok());
    }

    #[test]
    fn a_written_header_is_read_back(
        lens in proptest::collection::vec(0_usize..5, 0..6),
    ) {
        let names: Vec<String> = (0..lens.len()).map(|i| format!("visual.{i}")).collect();
        let shapes: Vec<[usize; 1]> = lens.iter().map(|len| [*len]).collect();
        let entries = names.iter().zip(&shapes).map(|(n, s)| (&**n, "F32", &s[..], 4 * s[0] as u64));
        let mut bytes = header(entries);
        bytes.resize(bytes.len() + 4 * lens.iter().sum::<usize>(), 0);
        // The file is sound; what it lacks is the model.
        prop_assert!(matches!(open(&bytes).unwrap_err(), CheckpointError::MissingHead));
    }
}
