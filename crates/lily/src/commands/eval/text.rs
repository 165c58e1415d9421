//! Perplexity over a text file.

use std::path::Path;

use anyhow::{Result, ensure};
use lily_engine::EngineOptions;
use serde_json::{Value, json};

use super::likelihood::{Likelihood, argmax};
use crate::args::EvalArgs;
use crate::commands::output::read_text;
use crate::model::{self, Needs};

/// Tokens that a window holds where `--context` does not say: long enough that the start of a
/// window weighs little.
const WINDOW: usize = 2048;

pub(super) fn run(args: &EvalArgs, file: &Path) -> Result<Value> {
    let text = read_text(file)?;
    let tokens = model::tokenizer(&args.model)?.encode(&text)?;
    ensure!(
        tokens.len() >= 2,
        "{} has {} tokens, expected at least 2",
        file.display(),
        tokens.len()
    );
    let loaded = model::load(&args.model, &args.engine, Needs::Text, |options, config| {
        let window = tokens.len().min(WINDOW).min(config.max_position_embeddings);
        let context = options.context.or(Some(window));
        Ok(EngineOptions { context, score: true, ..options })
    })?;
    let context = loaded.engine.context();
    let mut session = loaded.engine.new_session()?;

    let (mut likelihood, mut right, mut windows) = (Likelihood::default(), 0usize, 0usize);
    for window in windows_of(&tokens, context, args.last) {
        session.reset();
        let last_n = args.last.unwrap_or(usize::MAX).min(window.len() - 1);
        // The logits after a token are about the next one, so the last token is not run.
        session.score(&window[..window.len() - 1], last_n, |position, logits| {
            let next = window[position + 1];
            likelihood.add(logits, next);
            right += usize::from(argmax(logits) == next as usize);
        })?;
        windows += 1;
    }
    let scored = likelihood.tokens();
    let vocab = loaded.engine.config().vocab_size;
    let is_demo = args.model.dir().is_none();
    if let Some(note) = likelihood.perplexity().and_then(|found| note(found, vocab, is_demo)) {
        eprintln!("{note}");
    }
    Ok(json!({
        "tokens": tokens.len(),
        "windows": windows,
        "window_tokens": context,
        "positions": scored,
        "perplexity": likelihood.perplexity(),
        "top1_agreement": right as f64 / scored as f64,
    }))
}

/// What a perplexity means that tells nothing of a model's quality.
fn note(perplexity: f64, vocab: usize, is_demo: bool) -> Option<String> {
    // Few tokens may happen to do a little better than guessing.
    const NO_BETTER: f64 = 0.25;
    let guessing = match perplexity / vocab as f64 {
        ratio if ratio > 1.0 => "above the vocabulary of {} tokens, worse than guessing",
        ratio if ratio > NO_BETTER => {
            "hardly better than guessing among the vocabulary of {} tokens"
        }
        _ => return None,
    };
    let guessing = guessing.replace("{}", &vocab.to_string());
    let why = match is_demo {
        false => "this model is no judge of this text",
        true => "the embedded demo model knows its own short chats only, so give a --model-path",
    };
    Some(format!("note: a perplexity of {perplexity:.0} is {guessing}: {why}"))
}

/// Consecutive windows of at most `context` tokens and at least 2; with `last`, the one that ends
/// the text.
fn windows_of(tokens: &[u32], context: usize, last: Option<usize>) -> Vec<&[u32]> {
    let context = context.max(2);
    if last.is_some() {
        return vec![&tokens[tokens.len().saturating_sub(context)..]];
    }
    tokens.chunks(context).filter(|window| window.len() >= 2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perplexity_that_tells_nothing_is_noted() {
        let of = |perplexity, is_demo| note(perplexity, 4096, is_demo).unwrap_or_default();
        assert!(of(55_000.0, true).contains("55000 is above the vocabulary of 4096 tokens"));
        assert!(of(3348.0, true).contains("3348 is hardly better than guessing"));
        assert!(of(3348.0, true).ends_with("so give a --model-path"));
        assert!(of(3348.0, false).ends_with("no judge of this text"));
        assert_eq!(of(900.0, true), "");
    }

    #[test]
    fn windows_cover_the_text_in_order() {
        let tokens: Vec<u32> = (0..7).collect();
        assert_eq!(windows_of(&tokens, 3, None), [&[0, 1, 2][..], &[3, 4, 5]]);
        assert_eq!(windows_of(&tokens, 4, Some(2)), [&[3, 4, 5, 6]]);
        assert_eq!(windows_of(&tokens, 99, Some(2)), [&tokens[..]]);
    }
}
