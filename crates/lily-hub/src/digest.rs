//! Hashes by which the hub names contents.

use std::fmt::Write as _;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::names::is_hex;

/// What a content hashes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256 of the bytes: large files. Lower-case hexadecimal.
    Sha256(String),
    /// SHA-1 as git makes it of a blob: small files. Lower-case hexadecimal.
    GitBlob(String),
}

impl Checksum {
    /// By the form of a tag: 64 hexadecimal digits or 40; anything else tells nothing of the content.
    pub fn from_tag(tag: &str) -> Option<Self> {
        match tag.len() {
            64 if is_hex(tag, 64) => Some(Checksum::Sha256(tag.to_owned())),
            40 if is_hex(tag, 40) => Some(Checksum::GitBlob(tag.to_owned())),
            _ => None,
        }
    }

    /// Name of the hash.
    pub fn kind(&self) -> &'static str {
        match self {
            Checksum::Sha256(_) => "SHA-256",
            Checksum::GitBlob(_) => "git's SHA-1",
        }
    }

    /// The hexadecimal digits.
    pub fn hex(&self) -> &str {
        match self {
            Checksum::Sha256(hex) | Checksum::GitBlob(hex) => hex,
        }
    }
}

/// A checksum in the making.
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
    /// Of a content that nothing is known of.
    Nothing,
}

impl Hasher {
    /// For a content of `size` bytes that should have this checksum.
    pub(crate) fn new(checksum: Option<&Checksum>, size: u64) -> Self {
        match checksum {
            Some(Checksum::Sha256(_)) => Hasher::sha256(),
            Some(Checksum::GitBlob(_)) => {
                // Git hashes this in front of a file.
                let mut hash = Sha1::new();
                hash.update(format!("blob {size}\0"));
                Hasher::GitBlob(hash)
            }
            None => Hasher::Nothing,
        }
    }

    pub(crate) fn sha256() -> Self {
        Hasher::Sha256(Sha256::new())
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hash) => hash.update(bytes),
            Hasher::GitBlob(hash) => hash.update(bytes),
            Hasher::Nothing => {}
        }
    }

    /// The checksum in hexadecimal; `None` where none is made.
    pub(crate) fn finish(self) -> Option<String> {
        match self {
            Hasher::Sha256(hash) => Some(hex(&hash.finalize())),
            Hasher::GitBlob(hash) => Some(hex(&hash.finalize())),
            Hasher::Nothing => None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tag: &str, parts: &[&[u8]]) -> String {
        let size = parts.iter().map(|part| part.len() as u64).sum();
        let mut hasher = Hasher::new(Checksum::from_tag(tag).as_ref(), size);
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finish().unwrap()
    }

    #[test]
    fn contents_hash_to_what_git_and_sha256sum_say() {
        // `printf 'hello\n' | git hash-object --stdin` and `... | sha256sum`.
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(of(git, &[b"hel", b"lo\n"]), git);
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(of(sha, &[b"hello", b"\n"]), sha);
    }

    #[test]
    fn only_hashes_in_full_are_taken_for_hashes() {
        for tag in ["", "main", "0123", &"A".repeat(64), &"g".repeat(40), &"0".repeat(41)] {
            assert_eq!(Checksum::from_tag(tag), None, "{tag}");
        }
    }
}
