//! Exact answers to held-out conversations, counted as `models/demo/training/eval.py` counts them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use flate2::read::MultiGzDecoder;
use lily_engine::{CancelToken, SamplingParams, Session};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::{EvalArgs, Switch};
use crate::model::{self, Loaded};

/// Tokens of an answer at most, as in `eval.py`.
const LIMIT: usize = 320;

/// One line of the file; other fields are not needed here.
#[derive(Debug, Deserialize)]
struct Conversation {
    /// Kind of the question, possibly with a detail after a colon.
    k: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    think: bool,
    /// The wanted text, thinking and end token included.
    want: String,
}

#[derive(Clone, Copy, Default)]
struct Score {
    exact: usize,
    asked: usize,
}

pub(super) fn run(args: &EvalArgs, file: &Path) -> Result<Value> {
    let all = read(file)?;
    let chosen = spread(&all, args.count.unwrap_or(all.len()));
    let mut options = model::engine_options(&args.engine)?;
    // The demo model's conversations are short; a long context would only cost memory.
    options.context = options.context.or(Some(4096));
    let loaded = model::load(&args.model, options, args.engine.threads)?;
    let mut session = loaded.engine.new_session()?;

    let start = Instant::now();
    let (mut total, mut kinds, mut tokens) = (Score::default(), BTreeMap::new(), 0);
    let mut shown = 0;
    for conversation in chosen {
        let output = answer(&loaded, &mut session, conversation)?;
        tokens += output.len();
        let got = loaded.tokenizer()?.decode(&output, false);
        let exact = answer_of(&got) == answer_of(&conversation.want.replace("<|im_end|>", ""));
        let kind = conversation.k.split(':').next().unwrap_or_default().to_owned();
        for score in [&mut total, kinds.entry(kind).or_default()] {
            score.asked += 1;
            score.exact += usize::from(exact);
        }
        if !exact && shown < args.show {
            eprintln!("{}: wanted {:?}, got {got:?}", conversation.k, conversation.want);
            shown += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let kinds: serde_json::Map<String, Value> = kinds
        .into_iter()
        .map(|(kind, s): (String, Score)| (kind, json!({"exact": s.exact, "asked": s.asked})))
        .collect();
    Ok(json!({
        "conversations": total.asked,
        "exact": total.exact,
        "exact_share": total.exact as f64 / total.asked as f64,
        "generated_tokens": tokens,
        "seconds": seconds,
        "kinds": kinds,
    }))
}

fn read(file: &Path) -> Result<Vec<Conversation>> {
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let gzipped = file.extension().is_some_and(|extension| extension == "gz");
    let reader: Box<dyn Read> =
        if gzipped { Box::new(MultiGzDecoder::new(opened)) } else { Box::new(opened) };
    let mut conversations = Vec::new();
    for (number, line) in BufReader::new(reader).lines().enumerate() {
        let line = line.with_context(|| format!("cannot read {}", file.display()))?;
        let conversation = serde_json::from_str(&line)
            .with_context(|| format!("line {} of {}", number + 1, file.display()))?;
        conversations.push(conversation);
    }
    ensure!(!conversations.is_empty(), "{} has no conversations", file.display());
    Ok(conversations)
}

/// `count` items at even distances.
fn spread<T>(items: &[T], count: usize) -> impl Iterator<Item = &T> {
    let count = count.min(items.len());
    (0..count).map(move |i| &items[i * items.len() / count])
}

fn answer(loaded: &Loaded, session: &mut Session, conversation: &Conversation) -> Result<Vec<u32>> {
    let think = if conversation.think { Switch::On } else { Switch::Off };
    let prompt =
        loaded.chat_prompt(&conversation.messages, conversation.tools.as_deref(), think)?;
    let mut options = loaded.engine.default_options();
    options.sampling = SamplingParams::greedy();
    options.max_tokens = Some(LIMIT);
    session.reset();
    let mut generation = session.generate(&prompt.tokens, options, &CancelToken::new())?;
    let mut output = Vec::new();
    while let Some(token) = generation.next_token()? {
        output.push(token.id);
    }
    Ok(output)
}

/// What follows the thinking.
fn answer_of(text: &str) -> &str {
    text.rsplit("</think>").next().unwrap_or(text).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_follows_the_thinking() {
        assert_eq!(answer_of("I add.\n</think>\n\n12"), "12");
        assert_eq!(answer_of(" 12 "), "12");
    }

    #[test]
    fn a_sample_is_spread_evenly() {
        let items: Vec<usize> = (0..10).collect();
        let sample = |n| spread(&items, n).copied().collect::<Vec<_>>();
        assert_eq!(sample(5), [0, 2, 4, 6, 8]);
        assert_eq!(sample(99), items);
    }
}
