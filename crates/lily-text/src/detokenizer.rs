//! Token by token back to text, for streaming.

use crate::tokenizer::Tokenizer;

/// Turns a stream of token ids into text that is only ever appended to.
///
/// A character may be spread over several tokens; its bytes are held until it
/// is whole. Special tokens are hidden. The pieces, joined, are exactly
/// [`Tokenizer::decode`] of the whole sequence with `skip_special`. The work
/// per token depends on that token alone, not on what came before.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    /// Start of a character that has not ended yet; at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A stream at its beginning.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self { tokenizer: tokenizer.clone(), pending: Vec::new() }
    }

    /// Takes the next token and gives the text that has become certain, which
    /// may be none.
    pub fn push(&mut self, token: u32) -> String {
        match self.tokenizer.token_bytes(token) {
            Some((bytes, false)) => self.pending.extend_from_slice(bytes),
            Some((_, true)) | None => return String::new(),
        }
        let (text, certain) = decode_certain(&self.pending);
        self.pending.drain(..certain);
        text
    }

    /// Bytes of a character that has not ended yet.
    pub(crate) fn held(&self) -> usize {
        self.pending.len()
    }

    /// Ends the stream. A character that was cut off becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Text of the longest prefix that later bytes cannot change, and its length.
fn decode_certain(bytes: &[u8]) -> (String, usize) {
    let mut text = String::with_capacity(bytes.len());
    let mut certain = 0;
    loop {
        match std::str::from_utf8(&bytes[certain..]) {
            Ok(rest) => {
                text.push_str(rest);
                return (text, bytes.len());
            }
            Err(error) => {
                let valid = certain + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[certain..valid]));
                certain = valid;
                let Some(invalid) = error.error_len() else {
                    return (text, certain);
                };
                text.push(char::REPLACEMENT_CHARACTER);
                certain += invalid;
            }
        }
    }
}
