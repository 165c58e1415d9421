//! `tokenizer.json`: text to token ids and back.

use std::sync::Arc;
use std::sync::OnceLock;

use tokenizers::DecoderWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::error::TextError;
use crate::grammar::Environment;

/// Ids beyond the number of tokens that may still be in use: published
/// vocabularies are contiguous, so a larger gap is a defect of the file and
/// must not turn into a table of four billion entries.
const MAX_UNUSED_IDS: usize = 1 << 16;

/// A loaded `tokenizer.json`.
///
/// Encoding is the `tokenizers` crate's. Decoding is a table from token id to
/// bytes, built once, because a stream needs the bytes of a single token and
/// not the text of a sequence. Clones share the tables.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    inner: tokenizers::Tokenizer,
    table: TokenTable,
    /// Made when the first grammar is compiled.
    environment: OnceLock<Result<Environment, String>>,
}

impl Shared {
    pub(crate) fn table(&self) -> &TokenTable {
        &self.table
    }

    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.inner
            .encode_fast(text, false)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TextError::Encode { reason: error.to_string() })
    }
}

/// Bytes of every token, in one allocation.
#[derive(Default)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end; they begin at `ends[id - 1]`.
    ends: Vec<u32>,
    special: Vec<bool>,
}

impl TokenTable {
    fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend_from_slice(bytes);
        // A file is at most a few tens of megabytes, so this cannot saturate in practice.
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        self.special.push(special);
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<(&[u8], bool)> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        Some((self.bytes.get(start..end)?, self.special[id]))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.len()).finish()
    }
}

impl Tokenizer {
    /// Reads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if the file cannot be read,
    /// [`TextError::UnsupportedTokenizer`] if it does not decode byte-level
    /// (the only form the Qwen family uses).
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        let inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| TextError::Tokenizer { reason: error.to_string() })?;
        match inner.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => {}
            other => {
                return Err(TextError::UnsupportedTokenizer {
                    part: "decoder",
                    expected: "ByteLevel",
                    found: decoder_name(other),
                });
            }
        }
        let table = token_table(&inner);
        Ok(Self { shared: Arc::new(Shared { inner, table, environment: OnceLock::new() }) })
    }

    /// Token ids of `text`. Added tokens written out in the text, `<think>` for
    /// example, become their single id; nothing is added at either end.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the pre-tokenizer gives up on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.shared.encode(text)
    }

    /// Text of a token sequence. Bytes that are not UTF-8 become U+FFFD and ids
    /// without a token are left out, as in the `tokenizers` crate.
    /// `skip_special` leaves out the tokens marked special (`<|im_end|>`), not
    /// the merely added ones (`<think>`).
    #[must_use]
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let bytes: Vec<u8> = ids
            .iter()
            .filter_map(|&id| self.token_bytes(id))
            .filter(|(_, special)| !(skip_special && *special))
            .flat_map(|(bytes, _)| bytes.iter().copied())
            .collect();
        match String::from_utf8_lossy(&bytes) {
            std::borrow::Cow::Borrowed(text) => text.to_owned(),
            std::borrow::Cow::Owned(text) => text,
        }
    }

    /// Id of the token whose text is exactly `token`.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.shared.inner.token_to_id(token)
    }

    /// One more than the largest token id. A model may have more rows than
    /// this (padding); those must never be sampled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.table.len()
    }

    /// Whether the vocabulary holds no token at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes what grammars over these tokens share, so that the first one need not wait for it: up to
    /// two seconds for a large vocabulary. What goes wrong is reported by the first grammar.
    pub fn prepare_grammars(&self) {
        let _ = self.environment();
    }

    /// What grammars over these tokens share. The first call makes it, which takes up to two seconds
    /// for a large vocabulary; clones of the tokenizer share it.
    pub(crate) fn environment(&self) -> Result<&Environment, String> {
        let made = self.shared.environment.get_or_init(|| Environment::new(&self.shared));
        made.as_ref().map_err(Clone::clone)
    }

    /// Bytes of one token and whether it is marked special.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<(&[u8], bool)> {
        self.shared.table.get(id)
    }
}

fn decoder_name(decoder: Option<&DecoderWrapper>) -> String {
    decoder.map_or_else(
        || "missing".to_owned(),
        |decoder| {
            let debug = format!("{decoder:?}");
            debug.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
        },
    )
}

fn token_table(inner: &tokenizers::Tokenizer) -> TokenTable {
    let added = inner.get_added_tokens_decoder();
    let bytes_of_char = bytes_of_chars();
    let count = inner.get_vocab_size(true);
    let mut table = TokenTable::default();
    let mut found = 0;
    let mut bytes = Vec::new();
    for id in 0..u32::try_from(count + MAX_UNUSED_IDS).unwrap_or(u32::MAX) {
        if found == count {
            break;
        }
        bytes.clear();
        let Some(token) = inner.id_to_token(id) else {
            table.push(&[], false);
            continue;
        };
        found += 1;
        if !token.chars().all(|c| byte_of(&bytes_of_char, c).map(|b| bytes.push(b)).is_some()) {
            // Not spelt in the byte-level alphabet, hence literal text.
            bytes.clear();
            bytes.extend_from_slice(token.as_bytes());
        }
        table.push(&bytes, added.get(&id).is_some_and(|token| token.special));
    }
    table
}

/// The byte-level alphabet, indexed by code point: printable bytes stand for
/// themselves and the others were moved to U+0100 and up, all below U+0200.
fn bytes_of_chars() -> [Option<u8>; 0x200] {
    let mut table = [None; 0x200];
    let mut shifted = 0x100;
    for byte in 0..=255_u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        if printable {
            table[byte as usize] = Some(byte);
        } else {
            table[shifted] = Some(byte);
            shifted += 1;
        }
    }
    debug_assert!(ByteLevel::alphabet().iter().all(|&c| byte_of(&table, c).is_some()));
    table
}

fn byte_of(table: &[Option<u8>; 0x200], c: char) -> Option<u8> {
    table.get(c as usize).copied().flatten()
}
