//! Exact answers to held-out conversations, counted as `models/demo/training/eval.py` counts them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use flate2::read::MultiGzDecoder;
use lily_engine::{CancelToken, EngineOptions, SamplingParams, Session};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::{EvalArgs, Switch};
use crate::model::{self, Loaded, Needs};

/// Tokens of an answer at most, as in `eval.py`.
const LIMIT: usize = 320;

/// One line of the file; other fields are not needed here.
#[derive(Debug, Deserialize)]
struct Conversation {
    /// Kind of the question, possibly with a detail after a colon.
    #[serde(default = "other")]
    k: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(default = "thinking")]
    think: bool,
    /// The wanted text, thinking and end token included.
    want: String,
}

fn other() -> String {
    "other".into()
}

fn thinking() -> bool {
    true
}

#[derive(Clone, Copy, Default)]
struct Score {
    exact: usize,
    asked: usize,
}

pub(super) fn run(args: &EvalArgs, file: &Path) -> Result<Value> {
    let all = read(file)?;
    let chosen = spread(&all, args.count.unwrap_or(all.len()));
    let loaded = model::load(&args.model, &args.engine, Needs::Chat, |options, config| {
        // The demo model's conversations are short; a long context would only cost memory.
        let context = options.context.or(Some(config.max_position_embeddings.min(4096)));
        Ok(EngineOptions { context, ..options })
    })?;
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
        if line.trim().is_empty() {
            continue;
        }
        let conversation =
            parse(&line).with_context(|| format!("line {} of {}", number + 1, file.display()))?;
        conversations.push(conversation);
    }
    ensure!(!conversations.is_empty(), "{} has no conversations", file.display());
    Ok(conversations)
}

/// Reads one line. The parser counts lines within it, which would contradict the file's.
fn parse(line: &str) -> Result<Conversation> {
    serde_json::from_str(line)
        .map_err(|e| anyhow!("{}", e.to_string().replace(" at line 1 column ", " at column ")))
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
    fn messages_and_the_wanted_answer_are_enough() {
        let line = r#"{"messages": [{"role": "user", "content": "Hi"}], "want": "Hello."}"#;
        let conversation = parse(line).unwrap();
        assert_eq!(conversation.k, "other");
        assert!(conversation.think && conversation.tools.is_none());
    }

    #[test]
    fn an_error_names_the_column_and_no_second_line() {
        let error = parse(r#"{"messages": [], "want": 3}"#).unwrap_err().to_string();
        assert!(error.contains("integer `3`") && error.contains("at column"), "{error}");
        assert!(!error.contains("line"), "{error}");
    }

    #[test]
    fn a_sample_is_spread_evenly() {
        let items: Vec<usize> = (0..10).collect();
        let sample = |n| spread(&items, n).copied().collect::<Vec<_>>();
        assert_eq!(sample(5), [0, 2, 4, 6, 8]);
        assert_eq!(sample(99), items);
    }
}
