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
    if let Some(perplexity) = likelihood.perplexity().filter(|&p| p > vocab as f64) {
        let known = match args.model.dir() {
            Some(_) => "this model is no judge of this text",
            None => {
                "the embedded demo model knows its own short chats only, so give a --model-path"
            }
        };
        eprintln!(
            "note: a perplexity of {perplexity:.0} is above the vocabulary of {vocab} tokens, worse \
             than guessing: {known}"
        );
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
    fn windows_cover_the_text_in_order() {
        let tokens: Vec<u32> = (0..7).collect();
        assert_eq!(windows_of(&tokens, 3, None), [&[0, 1, 2][..], &[3, 4, 5]]);
        assert_eq!(windows_of(&tokens, 4, Some(2)), [&[3, 4, 5, 6]]);
        assert_eq!(windows_of(&tokens, 99, Some(2)), [&tokens[..]]);
    }
}
