//! Every format that a matrix may be stored in, in every kind of step, on the emulator and on the CPU
//! device.
//!
//! A tiny random model is stored over and over, with the formats dealt out to its matrices anew each
//! time, so that the matrices of one step differ in format too.

mod support;

use std::path::Path;

use lily_checkpoint::Checkpoint;
use lily_checkpoint::random::{RandomShape, RandomSpec, write_random};
use lily_cpu::{CpuDevice, CpuOptions};
use lily_device::compare::{Prepared, Start, compare_steps};
use lily_device::{Device, NoProgress};
use lily_emulator::{EmulatorDevice, EmulatorOptions};
use lily_model::{BuildOptions, Fusions, build};
use lily_plan::plan::Phase;
use lily_plan::valid::ValidPlan;
use serde_json::{Map, Value, json};

/// Bits (0: plain numbers), group size, and the type of scales or of the numbers.
type Format = (usize, usize, &'static str);

const FORMATS: [Format; 15] = [
    (4, 64, "BF16"),
    (2, 32, "BF16"),
    (3, 64, "F16"),
    (5, 32, "BF16"),
    (6, 128, "BF16"),
    (8, 32, "F32"),
    (0, 1, "BF16"),
    (4, 32, "F16"),
    (3, 32, "F32"),
    (8, 128, "BF16"),
    (0, 1, "F16"),
    (2, 128, "F32"),
    (5, 128, "F16"),
    (4, 128, "F32"),
    (0, 1, "F32"),
];

/// Largest relative difference that the order of sums explains.
const LIMIT: f64 = 2e-5;
const CAPACITY: usize = 64;

#[test]
fn steps_over_matrices_of_any_format_give_what_the_cpu_gives() {
    if !support::has_compiler() {
        return;
    }
    for (first, rows, fusions) in [(0, 1, Fusions::all()), (7, 3, Fusions::none())] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        write_model(&path, first);
        compare(&Checkpoint::open(&path).unwrap(), rows, fusions);
    }
}

fn compare(checkpoint: &Checkpoint, rows: usize, fusions: Fusions) {
    let phase = if rows == 1 { Phase::Decode } else { Phase::Prefill };
    let options = BuildOptions { fusions, ..BuildOptions::new(phase, rows, CAPACITY) };
    let plan = build(checkpoint.config(), checkpoint.manifest(), &options).unwrap();
    let plan = ValidPlan::new(plan).unwrap();

    let cpu = CpuDevice::new(CpuOptions { threads: Some(1), isa: None });
    let mut cpu = cpu.load(checkpoint, &NoProgress).unwrap();
    let emulator = EmulatorDevice::new(EmulatorOptions::default()).unwrap();
    let mut emulator = emulator.load(checkpoint, &NoProgress).unwrap();
    let on_cpu = cpu.prepare(plan.clone()).unwrap();
    let on_emulator = emulator.prepare(plan.clone()).unwrap();

    let vocab = checkpoint.config().vocab_size;
    let start = Start { position: 5, rows, vocab, seed: 11 };
    let reference = Prepared { model: &*cpu, plan: on_cpu };
    let subject = Prepared { model: &*emulator, plan: on_emulator };
    let mut wrong = Vec::new();
    compare_steps(plan.plan(), reference, subject, start, &mut |difference| {
        if difference.relative > LIMIT {
            wrong.push(difference);
        }
    })
    .unwrap();
    assert!(wrong.is_empty(), "{rows} rows: {wrong:#?}");
}

/// A tensor of a safetensors file.
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// Four layers whose matrices have the formats from `first` on, in turn.
fn write_model(path: &Path, first: usize) {
    let shape = RandomShape {
        expert_intermediate_size: 128,
        // Longer than what is staged at a time.
        shared_intermediate_size: 41 * 128,
        vocab_size: 131,
        ..RandomShape::tiny()
    };
    write_random(path, &RandomSpec { layers: 4, seed: 3, shape }).unwrap();

    let mut tensors = Map::new();
    let mut data = Vec::new();
    let mut formats = FORMATS.iter().cycle().skip(first);
    let mut random = Random(first as u64 + 1);
    for file in std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".safetensors") {
            continue;
        }
        let stored = read(&file);
        std::fs::remove_file(&file).unwrap();
        for (name, tensor) in &stored {
            let module = name.strip_suffix(".weight");
            let scales = module.and_then(|module| find(&stored, &format!("{module}.scales")));
            match (module, scales) {
                (Some(module), Some(scales)) => {
                    // The random model's groups are of 64.
                    let mut shape = scales.shape.clone();
                    let cols = shape.pop().unwrap() * 64;
                    for (name, tensor) in
                        matrix(module, &shape, cols, *formats.next().unwrap(), &mut random)
                    {
                        append(&mut tensors, &mut data, &name, &tensor);
                    }
                }
                _ if name.ends_with(".scales") || name.ends_with(".biases") => {}
                _ => append(&mut tensors, &mut data, name, tensor),
            }
        }
    }
    let header = Value::Object(tensors).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.extend(data);
    std::fs::write(path.join("model.safetensors"), bytes).unwrap();
    drop(std::fs::remove_file(path.join("model.safetensors.index.json")));

    // Without a quantization block, bits and group sizes are taken from the tensors.
    let config = path.join("config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    for key in ["quantization", "quantization_config"] {
        json.as_object_mut().unwrap().remove(key);
    }
    std::fs::write(config, json.to_string()).unwrap();
}

/// The tensors of one matrix `[shape..., cols]` of numbers around 1 / sqrt(cols).
fn matrix(
    module: &str,
    shape: &[usize],
    cols: usize,
    (bits, group, dtype): Format,
    random: &mut Random,
) -> Vec<(String, Tensor)> {
    let rows: usize = shape.iter().product();
    let size = 1.0 / (cols as f32).sqrt();
    let tensor = |last: usize, dtype: &str, data: Vec<u8>| Tensor {
        dtype: dtype.to_owned(),
        shape: [shape, &[last]].concat(),
        data,
    };
    let named = |part: &str, tensor| (format!("{module}.{part}"), tensor);
    if bits == 0 {
        let data = (0..rows * cols).flat_map(|_| number(dtype, size * random.float())).collect();
        return vec![named("weight", tensor(cols, dtype, data))];
    }
    let words = cols * bits / 32;
    let data = (0..rows * words).flat_map(|_| random.next().to_le_bytes()).collect();
    let step = 4.0 * size / (1 << bits) as f32;
    let mut side = |value: f32| -> Vec<u8> {
        let values = 0..rows * (cols / group);
        values.flat_map(|_| number(dtype, value * (1.0 + 0.5 * random.float()))).collect()
    };
    let (scales, biases) = (side(step), side(-2.0 * size));
    vec![
        named("weight", tensor(words, "U32", data)),
        named("scales", tensor(cols / group, dtype, scales)),
        named("biases", tensor(cols / group, dtype, biases)),
    ]
}

fn number(dtype: &str, value: f32) -> Vec<u8> {
    match dtype {
        "F32" => value.to_le_bytes().to_vec(),
        "F16" => half::f16::from_f32(value).to_le_bytes().to_vec(),
        _ => half::bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}

fn read(file: &Path) -> Vec<(String, Tensor)> {
    let bytes = std::fs::read(file).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..start]).unwrap();
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let tensor = |entry: &Value| Tensor {
        dtype: entry["dtype"].as_str().unwrap().to_owned(),
        shape: entry["shape"].as_array().unwrap().iter().map(number).collect(),
        data: bytes[start + number(&entry["data_offsets"][0])..]
            [..number(&entry["data_offsets"][1]) - number(&entry["data_offsets"][0])]
            .to_vec(),
    };
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    tensors.map(|(name, entry)| (name.clone(), tensor(entry))).collect()
}

fn find<'t>(tensors: &'t [(String, Tensor)], name: &str) -> Option<&'t Tensor> {
    tensors.iter().find(|(found, _)| found == name).map(|(_, tensor)| tensor)
}

fn append(header: &mut Map<String, Value>, data: &mut Vec<u8>, name: &str, tensor: &Tensor) {
    let start = data.len();
    data.extend(&tensor.data);
    let entry = json!({
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "data_offsets": [start, data.len()],
    });
    header.insert(name.to_owned(), entry);
}

/// A small generator, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 31) as f32 - 1.0
    }
}
