//! Teacher-forced comparison with reference logits.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use lily_engine::EngineOptions;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::likelihood::{Likelihood, argmax};
use crate::args::EvalArgs;
use crate::model::{self, Needs};

pub(super) fn run(args: &EvalArgs, file: &Path) -> Result<Value> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let reference = Reference::parse(&bytes).with_context(|| format!("in {}", file.display()))?;
    let loaded = model::load(&args.model, &args.engine, Needs::Ids, |options, _| {
        let context = options.context.or(Some(reference.ids.len()));
        Ok(EngineOptions { context, score: true, ..options })
    })?;
    let vocab_size = loaded.engine.config().vocab_size;
    ensure!(
        reference.vocab_size == vocab_size,
        "logits in {} has {} columns, expected the model's vocabulary of {vocab_size}",
        file.display(),
        reference.vocab_size
    );

    let mut comparison = Comparison::default();
    let first = reference.ids.len() - reference.rows;
    let mut session = loaded.engine.new_session()?;
    session.score(&reference.ids, reference.rows, |position, logits| {
        let expected = reference.row(position - first);
        comparison.add(logits, expected, reference.ids.get(position + 1).copied());
    })?;
    Ok(comparison.report())
}

/// `ids` and the logits that follow the last of them.
#[derive(Debug)]
struct Reference {
    ids: Vec<u32>,
    rows: usize,
    vocab_size: usize,
    /// `[rows, vocab_size]`.
    logits: Vec<f32>,
}

impl Reference {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let file = SafeTensors::deserialize(bytes).context("not a safetensors file")?;
        let tensor = |name| file.tensor(name).with_context(|| format!("tensor {name} is missing"));
        let (ids, logits) = (tensor("ids")?, tensor("logits")?);
        let &[rows, vocab_size] = logits.shape() else {
            bail!("logits has shape {:?}, expected [positions, vocabulary]", logits.shape())
        };
        ensure!(ids.shape().len() == 1, "ids has shape {:?}, expected one dimension", ids.shape());
        let ids = integers(ids.dtype(), ids.data()).context("ids")?;
        ensure!(
            (1..=ids.len()).contains(&rows),
            "logits has {rows} rows, expected between 1 and the {} ids",
            ids.len()
        );
        ensure!(vocab_size > 0, "logits has no columns");
        let logits = floats(logits.dtype(), logits.data()).context("logits")?;
        ensure!(logits.iter().all(|l| l.is_finite()), "logits holds values that are not finite");
        Ok(Reference { ids, rows, vocab_size, logits })
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocab_size..(row + 1) * self.vocab_size]
    }
}

/// Reads little-endian elements of `N` bytes.
fn elements<const N: usize, T>(data: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|&bytes| convert(bytes)).collect()
}

fn integers(dtype: Dtype, data: &[u8]) -> Result<Vec<u32>> {
    let values: Vec<i128> = match dtype {
        Dtype::U8 => elements(data, |b| u8::from_le_bytes(b).into()),
        Dtype::I8 => elements(data, |b| i8::from_le_bytes(b).into()),
        Dtype::U16 => elements(data, |b| u16::from_le_bytes(b).into()),
        Dtype::I16 => elements(data, |b| i16::from_le_bytes(b).into()),
        Dtype::U32 => elements(data, |b| u32::from_le_bytes(b).into()),
        Dtype::I32 => elements(data, |b| i32::from_le_bytes(b).into()),
        Dtype::U64 => elements(data, |b| u64::from_le_bytes(b).into()),
        Dtype::I64 => elements(data, |b| i64::from_le_bytes(b).into()),
        other => bail!("type {other:?}, expected integers"),
    };
    let id = |value| u32::try_from(value).with_context(|| format!("{value} is not a token id"));
    values.into_iter().map(id).collect()
}

fn floats(dtype: Dtype, data: &[u8]) -> Result<Vec<f32>> {
    Ok(match dtype {
        Dtype::F32 => elements(data, f32::from_le_bytes),
        Dtype::F16 => elements(data, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => elements(data, |b| bf16::from_le_bytes(b).to_f32()),
        other => bail!("type {other:?}, expected F32, F16 or BF16"),
    })
}

/// Differences summed over positions.
#[derive(Default)]
struct Comparison {
    positions: usize,
    values: usize,
    max: f32,
    squares: f64,
    agreed: usize,
    ours: Likelihood,
    theirs: Likelihood,
}

impl Comparison {
    fn add(&mut self, ours: &[f32], theirs: &[f32], next: Option<u32>) {
        for (a, b) in ours.iter().zip(theirs) {
            let difference = (a - b).abs();
            self.max = self.max.max(difference);
            self.squares += f64::from(difference).powi(2);
        }
        self.positions += 1;
        self.values += theirs.len();
        self.agreed += usize::from(argmax(ours) == argmax(theirs));
        // The last position has no next token to be right about.
        if let Some(next) = next {
            self.ours.add(ours, next);
            self.theirs.add(theirs, next);
        }
    }

    fn report(&self) -> Value {
        json!({
            "positions": self.positions,
            "max_abs_diff": self.max,
            "rms_diff": (self.squares / self.values as f64).sqrt(),
            "perplexity": self.ours.perplexity(),
            "reference_perplexity": self.theirs.perplexity(),
            "top1_agreement": self.agreed as f64 / self.positions as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    fn file(ids: (Dtype, &[u8]), shape: Vec<usize>, logits: (Dtype, &[u8])) -> Vec<u8> {
        let width = ids.0.bitsize() / 8;
        let ids = TensorView::new(ids.0, vec![ids.1.len() / width], ids.1).unwrap();
        let logits = TensorView::new(logits.0, shape, logits.1).unwrap();
        safetensors::serialize([("ids", ids), ("logits", logits)], None).unwrap()
    }

    #[test]
    fn every_integer_and_float_type_is_read() {
        let two_by_two = [0x80, 0x3f, 0, 0, 0, 0, 0, 0xc0];
        let bytes = file(
            (Dtype::I64, &[&[7u8, 0][..], &[0; 14]].concat()),
            vec![2, 2],
            (Dtype::BF16, &two_by_two),
        );
        let reference = Reference::parse(&bytes).unwrap();
        assert_eq!(reference.ids, [7, 0]);
        assert_eq!(reference.row(0), [1.0, 0.0]);
        assert_eq!(reference.row(1), [0.0, -2.0]);
        for dtype in [Dtype::U8, Dtype::I8] {
            assert_eq!(integers(dtype, &[7, 0]).unwrap(), [7, 0]);
        }
        assert_eq!(floats(Dtype::F16, &[0, 0x3c]).unwrap(), [1.0]);
    }

    #[test]
    fn negative_ids_and_wrong_types_are_refused() {
        assert!(integers(Dtype::I8, &[0xff]).is_err());
        assert!(integers(Dtype::F32, &[0; 4]).is_err());
        assert!(floats(Dtype::I32, &[0; 4]).is_err());
    }

    #[test]
    fn shapes_that_contradict_are_refused() {
        let ids = (Dtype::U8, &[1u8, 2][..]);
        let logits = (Dtype::F32, &[0u8; 24][..]);
        assert!(Reference::parse(&file(ids, vec![2, 3], logits)).is_ok());
        assert!(Reference::parse(&file(ids, vec![3, 2], logits)).is_err());
        assert!(Reference::parse(&file(ids, vec![6], logits)).is_err());
        assert!(Reference::parse(b"no").is_err());
    }

    #[test]
    fn the_last_position_counts_for_agreement_but_not_for_perplexity() {
        let mut comparison = Comparison::default();
        comparison.add(&[0.0, 1.0], &[0.0, 1.5], Some(1));
        comparison.add(&[1.0, 0.0], &[0.0, 1.0], None);
        assert_eq!(comparison.ours.tokens(), 1);
        assert_eq!(comparison.report()["max_abs_diff"], 1.0);
        assert_eq!(comparison.report()["top1_agreement"], 0.5);
    }
}
