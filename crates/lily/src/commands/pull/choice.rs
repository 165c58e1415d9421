//! Which files of a repository lily needs.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use lily_checkpoint::{Checkpoint, CheckpointError, FileStart};
use lily_hub::{Listing, RemoteFile, check_portable};
use serde_json::Value;

pub(super) const CONFIG: &str = "config.json";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The largest side file that a checkpoint is opened with.
const MAX_SIDE_FILE_BYTES: u64 = 512 << 20;

/// Configuration, index, tokenizer and chat template.
///
/// # Errors
/// For a file that is too large to be one of these.
pub(super) fn side_files(listing: &Listing) -> Result<Vec<RemoteFile>> {
    let files: Vec<_> = at_root(listing).filter(|file| is_side_file(&file.name)).cloned().collect();
    for file in &files {
        check_portable(&file.name)?;
        if let Some(size) = file.size.filter(|&size| size > MAX_SIDE_FILE_BYTES) {
            return Err(anyhow!(
                "{} has {size} bytes on the hub, expected at most {MAX_SIDE_FILE_BYTES}",
                file.name
            ));
        }
    }
    Ok(files)
}

fn is_side_file(name: &str) -> bool {
    let kind = |start: &str, ends: &[&str]| {
        name.starts_with(start) && ends.iter().any(|end| name.ends_with(end))
    };
    matches!(name, CONFIG | "generation_config.json" | INDEX)
        || kind("tokenizer", &[".json"])
        || kind("chat_template", &[".jinja", ".json"])
}

/// The shards that the index names where the repository has all of them, else all
/// `model*.safetensors`, as when a folder is opened.
///
/// # Errors
/// For a name that cannot be that of a file.
pub(super) fn weights(listing: &Listing, index: Option<&[u8]>) -> Result<Vec<RemoteFile>> {
    let named = index.map(shards).unwrap_or_default();
    let has = |name: &String| at_root(listing).any(|file| file.name == *name);
    let by_index = !named.is_empty() && named.iter().all(has);
    let chosen = |file: &&RemoteFile| match by_index {
        true => named.contains(&file.name),
        false => file.name.starts_with("model") && file.name.ends_with(".safetensors"),
    };
    let files: Vec<_> = at_root(listing).filter(chosen).cloned().collect();
    files.iter().try_for_each(|file| check_portable(&file.name))?;
    Ok(files)
}

/// File names of an index; none where it is not one, which opening it tells better.
fn shards(index: &[u8]) -> BTreeSet<String> {
    let index: Value = serde_json::from_slice(index).unwrap_or_default();
    let map = index.get("weight_map").and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(_, file)| file.as_str().map(str::to_owned)).collect()
}

/// Files in folders belong to other programs.
fn at_root(listing: &Listing) -> impl Iterator<Item = &RemoteFile> {
    listing.files.iter().filter(|file| !file.name.contains('/'))
}

/// An error about files that are missing, told by those that the repository has: it may hold a model
/// of another kind.
pub(super) fn named_after(listing: &Listing, error: CheckpointError) -> CheckpointError {
    if !matches!(error, CheckpointError::MissingFile { .. } | CheckpointError::NoWeights { .. }) {
        return error;
    }
    let gguf = at_root(listing).filter(|file| file.name.ends_with(".gguf"));
    let names =
        gguf.map(|f| FileStart { name: f.name.clone(), start: Vec::new(), len: 0 }).collect();
    match Checkpoint::from_starts(names) {
        Err(kind @ CheckpointError::Gguf { .. }) => kind,
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let file = |name: &&str| serde_json::json!({"rfilename": name});
        let siblings: Vec<_> = names.iter().map(file).collect();
        let sha = "0123456789abcdef0123456789abcdef01234567";
        let json = serde_json::json!({"sha": sha, "siblings": siblings}).to_string();
        Listing::parse(json.as_bytes(), "a test").unwrap()
    }

    fn names(files: &[RemoteFile]) -> Vec<&str> {
        files.iter().map(|file| file.name.as_str()).collect()
    }

    #[test]
    fn only_files_that_lily_reads_are_chosen() {
        let listing = listing(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "vocab.json",
            INDEX,
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "consolidated.safetensors",
            "pytorch_model.bin",
            "model-Q4.gguf",
            "picture.png",
            "original/config.json",
            "original/model.safetensors",
        ]);
        let side = side_files(&listing).unwrap();
        assert_eq!(
            names(&side),
            [
                "config.json",
                "generation_config.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "chat_template.jinja",
                INDEX
            ]
        );
        let both = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        assert_eq!(names(&weights(&listing, None).unwrap()), both);
        let index = |file: &str| format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#);
        let chosen = |index: &str| weights(&listing, Some(index.as_bytes())).unwrap();
        assert_eq!(
            names(&chosen(&index("consolidated.safetensors"))),
            ["consolidated.safetensors"]
        );
        // An index of other files is ignored, as when a folder is opened.
        for other in [&index("gone.safetensors"), &index("../x"), "{}", "[", "{\"weight_map\": 3}"]
        {
            assert_eq!(names(&chosen(other)), both, "{other}");
        }
    }

    #[test]
    fn a_repository_of_another_kind_is_told() {
        let missing = || CheckpointError::MissingFile { file: "config.json".into() };
        let error = named_after(&listing(&["README.md", "model-Q4.gguf"]), missing());
        assert!(
            matches!(&error, CheckpointError::Gguf { file } if file == "model-Q4.gguf"),
            "{error}"
        );
        let error = named_after(&listing(&["README.md"]), missing());
        assert!(matches!(error, CheckpointError::MissingFile { .. }), "{error}");
    }
}
