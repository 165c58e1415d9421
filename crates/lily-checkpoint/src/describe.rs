//! What `config.json` alone says about a checkpoint.

use std::path::Path;

use serde_json::Value;

use crate::checkpoint::{MAX_SIDE_FILE_BYTES, read_config};
use crate::config::ModelConfig;
use crate::error::CheckpointError;
use crate::expected::{Expected, ExpectedKind, HEAD, expected_weights};
use crate::manifest::{Dtype, Manifest, MatrixFormat, MatrixShape, WeightInfo, WeightShape};
use crate::parse::ParsedConfig;
use crate::quantization::{Override, Quantization};
use crate::source::{Source, is_plain_name};

/// Reads only `config.json` and derives what a checkpoint of it holds.
///
/// Matrices are as its `quantization` block says (scales and biases bf16), or plain in its `dtype`;
/// the head is tied when its flag says so. [`Checkpoint::open`](crate::Checkpoint::open) settles both
/// from the tensors.
///
/// # Errors
/// The first rule that `config.json` breaks.
pub fn describe(dir: &Path) -> Result<(ModelConfig, Manifest), CheckpointError> {
    let source = Source::at(dir)?;
    let ParsedConfig { model, root } = read_config(&source)?;
    let quantization = Quantization::parse(&root)?;
    let dtype = if quantization.is_present() { Dtype::Bf16 } else { stored_dtype(&root) };
    let weights = expected_weights(&model)
        .into_iter()
        .filter(|expected| !(expected.name == HEAD && model.tie_word_embeddings))
        .map(|expected| described(expected, &quantization, dtype))
        .collect();
    Ok((model, Manifest::new(weights)))
}

/// A side file such as `tokenizer.json` of a directory or `.lily` file, without looking at weights;
/// `None` where it is missing.
///
/// # Errors
/// As [`Checkpoint::side_file`](crate::Checkpoint::side_file), and the first rule that a `.lily` file
/// breaks.
pub fn side_file(path: &Path, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
    if !is_plain_name(name) {
        return Ok(None);
    }
    Source::at(path)?.read(name, MAX_SIDE_FILE_BYTES)
}

fn described(expected: Expected, quantization: &Quantization, dtype: Dtype) -> WeightInfo {
    let Expected { name, kind } = expected;
    let shape = match kind {
        ExpectedKind::Vector { len, .. } => WeightShape::Vector { len, dtype },
        ExpectedKind::Conv { channels, width } => WeightShape::Conv { channels, width, dtype },
        ExpectedKind::Matrix { n_experts, rows, cols } => {
            let format = match quantization.of(&name) {
                // Converters leave matrices that groups do not divide as they were.
                Some((_, Override::Affine(affine))) if cols.is_multiple_of(affine.group_size) => {
                    MatrixFormat::Affine {
                        bits: affine.bits,
                        group_size: affine.group_size,
                        scale: Dtype::Bf16,
                    }
                }
                _ => MatrixFormat::Float(dtype),
            };
            let n_experts = n_experts.unwrap_or(1);
            WeightShape::Matrix(MatrixShape { n_experts, rows, cols, format })
        }
    };
    WeightInfo { name, shape }
}

/// `dtype` (or its older name `torch_dtype`); bf16, the family's own, where neither is known.
fn stored_dtype(root: &serde_json::Map<String, Value>) -> Dtype {
    let text = root.get("text_config").and_then(Value::as_object);
    let named = text
        .into_iter()
        .chain([root])
        .flat_map(|map| [map.get("dtype"), map.get("torch_dtype")])
        .flatten()
        .find_map(Value::as_str);
    match named {
        Some("float16") => Dtype::F16,
        Some("float32") => Dtype::F32,
        _ => Dtype::Bf16,
    }
}
