//! Reasoning that a client carries from one request to the next without reading it.
//!
//! Encrypted reasoning of OpenAI's API and signatures of Anthropic's are opaque
//! strings that clients send back as they came. Here nothing is secret, so such
//! a string is the reasoning itself in base64, behind a mark that tells it from
//! what other services sealed.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

const MARK: &str = "lily-reasoning:";

/// The opaque form of `reasoning`, which may be empty.
pub(crate) fn seal(reasoning: &str) -> String {
    BASE64_STANDARD.encode(format!("{MARK}{reasoning}"))
}

/// The reasoning inside, or nothing if another service sealed it.
pub(crate) fn open(sealed: &str) -> Option<String> {
    let text = String::from_utf8(BASE64_STANDARD.decode(sealed).ok()?).ok()?;
    text.strip_prefix(MARK).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_comes_back_whole() {
        for text in ["", "Let me think.", "日本\n\"x\"\u{0}"] {
            assert_eq!(open(&seal(text)).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_others_sealed_is_not_opened() {
        for text in ["", "not base64!", "RXJ3QkNrWUlBUmdC", "/w=="] {
            assert_eq!(open(text), None, "{text}");
        }
    }
}
