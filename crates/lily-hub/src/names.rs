//! Names from outside that become paths or parts of addresses.

use std::fmt;
use std::str::FromStr;

use crate::error::HubError;

const MAX_REPO: usize = 96;
const MAX_REVISION: usize = 200;
/// What file systems allow for one component, in bytes.
const MAX_COMPONENT: usize = 255;

/// A model repository: `owner/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoId(String);

impl RepoId {
    /// The folder of this repository in a cache.
    pub fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// The repository that a folder of a cache belongs to.
    pub fn from_folder(folder: &str) -> Option<Self> {
        let (owner, name) = folder.strip_prefix("models--")?.split_once("--")?;
        format!("{owner}/{name}").parse().ok()
    }

    /// `owner/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RepoId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let plain = |part: &str| {
            let inside = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            part.chars().all(inside)
                && part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && !part.ends_with(['.', '-'])
                // `--` stands for the slash in folder names, `..` for a way out.
                && !part.contains("--")
                && !part.contains("..")
        };
        match text.split_once('/') {
            Some((owner, name)) if plain(owner) && plain(name) && text.len() <= MAX_REPO => {
                Ok(RepoId(text.to_owned()))
            }
            _ => Err(HubError::RepoName { found: shown(text) }),
        }
    }
}

/// A branch, a tag or a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision(String);

impl Revision {
    /// The name as the hub knows it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The commit, where the revision is one in full.
    pub fn commit(&self) -> Option<Commit> {
        self.0.parse().ok()
    }
}

impl Default for Revision {
    /// `main`.
    fn default() -> Self {
        Revision("main".to_owned())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Revision {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let inside = |c: char| c.is_ascii_alphanumeric() || "-_.+/".contains(c);
        // A revision is a path below `refs/`.
        let plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with('.');
        let fits = (1..=MAX_REVISION).contains(&text.len()) && text.chars().all(inside);
        if fits && text.split('/').all(plain) && !text.contains("..") {
            return Ok(Revision(text.to_owned()));
        }
        Err(HubError::RevisionName { found: shown(text) })
    }
}

/// A commit: 40 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit(String);

impl Commit {
    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Commit {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        if is_hex(text, 40) {
            return Ok(Commit(text.to_owned()));
        }
        Err(HubError::CommitName { found: shown(text) })
    }
}

/// A repository and what of it: `owner/name` or `owner/name@revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoRef {
    /// Which repository.
    pub repo: RepoId,
    /// Which state of it.
    pub revision: Revision,
}

impl fmt::Display for RepoRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.revision == Revision::default() {
            return self.repo.fmt(f);
        }
        write!(f, "{}@{}", self.repo, self.revision)
    }
}

impl FromStr for RepoRef {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let (repo, revision) = match text.split_once('@') {
            Some((repo, revision)) => (repo, revision.parse()?),
            None => (text, Revision::default()),
        };
        Ok(RepoRef { repo: repo.parse()?, revision })
    }
}

/// Lower-case hexadecimal digits, this many.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a name of a file in a repository stays inside a folder.
///
/// # Errors
/// [`HubError::FileName`] for an empty or absolute name, an empty component, `.` or `..`, a
/// backslash, and control characters.
pub fn check_file_name(name: &str) -> Result<(), HubError> {
    let refuse = |reason| Err(HubError::FileName { name: shown(name), reason });
    if name.starts_with('/') {
        return refuse("it is absolute");
    }
    if name.chars().any(char::is_control) {
        return refuse("it holds a control character");
    }
    if name.contains('\\') {
        return refuse("it holds a backslash");
    }
    for part in name.split('/') {
        match part {
            "" => return refuse("it has an empty part"),
            "." | ".." => return refuse("it leads out of its folder"),
            _ => {}
        }
    }
    Ok(())
}

/// Whether every file system takes the name of a file that is to be written.
///
/// # Errors
/// [`HubError::FileName`] as [`check_file_name`], and for names that are too long, or reserved or
/// impossible on Windows (whose file systems are mounted elsewhere too).
pub fn check_portable(name: &str) -> Result<(), HubError> {
    check_file_name(name)?;
    let refuse = |reason| Err(HubError::FileName { name: shown(name), reason });
    for part in name.split('/') {
        if part.len() > MAX_COMPONENT {
            return refuse("it is longer than 255 bytes");
        }
        if part.contains(['<', '>', ':', '"', '|', '?', '*']) {
            return refuse("it holds a character that file systems refuse");
        }
        if part.ends_with(['.', ' ']) {
            return refuse("it ends in a full stop or a space");
        }
        let stem = part.split('.').next().unwrap_or_default().to_ascii_lowercase();
        let numbered = |device: &str| {
            stem.strip_prefix(device).is_some_and(|n| n.len() == 1 && n != "0" && is_digit(n))
        };
        if ["con", "prn", "aux", "nul"].contains(&&*stem) || numbered("com") || numbered("lpt") {
            return refuse("it is reserved on Windows");
        }
    }
    Ok(())
}

fn is_digit(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// A text from outside for a message: what cannot be printed is escaped, what is long is cut.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 120;
    let escaped: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() { format!("{escaped}…") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_an_owner_and_a_name() {
        for text in ["mlx-community/Qwen3.6-35B-A3B-4bit", "a/b", "A_1/x.y", "_o/n"] {
            let repo: RepoId = text.parse().unwrap();
            assert_eq!(repo.to_string(), text);
            assert_eq!(RepoId::from_folder(&repo.folder()), Some(repo));
        }
        let long = format!("a/{}", "b".repeat(100));
        for text in [
            "", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a--b/c", "a/b c", "a/b%2f", "~/x",
            "./x", &long,
        ] {
            let error = text.parse::<RepoId>().unwrap_err();
            assert!(matches!(error, HubError::RepoName { .. }), "{text:?}");
        }
    }

    #[test]
    fn a_folder_is_named_as_other_tools_name_it() {
        let repo: RepoId = "mlx-community/Qwen3.6-35B-A3B-4bit".parse().unwrap();
        assert_eq!(repo.folder(), "models--mlx-community--Qwen3.6-35B-A3B-4bit");
        for folder in ["datasets--a--b", "models--a", "models--..--x", ".locks"] {
            assert_eq!(RepoId::from_folder(folder), None, "{folder}");
        }
    }

    #[test]
    fn a_revision_stays_below_refs() {
        for text in ["main", "v1.0", "refs/pr/1", "feature/x+y", &"0".repeat(40)] {
            assert_eq!(text.parse::<Revision>().unwrap().as_str(), text);
        }
        for text in
            ["", "/", "../x", "a/../b", "a//b", ".hidden", "a/.b", "a b", "a\0", "a?b", "x."]
        {
            assert!(text.parse::<Revision>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_a_full_commit_is_a_commit() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert!(commit.parse::<Revision>().unwrap().commit().is_some());
        for text in [
            "main",
            &commit[1..],
            &commit.to_uppercase(),
            "../../../../../../../../../../../../../a",
        ] {
            assert!(text.parse::<Commit>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_repository_may_come_with_a_revision() {
        let plain: RepoRef = "a/b".parse().unwrap();
        assert_eq!((plain.revision.as_str(), plain.to_string()), ("main", "a/b".to_owned()));
        let tagged: RepoRef = "a/b@v1".parse().unwrap();
        assert_eq!((tagged.revision.as_str(), tagged.to_string()), ("v1", "a/b@v1".to_owned()));
        for text in ["a/b@", "a@v1/b", "a/b@v1@v2"] {
            assert!(text.parse::<RepoRef>().is_err(), "{text}");
        }
    }

    #[test]
    fn hostile_file_names_are_refused() {
        let hostile = [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "./a",
            "a/.",
            "a\\b",
            "..\\x",
            "a\0b",
            "a\nb",
            "a\u{1b}[2J",
        ];
        for name in hostile {
            assert!(check_file_name(name).is_err(), "{name:?}");
            assert!(check_portable(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn names_that_some_file_system_refuses_are_not_written() {
        let long = "a".repeat(256);
        for name in ["con", "NUL.json", "a/Lpt1.txt", "com9", "a:b", "what?", "x.", "x ", &long] {
            check_file_name(name).unwrap();
            assert!(check_portable(name).is_err(), "{name:?}");
        }
        for name in ["config.json", "com0", "com10.txt", "console", "a/b.safetensors", "ä.json"] {
            check_portable(name).unwrap();
        }
    }

    #[test]
    fn what_is_shown_is_short_and_printable() {
        assert_eq!(shown("a\u{1b}b"), "a\\u{1b}b");
        assert_eq!(shown(&"x".repeat(500)).chars().count(), 121);
    }
}
