//! The reference logits and tokens of the tiny checkpoints in `shared/goldens`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lily_checkpoint::Checkpoint;
use lily_device::Device;
use lily_plan::buffer::Elem;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::Verdict;
use crate::company::{engine, greedy};
use crate::models::ModelArgs;

/// The largest difference of a logit where products are exact.
const LARGEST: f64 = 1e-3;
/// What bfloat16 activations may cost at one position, as root mean square over the vocabulary, and
/// what at all others: rounding may make the router choose another expert at one position, as in the
/// reference's own bfloat16.
const ONE: f64 = 1.0;
const OTHERS: f64 = 0.1;

#[derive(Clone, Debug, Args)]
pub(crate) struct GoldensArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder with one folder per checkpoint
    #[arg(long)]
    folder: PathBuf,
}

pub(crate) fn run(args: &GoldensArgs) -> Result<Verdict> {
    let mut folders: Vec<PathBuf> = fs::read_dir(&args.folder)
        .with_context(|| format!("cannot read {}", args.folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("golden.json").is_file())
        .collect();
    folders.sort();
    ensure!(!folders.is_empty(), "no goldens in {}", args.folder.display());
    let mut report = Vec::new();
    let mut passed = true;
    for folder in folders {
        for fuse in ["all", "none"] {
            let model = ModelArgs { fuse: fuse.to_owned(), ..args.model.clone() };
            let found = one(&model, &folder);
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match found {
                Ok((good, found)) => {
                    eprintln!("{name}, fuse {fuse}: {found}{}", if good { "" } else { "  WRONG" });
                    report.push(json!({"golden": name, "fuse": fuse, "found": found}));
                    passed &= good;
                }
                Err(error) => {
                    eprintln!("{name}, fuse {fuse}: {error:#}");
                    report
                        .push(json!({"golden": name, "fuse": fuse, "error": format!("{error:#}")}));
                    passed = false;
                }
            }
        }
    }
    Ok(Verdict { passed, report: json!(report) })
}

fn one(args: &ModelArgs, folder: &Path) -> Result<(bool, Value)> {
    let golden: Value = serde_json::from_slice(&fs::read(folder.join("golden.json"))?)?;
    let bytes = fs::read(folder.join("golden.safetensors"))?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let checkpoint = Checkpoint::open(folder)?;
    let cuda = args.cuda()?;
    let exact = cuda.facts().activations == Elem::F32;
    let engine = engine(args, &checkpoint, &cuda, true)?;
    let mut session = engine.new_session()?;
    let mut good = true;
    let mut found = serde_json::Map::new();
    for prompt in ["short", "long"] {
        let ids = numbers(&golden["prompts"][prompt]).with_context(|| format!("no {prompt}"))?;
        let reference = tensors.tensor(&format!("{prompt}.logits.ref"))?;
        let rows = reference.shape()[0];
        let expected = reference.data().chunks_exact(4);
        let mut expected = expected.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        session.reset();
        let (mut positions, mut most) = (Vec::new(), 0.0f64);
        session.score(&ids, rows, |_, logits| {
            let differences = logits.iter().zip(expected.by_ref()).map(|(a, b)| f64::from(a - b));
            let squares = differences.inspect(|d| most = most.max(d.abs())).map(|d| d * d);
            positions.push((squares.sum::<f64>() / logits.len() as f64).sqrt());
        })?;
        positions.sort_by(f64::total_cmp);
        let (worst, others) = positions.split_last().context("no positions")?;
        let squares: f64 = others.iter().map(|rms| rms * rms).sum();
        let others = (squares / others.len().max(1) as f64).sqrt();
        good &= match exact {
            true => most <= LARGEST && worst.is_finite(),
            false => *worst <= ONE && others <= OTHERS,
        };
        let entry = json!({"worst_rms": worst, "others_rms": others, "largest": most});
        found.insert(prompt.to_owned(), entry);
    }
    let ids = numbers(&golden["prompts"]["short"]).context("no short prompt")?;
    let expected = numbers(&golden["greedy"]).context("no greedy tokens")?;
    let tokens = greedy(&mut session, &ids, expected.len())?;
    let first = tokens.iter().zip(&expected).position(|(a, b)| a != b);
    good &= first.is_none();
    found.insert("first_wrong_token".to_owned(), json!(first));
    Ok((good, Value::Object(found)))
}

/// A list of token ids, or the one under `ids` or `tokens`.
fn numbers(value: &Value) -> Option<Vec<u32>> {
    let list = value.as_array().or_else(|| value["ids"].as_array());
    let list = list.or_else(|| value["tokens"].as_array())?;
    list.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}
