//! API keys: kept and compared as digests.

use sha2::Digest;
use sha2::Sha256;
use subtle::Choice;
use subtle::ConstantTimeEq;

use crate::error::ServerError;

/// The keys of which a request must carry one; none lets anyone in.
///
/// Only their SHA-256 digests are kept, so no key can show in a log or a
/// `Debug` output, and a comparison takes the same time whatever is sent.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys {
    digests: Vec<[u8; 32]>,
}

impl ApiKeys {
    /// Takes keys in any order; the same one twice does no harm.
    ///
    /// # Errors
    /// [`ServerError::InvalidApiKey`] if a key is empty or holds anything but
    /// visible ASCII characters: no `Authorization` header could carry it.
    pub fn new<I>(keys: I) -> Result<ApiKeys, ServerError>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let digest = |key: I::Item| {
            let key = key.as_ref().as_bytes();
            let fits = !key.is_empty() && key.iter().all(u8::is_ascii_graphic);
            fits.then(|| Sha256::digest(key).into()).ok_or(ServerError::InvalidApiKey)
        };
        Ok(ApiKeys { digests: keys.into_iter().map(digest).collect::<Result<_, _>>()? })
    }

    /// Takes the keys of a file: one on each line, empty lines and lines that
    /// begin with `#` left out.
    ///
    /// # Errors
    /// As [`ApiKeys::new`], and [`ServerError::NoApiKeys`] if the text holds none.
    pub fn from_lines(text: &str) -> Result<ApiKeys, ServerError> {
        let lines = text.lines().map(str::trim);
        let keys = ApiKeys::new(lines.filter(|line| !line.is_empty() && !line.starts_with('#')))?;
        if keys.is_empty() { Err(ServerError::NoApiKeys) } else { Ok(keys) }
    }

    /// Whether anyone is let in.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// These keys and those.
    pub fn join(mut self, other: ApiKeys) -> ApiKeys {
        self.digests.extend(other.digests);
        self
    }

    /// Whether `given` is one of the keys; all are compared, whichever fits.
    pub(crate) fn admit(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        let none = Choice::from(0);
        self.digests.iter().fold(none, |found, digest| found | digest.ct_eq(&given)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_admitted_and_nothing_else() {
        let keys = ApiKeys::new(["one", "two"]).unwrap();
        assert!(keys.admit(b"one") && keys.admit(b"two"));
        for other in ["", "on", "one ", "three", "onetwo"] {
            assert!(!keys.admit(other.as_bytes()), "{other:?}");
        }
        assert!(!ApiKeys::default().admit(b""));
    }

    #[test]
    fn a_file_holds_one_key_on_each_line_and_comments() {
        let keys = ApiKeys::from_lines("# for ann\nfirst\r\n\n  second  \n").unwrap();
        assert!(keys.admit(b"first") && keys.admit(b"second") && !keys.admit(b"# for ann"));
        for text in ["", "\n \n", "# nothing\n"] {
            assert!(matches!(ApiKeys::from_lines(text), Err(ServerError::NoApiKeys)), "{text:?}");
        }
        assert!(matches!(ApiKeys::from_lines("two words"), Err(ServerError::InvalidApiKey)));
    }

    #[test]
    fn keys_do_not_show_when_they_are_printed() {
        let shown = format!("{:?}", ApiKeys::new(["visible-secret"]).unwrap());
        assert!(!shown.contains("visible-secret"), "{shown}");
    }
}
