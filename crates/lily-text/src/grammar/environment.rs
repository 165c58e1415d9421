//! What `llguidance` has to know of a tokenizer, worked out once for each.

use std::sync::Arc;
use std::sync::Weak;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::tokenizer::Shared;

/// Kinds of text that many grammars allow as a whole, for which the fitting tokens are found
/// beforehand: white space, the inside of JSON strings, and running text without a tag.
const SLICES: [&str; 5] = [
    r#"[\x20\x0A\x0D\x09]+"#,
    r#"[^"\\<\x00-\x1F\x7F]{1,10}"#,
    r#"[^"\\<\x00-\x1F\x7F]{1,30}"#,
    r#"[^"\\<\x00-\x1F\x7F]+"#,
    r#"[^"\\\x00-\x1F\x7F]+"#,
];

/// Stands in for the stop tokens, which are the request's and not the tokenizer's. It is one id
/// behind all tokens.
const END: &[u8] = b"\xFF<|end of answer|>";

/// Bounds for grammars that come with requests. Each unit of fuel is some ten nanoseconds.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 10_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 500_000,
        step_max_items: 200_000,
        // A string whose length is bounded takes four to five a character and 0.4 KB for each; the
        // most that a regular expression was seen to take is 2 KB.
        max_lexer_states: 200_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// The tokens as a tree, and the masks that do not depend on any grammar.
pub(crate) struct Environment {
    pub(super) factory: ParserFactory,
}

impl Environment {
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Self, String> {
        let table = shared.table();
        let mut words: Vec<Vec<u8>> = (0..table.len())
            .map(|id| match table.get(id as u32) {
                // Special tokens are no text, however they are spelt.
                Some((bytes, true)) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                Some((bytes, false)) => bytes.to_vec(),
                None => Vec::new(),
            })
            .collect();
        words.push(END.to_vec());
        let end = table.len() as u32;
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
        let tokens: TokEnv = Arc::new(Tokens { trie, shared: Arc::downgrade(shared) });
        let slices = SLICES.map(str::to_owned);
        let mut factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices)
            .map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Environment { factory })
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

/// The tokenizer as `llguidance` sees it.
struct Tokens {
    trie: TokTrie,
    /// Not a strong reference: the tokenizer keeps this very environment.
    shared: Weak<Shared>,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// The tokens the model would read this text as; they decide how text is spelt that a grammar
    /// leaves no choice about.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let tokens = std::str::from_utf8(bytes).ok().and_then(|text| {
            let tokens = self.shared.upgrade()?.encode(text).ok()?;
            // Normalisation may have changed the text, and a special token is none.
            (self.trie.decode_raw(&tokens) == bytes).then_some(tokens)
        });
        tokens.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}
