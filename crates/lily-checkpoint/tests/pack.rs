//! `.lily` files: the same checkpoint in one file, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use lily_checkpoint::manifest::{MatrixFormat, WeightShape};
use lily_checkpoint::pack::{ALIGN, PackError, write_pack};
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
    assert!(!packed.dir.path().join("again.lily.partial").exists());
}

#[test]
fn a_file_that_is_no_pack_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.lily");
    for bytes in [&b""[..], b"LILY", b"LILYPACX............................"] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(refusal(&path), PackError::Magic);
    }
    fs::write(&path, b"LILYPACK\x02\0\0\0............").unwrap();
    assert_eq!(refusal(&path), PackError::Version { found: 2 });
    fs::write(&path, b"LILYPACK\x01\0\0\0....\xff\xff\xff\xff\xff\xff\xff\xff").unwrap();
    assert!(matches!(refusal(&path), PackError::Truncated { .. }));
}

#[test]
fn damage_is_found_by_name() {
    let packed = Packed::new();
    let good = fs::read(packed.path()).unwrap();
    let (header, _) = split(&good);
    let offset = |kind: &str, i: usize| header[kind][i]["offset"].as_u64().unwrap() as usize;
    for (at, what) in [
        (30, "the header"),
        (offset("files", 0), "config.json"),
        (offset("weights", 0), "embed_tokens"),
        (offset("weights", 3), header["weights"][3]["name"].as_str().unwrap()),
    ] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(packed.path(), bad).unwrap();
        match refusal(&packed.path()) {
            PackError::Checksum { what: found, .. } => assert_eq!(found, what),
            other => panic!("{other:?}"),
        }
    }
    fs::write(packed.path(), &good[..good.len() - ALIGN as usize]).unwrap();
    assert!(matches!(refusal(&packed.path()), PackError::Truncated { .. }));
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
