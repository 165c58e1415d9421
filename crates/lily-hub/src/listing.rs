//! What a repository holds at a commit, as the hub tells it.

use serde::Deserialize;

use crate::digest::{Checksum, Hasher};
use crate::error::HubError;
use crate::names::{Commit, check_file_name, is_hex, shown};

/// More files than any model has.
const MAX_FILES: usize = 100_000;

/// A commit and its files.
#[derive(Clone, Debug)]
pub struct Listing {
    /// What the revision stood for when it was asked.
    pub commit: Commit,
    /// All files, in the order of the hub.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository. Names are checked: none leads out of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path inside the repository.
    pub name: String,
    /// Bytes; `None` where the hub did not say yet.
    pub size: Option<u64>,
    /// What the content hashes to; `None` where the hub did not say.
    pub checksum: Option<Checksum>,
    /// The server's tag, where there is no checksum.
    pub(crate) tag: Option<Tag>,
}

/// A tag that tells nothing of the content but whether it is the same as before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) text: String,
    /// Whether equal tags mean equal bytes.
    pub(crate) strong: bool,
}

impl Tag {
    /// A name for the content of `file`. Tags of this kind need not differ between files.
    fn name(&self, file: &str) -> String {
        let mut hasher = Hasher::sha256();
        for text in [file, "\0", &self.text] {
            hasher.update(text.as_bytes());
        }
        format!("tag-{}", hasher.finish().unwrap_or_default())
    }
}

impl RemoteFile {
    /// The name that the content has in a cache, once it is known.
    pub(crate) fn blob(&self) -> Option<String> {
        match &self.checksum {
            Some(checksum) => Some(checksum.hex().to_owned()),
            None => self.tag.as_ref().map(|tag| tag.name(&self.name)),
        }
    }
}

#[derive(Deserialize)]
struct RawListing {
    sha: String,
    #[serde(default)]
    siblings: Vec<RawFile>,
}

#[derive(Deserialize)]
struct RawFile {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<RawLfs>,
}

/// A file that git holds a pointer to only.
#[derive(Deserialize)]
struct RawLfs {
    #[serde(alias = "oid")]
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    /// Reads the answer of the hub `host`.
    ///
    /// # Errors
    /// [`HubError::Answer`] for anything but the JSON that the hub documents; [`HubError::FileName`]
    /// when any file, wanted or not, has a hostile name: a hub that lists one is not to be trusted.
    pub fn parse(json: &[u8], host: &str) -> Result<Self, HubError> {
        let wrong = |reason: String| HubError::Answer { host: host.to_owned(), reason };
        let raw: RawListing = serde_json::from_slice(json)
            .map_err(|error| wrong(format!("the list of files: {error}")))?;
        if raw.siblings.len() > MAX_FILES {
            return Err(wrong(format!("a list of {} files", raw.siblings.len())));
        }
        let files = raw
            .siblings
            .into_iter()
            .map(|file| file.checked(host))
            .collect::<Result<Vec<_>, _>>()?;
        let mut names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(format!("{} is listed twice", shown(pair[0]))));
        }
        Ok(Listing { commit: raw.sha.parse()?, files })
    }
}

impl RawFile {
    fn checked(self, host: &str) -> Result<RemoteFile, HubError> {
        let RawFile { rfilename: name, size, blob_id, lfs } = self;
        check_file_name(&name)?;
        let hash = |text: Option<String>, digits: usize| match text {
            Some(text) if !is_hex(&text, digits) => Err(HubError::Answer {
                host: host.to_owned(),
                reason: format!("{} has the checksum {:?}", shown(&name), shown(&text)),
            }),
            text => Ok(text),
        };
        let (size, checksum) = match lfs {
            Some(lfs) => (lfs.size.or(size), hash(lfs.sha256, 64)?.map(Checksum::Sha256)),
            None => (size, hash(blob_id, 40)?.map(Checksum::GitBlob)),
        };
        Ok(RemoteFile { name, size, checksum, tag: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn parse(siblings: &str) -> Result<Listing, HubError> {
        Listing::parse(
            format!(r#"{{"sha": "{COMMIT}", "siblings": [{siblings}]}}"#).as_bytes(),
            "hub",
        )
    }

    #[test]
    fn large_files_have_a_sha256_and_small_ones_what_git_calls_them() {
        let sha = "5".repeat(64);
        let listing = parse(&format!(
            r#"{{"rfilename": "a.safetensors", "size": 9, "blobId": "{COMMIT}",
                 "lfs": {{"sha256": "{sha}", "size": 9, "pointerSize": 130}}}},
               {{"rfilename": "sub/config.json", "size": 3, "blobId": "{COMMIT}"}},
               {{"rfilename": "bare", "extra": [1]}}"#
        ))
        .unwrap();
        assert_eq!(listing.commit.as_str(), COMMIT);
        let [large, small, bare] = &listing.files[..] else { panic!("{listing:?}") };
        assert_eq!((large.size, &large.checksum), (Some(9), &Some(Checksum::Sha256(sha))));
        assert_eq!(small.checksum, Some(Checksum::GitBlob(COMMIT.to_owned())));
        assert_eq!((bare.size, &bare.checksum), (None, &None));
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        let twice = r#"{"rfilename": "a"}, {"rfilename": "a"}"#;
        let hash = r#"{"rfilename": "a", "blobId": "../../x"}"#;
        let lfs = r#"{"rfilename": "a", "lfs": {"sha256": "short"}}"#;
        let negative = r#"{"rfilename": "a", "size": -1}"#;
        for siblings in [twice, hash, lfs, negative, "3", r#"{"size": 1}"#] {
            let error = parse(siblings).unwrap_err();
            assert!(matches!(error, HubError::Answer { .. }), "{siblings}: {error}");
        }
        for json in ["", "[]", "{}", "<html>", r#"{"sha": 3}"#] {
            assert!(Listing::parse(json.as_bytes(), "hub").is_err(), "{json}");
        }
        let error =
            Listing::parse(br#"{"sha": "../../../../etc", "siblings": []}"#, "hub").unwrap_err();
        assert!(matches!(error, HubError::CommitName { .. }), "{error}");
    }

    #[test]
    fn a_tag_makes_a_file_name_of_its_own_for_each_file() {
        let name = |text: &str, file: &str| Tag { text: text.to_owned(), strong: true }.name(file);
        for text in ["../../x", "a/b", ".", "5f-a1", &"x".repeat(200)] {
            let name = name(text, "config.json");
            assert!(name.starts_with("tag-") && name.len() == 68, "{text}: {name}");
        }
        assert_ne!(name("1", "a"), name("1", "b"));
        assert_ne!(name("1", "a"), name("2", "a"));
    }

    #[test]
    fn one_hostile_name_refuses_the_whole_list() {
        let error =
            parse(r#"{"rfilename": "config.json"}, {"rfilename": "../../.bashrc"}"#).unwrap_err();
        assert!(matches!(error, HubError::FileName { .. }), "{error}");
    }
}
