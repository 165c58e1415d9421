//! Which safetensors files make up the checkpoint, and what each holds.
//!
//! The index decides when every shard it needs exists. Otherwise it belongs to another set of files
//! (converters ship it by mistake) and all `model*.safetensors` count, with a warning.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::CheckpointError;
use crate::json::{parse_object, shown};
use crate::names::{Name, canonical, is_mtp_file, shard_number};
use crate::safetensors::{TensorEntry, read_header};
use crate::source::{Blob, Source, is_plain_name};

pub(crate) const INDEX: &str = "model.safetensors.index.json";
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// A tensor of the text model.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    /// Index into [`Shards::files`].
    pub(crate) file: usize,
    pub(crate) entry: TensorEntry,
}

/// All open files and the tensors of the text model by canonical name.
#[derive(Debug)]
pub(crate) struct Shards {
    pub(crate) files: Vec<Blob>,
    pub(crate) tensors: HashMap<String, Located>,
    /// Canonical name to shard, for tensors that an ignored index places in files that do not exist.
    pub(crate) absent: HashMap<String, String>,
    pub(crate) warnings: Vec<String>,
}

/// `weight_map` of the index: tensor name to shard.
type WeightMap = HashMap<String, String>;

impl Shards {
    pub(crate) fn open(source: &Source) -> Result<Self, CheckpointError> {
        let present = source.list()?;
        let exists = |file: &String| present.binary_search(file).is_ok();
        let mut warnings = Vec::new();
        let mut absent = HashMap::new();
        let mut index = read_index(source)?;
        if index.as_ref().is_some_and(|map| needed(map).next().is_none()) {
            warnings.push(format!("{INDEX} names no tensor of the model: the index is ignored"));
            index = None;
        }
        if let Some(map) = &index {
            absent = needed(map)
                .filter(|(_, shard)| !exists(shard))
                .map(|(name, shard)| (name, shard.clone()))
                .collect();
            if let Some(shard) = absent.values().min() {
                warnings
                    .push(format!("{INDEX} names {shard}, which is missing: the index is ignored"));
                index = None;
            }
        }
        let names = match &index {
            Some(map) => {
                let mut names: Vec<String> = map.values().filter(|f| exists(f)).cloned().collect();
                names.sort();
                names.dedup();
                names
            }
            None => model_files(&present)?,
        };
        if names.is_empty() {
            if let Some(shard) = absent.values().min() {
                let (file, named_by) = (shard.clone(), INDEX.to_owned());
                return Err(CheckpointError::MissingShard { file, named_by });
            }
            return Err(match source.gguf()? {
                Some(file) => CheckpointError::Gguf { file },
                None => CheckpointError::NoWeights { path: source.display() },
            });
        }
        let mut shards = Shards { files: Vec::new(), tensors: HashMap::new(), absent, warnings };
        for name in &names {
            shards.add(source, name, index.as_ref())?;
        }
        Ok(shards)
    }

    fn add(
        &mut self,
        source: &Source,
        file: &str,
        index: Option<&WeightMap>,
    ) -> Result<(), CheckpointError> {
        let Some(blob) = source.open(file)? else {
            return Err(CheckpointError::MissingFile { file: file.to_owned() });
        };
        let entries = read_header(&blob)?;
        if let Some(index) = index {
            check_index(index, file, &entries)?;
        }
        self.files.push(blob);
        for entry in entries {
            let placed = index.and_then(|index| index.get(&entry.name));
            if placed.is_some_and(|shard| shard != file) {
                continue;
            }
            if let Name::Text(name) = canonical(&entry.name) {
                self.insert(name, Located { file: self.files.len() - 1, entry })?;
            }
        }
        Ok(())
    }

    fn insert(&mut self, name: String, tensor: Located) -> Result<(), CheckpointError> {
        if let Some(other) = self.tensors.get(&name) {
            return Err(CheckpointError::DuplicateTensor {
                first: other.entry.name.clone(),
                first_file: self.file_name(other).to_owned(),
                second: tensor.entry.name.clone(),
                second_file: self.file_name(&tensor).to_owned(),
            });
        }
        self.tensors.insert(name, tensor);
        Ok(())
    }

    pub(crate) fn file_name(&self, tensor: &Located) -> &str {
        self.files[tensor.file].name()
    }
}

/// Tensors of the text model that the index lists, by canonical name.
fn needed(map: &WeightMap) -> impl Iterator<Item = (String, &String)> {
    map.iter().filter_map(|(raw, shard)| match canonical(raw) {
        Name::Text(name) => Some((name, shard)),
        Name::Skipped => None,
    })
}

/// Every tensor that the index places in `file` must be there.
fn check_index(
    index: &WeightMap,
    file: &str,
    entries: &[TensorEntry],
) -> Result<(), CheckpointError> {
    let held: std::collections::HashSet<&str> = entries.iter().map(|e| e.name.as_str()).collect();
    let lacking = index
        .iter()
        .filter(|(name, shard)| *shard == file && !held.contains(name.as_str()))
        .map(|(name, _)| name)
        .min();
    match lacking {
        None => Ok(()),
        Some(name) => Err(CheckpointError::IndexedTensorMissing {
            index: INDEX.to_owned(),
            tensor: name.clone(),
            file: file.to_owned(),
        }),
    }
}

fn read_index(source: &Source) -> Result<Option<WeightMap>, CheckpointError> {
    let Some(bytes) = source.read(INDEX, MAX_INDEX_BYTES)? else { return Ok(None) };
    let root = parse_object(INDEX, &bytes)?;
    let wrong = |field: &str, found: &Value, expected| CheckpointError::WrongType {
        file: INDEX.to_owned(),
        field: field.to_owned(),
        expected,
        found: shown(found),
    };
    let map: &Map<String, Value> = match root.get("weight_map") {
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong("weight_map", other, "an object")),
        None => {
            let (file, field) = (INDEX.to_owned(), "weight_map".to_owned());
            return Err(CheckpointError::MissingField { file, field });
        }
    };
    let mut weights = WeightMap::with_capacity(map.len());
    for (name, shard) in map {
        let Value::String(shard) = shard else {
            return Err(wrong(&format!("weight_map.{name}"), shard, "a file name"));
        };
        if !is_plain_name(shard) && canonical(name) != Name::Skipped {
            return Err(CheckpointError::ShardName {
                file: INDEX.to_owned(),
                shard: crate::json::shorten(shard),
            });
        }
        weights.insert(name.clone(), shard.clone());
    }
    Ok(Some(weights))
}

/// All `model*.safetensors`; numbered sets must be complete.
fn model_files(present: &[String]) -> Result<Vec<String>, CheckpointError> {
    let files: Vec<String> = present
        .iter()
        .filter(|n| n.starts_with("model") && n.ends_with(".safetensors") && !is_mtp_file(n))
        .cloned()
        .collect();
    for file in &files {
        let Some((stem, _, count)) = shard_number(file) else { continue };
        for position in 1..=count {
            let sibling = format!("{stem}-{position:05}-of-{count:05}.safetensors");
            if present.binary_search(&sibling).is_err() {
                return Err(CheckpointError::MissingShard {
                    file: sibling,
                    named_by: file.clone(),
                });
            }
        }
    }
    Ok(files)
}
