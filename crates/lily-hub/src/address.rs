//! Names of models that were copied from the address line of a browser.

use percent_encoding::percent_decode_str;
use ureq::http::Uri;

use crate::client::same_origin;
use crate::error::HubError;
use crate::names::{RepoId, RepoRef, Revision, shown};

/// What a hub has beside models, under names of the same form.
const OTHER_KINDS: [&str; 4] = ["datasets", "spaces", "collections", "api"];

impl RepoRef {
    /// The model whose page is at an address of the hub `endpoint`: `/OWNER/NAME`, or
    /// `/OWNER/NAME/tree/REVISION` (a slash in the revision as `%2F`), each perhaps with a slash at its
    /// end. Nothing but these names is taken from it: requests go to the hub however it was written.
    ///
    /// # Errors
    /// [`HubError::Address`] for any other address, with the model that may be meant;
    /// [`HubError::RevisionName`].
    pub fn from_address(text: &str, endpoint: &str) -> Result<Self, HubError> {
        let path = path_below(text, endpoint);
        let parts: Vec<&str> = path.map(parts).unwrap_or_default();
        let model = |owner, name| repo(owner, name).ok_or_else(|| refusal(text, endpoint));
        match parts[..] {
            [owner, name] => {
                Ok(RepoRef { repo: model(owner, name)?, revision: Revision::default() })
            }
            [owner, name, "tree", revision] => {
                let repo = model(owner, name)?;
                let wrong = |_| HubError::RevisionName { found: shown(revision) };
                let revision = percent_decode_str(revision).decode_utf8().map_err(wrong)?;
                Ok(RepoRef { repo, revision: revision.parse()? })
            }
            _ => Err(refusal(text, endpoint)),
        }
    }
}

/// The path of an address, below that of the endpoint, if it is there at all.
fn path_below<'a>(text: &'a str, endpoint: &str) -> Option<&'a str> {
    let (address, base) = (text.parse::<Uri>().ok()?, endpoint.parse::<Uri>().ok()?);
    // A name of a user, a query and a fragment ask for something that a name of a model leaves out.
    let bare = !text.contains(['@', '?', '#']);
    if !bare || !same_origin(&address, &base) {
        return None;
    }
    let path = path_of(text)?;
    let below = path.strip_prefix(base.path().trim_end_matches('/'))?;
    below.starts_with('/').then_some(below)
}

/// All behind the host.
fn path_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    Some(&rest[rest.find('/')?..])
}

fn parts(path: &str) -> Vec<&str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.strip_suffix('/').unwrap_or(path).split('/').collect()
}

fn repo(owner: &str, name: &str) -> Option<RepoId> {
    if OTHER_KINDS.contains(&owner) {
        return None;
    }
    format!("{owner}/{name}").parse().ok()
}

fn refusal(text: &str, endpoint: &str) -> HubError {
    let path = path_of(text).map(|path| path.split(['?', '#']).next().unwrap_or_default());
    let guess = match path.map(parts).unwrap_or_default()[..] {
        [owner, name, ..] => repo(owner, name),
        _ => None,
    };
    let guess = guess.map(|repo| repo.to_string());
    HubError::Address { found: shown(text), endpoint: endpoint.to_owned(), guess }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUB: &str = "https://hub.example";

    #[test]
    fn the_page_of_a_model_names_it() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        for (address, endpoint, name) in [
            ("https://hub.example/a/b", HUB, "a/b"),
            ("https://hub.example/a/b/", HUB, "a/b"),
            ("HTTPS://Hub.Example:443/a/B-1.5_x", HUB, "a/B-1.5_x"),
            ("https://hub.example/a/b/tree/main", HUB, "a/b"),
            ("https://hub.example/a/b/tree/v1/", HUB, "a/b@v1"),
            ("https://hub.example/a/b/tree/refs%2Fpr%2F1", HUB, "a/b@refs/pr/1"),
            (&format!("{HUB}/a/b/tree/{commit}"), HUB, &format!("a/b@{commit}")),
            ("http://127.0.0.1:80/x/a/b", "http://127.0.0.1/x", "a/b"),
        ] {
            let model = RepoRef::from_address(address, endpoint).unwrap();
            assert_eq!(model.to_string(), name, "{address}");
        }
    }

    #[test]
    fn other_addresses_are_refused_with_the_model_that_may_be_meant() {
        for (address, guess) in [
            ("https://other.example/a/b", Some("a/b")),
            ("http://hub.example/a/b", Some("a/b")),
            ("https://hub.example:444/a/b", Some("a/b")),
            ("https://hub.example.evil/a/b", Some("a/b")),
            ("https://hub.example@evil/a/b", Some("a/b")),
            ("https://me@hub.example/a/b", Some("a/b")),
            ("ftp://hub.example/a/b", Some("a/b")),
            ("https://hub.example/a/b?x=1", Some("a/b")),
            ("https://hub.example/a/b#files", Some("a/b")),
            ("https://hub.example/a/b/blob/main/config.json", Some("a/b")),
            ("https://hub.example/a/b/tree/main/sub", Some("a/b")),
            ("https://hub.example/a/b//", Some("a/b")),
            ("https://hub.example/a/b/tree", Some("a/b")),
            ("https://hub.example//a/b", None),
            ("https://hub.example/a", None),
            ("https://hub.example", None),
            ("https://hub.example/", None),
            ("https://hub.example/datasets/a", None),
            ("https://hub.example/datasets/a/b", None),
            ("https://hub.example/../b", None),
            ("https://hub.example/a/..%2F..", None),
            ("https://hub.example/a/b%2f", None),
            ("https://hub.example/a/ b", None),
            ("https://hub.example/a/b\u{1b}[2J", None),
            ("https:///a/b", Some("a/b")),
            ("://", None),
        ] {
            let error = RepoRef::from_address(address, HUB).unwrap_err();
            let HubError::Address { guess: found, .. } = &error else {
                panic!("{address}: {error}");
            };
            assert_eq!(found.as_deref(), guess, "{address}");
            assert!(!error.to_string().contains('\u{1b}'), "{address}");
        }
        for revision in ["..%2F..", "%00", "%ff", "a%20b", ".git"] {
            let address = format!("{HUB}/a/b/tree/{revision}");
            let error = RepoRef::from_address(&address, HUB).unwrap_err();
            assert!(matches!(error, HubError::RevisionName { .. }), "{revision}: {error}");
        }
    }

    #[test]
    fn below_an_endpoint_with_a_path_only_that_counts() {
        let hub = "http://127.0.0.1:9/hub";
        for address in ["http://127.0.0.1:9/a/b", "http://127.0.0.1:9/hubs/a/b"] {
            assert!(RepoRef::from_address(address, hub).is_err(), "{address}");
        }
    }
}
