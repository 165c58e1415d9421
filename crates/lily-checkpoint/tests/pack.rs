//! `.lily` files: the same checkpoint in one file, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use lily_checkpoint::manifest::{MatrixFormat, WeightShape};
use lily_checkpoint::pack::{ALIGN, PackError, partial_path, write_pack};
use lily_checkpoint::packed::PackedMatrix;
use lily_checkpoint::random::{RandomShape, RandomSpec, write_random};
use lily_checkpoint::{Checkpoint, CheckpointError, MatrixPart, describe};
use proptest::prelude::*;

struct Packed {
    dir: tempfile::TempDir,
    source: Checkpoint,
}

impl Packed {
    fn new() -> Packed {
        let dir = tempfile::tempdir().unwrap();
        let spec = RandomSpec { shape: RandomShape::tiny(), ..RandomSpec::new(4) };
        write_random(&dir.path().join("model"), &spec).unwrap();
        fs::write(dir.path().join("model/tokenizer.json"), "{\"a\": 1}").unwrap();
        let source = Checkpoint::open(&dir.path().join("model")).unwrap();
        let packed = Packed { dir, source };
        write_pack(&packed.source, &packed.path(), &mut |_, _| ()).unwrap();
        packed
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("model.lily")
    }
}

fn refusal(path: &Path) -> PackError {
    match Checkpoint::open(path).and_then(|pack| pack.verify(&mut |_, _| ())) {
        Err(CheckpointError::Pack { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// Header and everything behind it.
fn split(file: &[u8]) -> (serde_json::Value, Vec<u8>) {
    let len = u64::from_le_bytes(file[16..24].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[24..24 + len]).unwrap(), file[ALIGN as usize..].to_vec())
}

/// The file with another header, whose checksum is right.
fn join(header: &serde_json::Value, rest: &[u8]) -> Vec<u8> {
    let json = serde_json::to_vec(header).unwrap();
    let mut file = b"LILYPACK".to_vec();
    file.extend(1u32.to_le_bytes());
    file.extend(crc32fast::hash(&json).to_le_bytes());
    file.extend((json.len() as u64).to_le_bytes());
    file.extend(json);
    assert!(file.len() as u64 <= ALIGN);
    file.resize(ALIGN as usize, 0);
    file.extend_from_slice(rest);
    file
}

#[test]
fn a_packed_checkpoint_holds_the_same_numbers() {
    let packed = Packed::new();
    let pack = Checkpoint::open(&packed.path()).unwrap();
    pack.verify(&mut |_, _| ()).unwrap();
    assert_eq!(pack.config(), packed.source.config());
    let names = |c: &Checkpoint| -> Vec<String> {
        c.manifest().weights().iter().map(|w| w.name.clone()).collect()
    };
    assert_eq!(names(&pack), names(&packed.source));
    for info in packed.source.manifest().weights() {
        let name = &info.name;
        let WeightShape::Matrix(shape) = info.shape else {
            let read = |c: &Checkpoint| match info.shape {
                WeightShape::Conv { .. } => c.read_conv(name).unwrap(),
                _ => c.read_vector(name).unwrap(),
            };
            assert_eq!(read(&pack), read(&packed.source), "{name}");
            continue;
        };
        assert_eq!(pack.manifest().get(name).unwrap().shape, info.shape, "{name}");
        let parts = match shape.format {
            MatrixFormat::Affine { bits, group_size, scale } => {
                let side = shape.cols / group_size * scale.bytes();
                vec![
                    (MatrixPart::Weight, shape.cols * bits as usize / 8),
                    (MatrixPart::Scales, side),
                    (MatrixPart::Biases, side),
                ]
            }
            MatrixFormat::Float(dtype) => vec![(MatrixPart::Weight, shape.cols * dtype.bytes())],
        };
        for (part, row_bytes) in parts {
            for expert in 0..shape.n_experts {
                let rows = shape.rows / 2..shape.rows;
                let read = |c: &Checkpoint| {
                    let mut out = vec![0; rows.len() * row_bytes];
                    c.read_rows(name, part, expert, rows.clone(), &mut out).unwrap();
                    out
                };
                assert_eq!(read(&pack), read(&packed.source), "{name} {part:?} {expert}");
            }
        }
    }
}

#[test]
fn weights_are_mapped_on_pages_as_devices_use_them() {
    let packed = Packed::new();
    assert!(packed.source.mapped("norm").is_none());
    let pack = Checkpoint::open(&packed.path()).unwrap();
    for info in pack.manifest().weights() {
        let (mapping, range) = pack.mapped(&info.name).unwrap();
        assert!((range.start as u64).is_multiple_of(ALIGN), "{}", info.name);
        let bytes = &mapping.bytes()[range];
        let WeightShape::Matrix(shape) = info.shape else {
            continue;
        };
        let layout = PackedMatrix::of(&shape).unwrap();
        assert_eq!(bytes.len() as u64, layout.bytes);
        let (expert, rows) = (shape.n_experts - 1, 1..shape.rows);
        let of = |range: std::ops::Range<u64>| range.start as usize..range.end as usize;
        let (words, side) = (of(layout.words(expert, &rows)), of(layout.side(expert, &rows)));
        let (mut w, mut s) = (vec![0; words.len()], vec![0; side.len()]);
        packed.source.pack_rows(&info.name, expert, rows, &mut w, &mut s).unwrap();
        assert!(bytes[words] == w[..] && bytes[side] == s[..], "{}", info.name);
    }
    assert!((fs::metadata(packed.path()).unwrap().len()).is_multiple_of(ALIGN));
}

#[test]
fn side_files_travel_with_the_weights() {
    let packed = Packed::new();
    let pack = Checkpoint::open(&packed.path()).unwrap();
    assert_eq!(pack.side_file("tokenizer.json").unwrap().unwrap(), b"{\"a\": 1}");
    assert!(pack.side_file("chat_template.jinja").unwrap().is_none());
    let (config, manifest) = describe(&packed.path()).unwrap();
    assert_eq!(&config, packed.source.config());
    assert_eq!(manifest.weights().len(), packed.source.manifest().weights().len());
}

#[test]
fn a_pack_of_a_pack_is_the_same_file() {
    let packed = Packed::new();
    let again = packed.dir.path().join("again.lily");
    let pack = Checkpoint::open(&packed.path()).unwrap();
    write_pack(&pack, &again, &mut |_, _| ()).unwrap();
    assert!(fs::read(packed.path()).unwrap() == fs::read(&again).unwrap());
    assert!(!partial_path(&again).exists());
}

#[test]
fn a_file_that_is_no_pack_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.lily");
    for bytes in [&b"LILX"[..], b"LILYPACX............................"] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(refusal(&path), PackError::Magic);
    }
    fs::write(&path, b"LILYPACK\x02\0\0\0............").unwrap();
    assert_eq!(refusal(&path), PackError::Version { found: 2 });
    assert!(refusal(&path).to_string().contains("damaged"));
}

#[test]
fn a_file_that_ends_anywhere_but_at_its_end_is_called_empty_or_truncated_or_too_long() {
    let packed = Packed::new();
    let good = fs::read(packed.path()).unwrap();
    fs::write(packed.path(), "").unwrap();
    assert_eq!(refusal(&packed.path()), PackError::Empty);
    let page = ALIGN as usize;
    for len in [1, 5, 8, 23, 24, 100, page, good.len() / 2, good.len() - page, good.len() - 1] {
        fs::write(packed.path(), &good[..len]).unwrap();
        let error = Checkpoint::open(&packed.path()).unwrap_err();
        let CheckpointError::Pack { source, .. } = error else { panic!("{len}: {error:?}") };
        assert!(matches!(source, PackError::Truncated { .. }), "{len}: {source:?}");
        assert!(source.to_string().starts_with("truncated: "), "{source}");
    }
    for more in [1, page] {
        let mut long = good.clone();
        long.resize(good.len() + more, 0);
        fs::write(packed.path(), long).unwrap();
        let (end, len) = (good.len() as u64, (good.len() + more) as u64);
        let error = Checkpoint::open(&packed.path()).unwrap_err();
        let CheckpointError::Pack { source, .. } = error else { panic!("{error:?}") };
        assert_eq!(source, PackError::TrailingBytes { end, len });
    }
}

#[test]
fn a_flipped_bit_in_any_section_is_found_by_name() {
    let packed = Packed::new();
    let good = fs::read(packed.path()).unwrap();
    let (header, _) = split(&good);
    let entries = ["files", "weights"].map(|kind| header[kind].as_array().unwrap().clone());
    let mut after = "the header".to_owned();
    let mut end = 24 + u64::from_le_bytes(good[16..24].try_into().unwrap()) as usize;
    let refused = |at: usize| {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(packed.path(), bad).unwrap();
        refusal(&packed.path())
    };
    let padding = |after: &str, at: usize| PackError::Padding {
        after: after.to_owned(),
        at: at as u64,
        found: 0x10,
    };
    for at in [0, 8, 12, 16, 24, end - 1] {
        refused(at);
    }
    for entry in entries.concat() {
        let number = |field: &str| entry[field].as_u64().unwrap() as usize;
        let (name, offset, bytes) =
            (entry["name"].as_str().unwrap(), number("offset"), number("bytes"));
        if offset > end {
            assert_eq!(refused(end), padding(&after, end));
            assert_eq!(refused(offset - 1), padding(&after, offset - 1));
        }
        for at in [offset, offset + bytes / 2, offset + bytes - 1] {
            match refused(at) {
                PackError::Checksum { what, .. } => assert_eq!(what, name, "{at}"),
                other => panic!("{name} {at}: {other:?}"),
            }
        }
        (after, end) = (name.to_owned(), offset + bytes);
    }
    if end < good.len() {
        assert_eq!(refused(good.len() - 1), padding(&after, good.len() - 1));
    }
}

#[test]
fn a_pack_that_cannot_get_its_name_leaves_nothing_behind() {
    let packed = Packed::new();
    let taken = packed.dir.path().join("taken.lily");
    fs::create_dir(&taken).unwrap();
    write_pack(&packed.source, &taken, &mut |_, _| ()).unwrap_err();
    assert!(!partial_path(&taken).exists());
}

#[test]
fn a_header_that_contradicts_itself_or_the_configuration_is_refused() {
    let packed = Packed::new();
    let good = fs::read(packed.path()).unwrap();
    let (header, rest) = split(&good);
    type Edit = fn(&mut serde_json::Value);
    let edits: [(&str, Edit); 9] = [
        ("offset", |h| h["weights"][0]["offset"] = 16385.into()),
        ("offset", |h| h["weights"][1]["offset"] = h["weights"][0]["offset"].clone()),
        ("offset", |h| h["weights"][0]["offset"] = 0.into()),
        ("bytes", |h| h["weights"][0]["bytes"] = 256.into()),
        ("bits", |h| h["weights"][0]["format"]["bits"] = 7.into()),
        ("group_size", |h| h["weights"][0]["format"]["group_size"] = 0.into()),
        ("format", |h| h["weights"][0]["format"] = serde_json::json!({"kind": "values"})),
        ("name", |h| h["weights"][1]["name"] = "embed_tokens".into()),
        ("truncated", |h| h["weights"][2]["bytes"] = u64::MAX.into()),
    ];
    for (what, edit) in edits {
        let mut bad = header.clone();
        edit(&mut bad);
        fs::write(packed.path(), join(&bad, &rest)).unwrap();
        match refusal(&packed.path()) {
            PackError::Entry { what: found, .. } => assert_eq!(found, what),
            PackError::Truncated { .. } => assert_eq!(what, "truncated"),
            other => panic!("{what}: {other:?}"),
        }
    }
    let mut bad = header.clone();
    bad["weights"].as_array_mut().unwrap().remove(5);
    fs::write(packed.path(), join(&bad, &rest)).unwrap();
    let error = Checkpoint::open(&packed.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::MissingTensor { .. }), "{error:?}");
    bad["weights"][4]["name"] = "layers.9.surprise".into();
    fs::write(packed.path(), join(&bad, &rest)).unwrap();
    assert!(Checkpoint::open(&packed.path()).is_err());
    bad["extra"] = 1.into();
    fs::write(packed.path(), join(&bad, &rest)).unwrap();
    assert!(matches!(refusal(&packed.path()), PackError::Header { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_header_makes_the_reader_panic(at in 0usize..3000, with: u8, fix: bool) {
        use std::sync::OnceLock;
        static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
        let good = GOOD.get_or_init(|| fs::read(Packed::new().path()).unwrap());
        let mut bad = good.clone();
        bad[at] = with;
        if fix {
            let len = u64::from_le_bytes(bad[16..24].try_into().unwrap());
            if let Some(json) = bad.get(24..(24 + len.min(1 << 40)) as usize) {
                let crc = crc32fast::hash(json);
                bad[12..16].copy_from_slice(&crc.to_le_bytes());
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lily");
        fs::write(&path, bad).unwrap();
        if let Ok(pack) = Checkpoint::open(&path) {
            drop(pack.verify(&mut |_, _| ()));
        }
    }
}
