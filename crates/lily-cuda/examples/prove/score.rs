//! Likelihood of given tokens against the CPU's.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use lily_cpu::{CpuDevice, CpuOptions};
use lily_engine::Engine;
use serde_json::json;

use crate::Verdict;
use crate::company::engine;
use crate::models::{ModelArgs, prompt};

#[derive(Clone, Debug, Args)]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens to score, where no texts are given
    #[arg(long, default_value_t = 193)]
    tokens: usize,
    /// A JSON file of texts: a list of pairs, token ids and which of them is the first to score
    #[arg(long)]
    texts: Option<PathBuf>,
    /// Perplexities may differ by this part
    #[arg(long, default_value_t = 0.0004)]
    perplexity: f64,
    /// The most probable token must be the same for this part of the positions
    #[arg(long, default_value_t = 0.9635)]
    agreement: f64,
}

/// What one device says of one token, given those before it.
struct Judged {
    /// Natural logarithm of its probability.
    log: f64,
    /// The most probable id.
    best: usize,
    /// How far the most probable is ahead of the next, in units of the logits.
    lead: f32,
}

fn judge(logits: &[f32], token: u32) -> Judged {
    let (mut best, mut most, mut next) = (usize::MAX, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > most {
            (best, most, next) = (id, logit, most);
        } else if logit > next {
            next = logit;
        }
    }
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    let log = f64::from(logits[token as usize] - most) - sum.ln();
    Judged { log, best, lead: most - next }
}

/// Token ids, and the first of them to score.
type Text = (Vec<u32>, usize);

fn texts(args: &ScoreArgs, vocab: usize) -> Result<Vec<Text>> {
    let Some(path) = &args.texts else { return Ok(vec![(prompt(args.tokens, vocab), 1)]) };
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let texts: Vec<Text> = serde_json::from_reader(BufReader::new(file))?;
    for (ids, first) in &texts {
        let room = args.model.context;
        ensure!(ids.iter().all(|&id| (id as usize) < vocab), "an id is not below {vocab}");
        ensure!(ids.len() <= room, "a text of {} tokens, more than {room}", ids.len());
        ensure!(
            (1..ids.len()).contains(first),
            "{first} of {} tokens is not to be scored",
            ids.len()
        );
    }
    Ok(texts)
}

pub(crate) fn score(args: &ScoreArgs) -> Result<Verdict> {
    let (checkpoint, _folder) = args.model.open()?;
    let texts = texts(args, checkpoint.config().vocab_size)?;
    let run = |engine: &Engine| -> Result<Vec<Judged>> {
        let mut judged = Vec::new();
        let start = Instant::now();
        let mut session = engine.new_session()?;
        for (ids, first) in &texts {
            session.reset();
            let before = &ids[..ids.len() - 1];
            session.score(before, ids.len() - first, |position, logits| {
                judged.push(judge(logits, ids[position + 1]));
            })?;
        }
        eprintln!("{} positions in {:.2} s", judged.len(), start.elapsed().as_secs_f64());
        Ok(judged)
    };
    let found = run(&engine(&args.model, &checkpoint, &args.model.cuda()?, true)?)?;
    let cpu = CpuDevice::new(CpuOptions::default());
    let expected = run(&engine(&args.model, &checkpoint, &cpu, true)?)?;
    let positions = expected.len();
    ensure!(positions > 0 && found.len() == positions, "nothing to compare");

    let mean = |sum: f64| sum / positions as f64;
    let perplexity = |judged: &[Judged]| (-mean(judged.iter().map(|j| j.log).sum())).exp();
    let (ours, theirs) = (perplexity(&found), perplexity(&expected));
    let off = (ours / theirs - 1.0).abs();
    let pairs = || found.iter().zip(&expected);
    let apart = mean(pairs().map(|(a, b)| (a.log - b.log).abs()).sum());
    let agreed = pairs().filter(|(a, b)| a.best == b.best).count();
    let agreement = mean(agreed as f64);
    let leads = pairs().filter(|(a, b)| a.best != b.best).map(|(_, b)| b.lead);
    let lead = leads.fold(0.0, f32::max);
    eprintln!("perplexity {ours:.5} against {theirs:.5} ({:.4} %)", off * 100.0);
    eprintln!("logarithms of probabilities are {apart:.1e} apart in the mean");
    eprintln!("most probable token equal at {agreed} of {positions} positions");
    eprintln!("where it is not, the CPU's was at most {lead:.3} ahead of its next");
    let report = json!({
        "positions": positions,
        "perplexity": ours,
        "perplexity_cpu": theirs,
        "perplexity_off": off,
        "mean_difference_of_log_probability": apart,
        "agreement": agreement,
        "largest_lead_where_it_differs": lead,
    });
    Ok(Verdict { passed: off <= args.perplexity && agreement >= args.agreement, report })
}
