//! The `quantization` block of `config.json`.
//!
//! It is a cross-check: what is quantised, and how, is read from the tensors themselves. Only
//! [`crate::describe`], which sees no tensors, takes it at its word.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::CheckpointError;
use crate::fields::{CONFIG, Fields};
use crate::names::{Name, canonical};

/// Bits and group size of MLX affine quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affine {
    pub(crate) bits: u32,
    pub(crate) group_size: usize,
}

/// What the configuration says about one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Override {
    /// `false`: plain floats.
    Float,
    Affine(Affine),
}

/// The whole block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quantization {
    /// Modules without an entry of their own; `None` without a block.
    default: Option<Affine>,
    /// Name of the block.
    key: String,
    /// By canonical module name, with the key as spelt in the file.
    overrides: HashMap<String, (String, Override)>,
}

pub(crate) const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
pub(crate) const GROUP_SIZES: [usize; 3] = [32, 64, 128];

impl Quantization {
    /// Reads the block of a configuration (`quantization`, else `quantization_config`).
    pub(crate) fn parse(root: &Map<String, Value>) -> Result<Self, CheckpointError> {
        let root = Fields::new("", root);
        let text = root.optional_object("text_config")?;
        let text = text.map(|map| Fields::new("text_config", map));
        for key in ["quantization", "quantization_config"] {
            for fields in [Some(root), text].into_iter().flatten() {
                if let Some(block) = fields.optional_object(key)? {
                    return Self::parse_block(&fields.path(key), block);
                }
            }
        }
        Ok(Quantization::default())
    }

    fn parse_block(key: &str, block: &Map<String, Value>) -> Result<Self, CheckpointError> {
        if let Some(method) = block.get("quant_method").filter(|v| !v.is_null()) {
            let scheme = method.as_str().map_or_else(|| method.to_string(), str::to_owned);
            let place = format!("{key}.quant_method");
            return Err(CheckpointError::UnsupportedQuantization { scheme, place });
        }
        let default = Some(affine(key, block)?);
        let mut quantization = Quantization { default, key: key.to_owned(), ..Default::default() };
        for (module, value) in block {
            let Name::Text(name) = canonical(module) else { continue };
            let place = format!("{key}.{module}");
            let entry = match value {
                Value::Object(own) => Override::Affine(affine(&place, own)?),
                Value::Bool(false) => Override::Float,
                // Scalars beside the modules describe how the file was made.
                _ => continue,
            };
            if let Some((other, previous)) = quantization.overrides.get(&name)
                && *previous != entry
            {
                return Err(CheckpointError::Contradiction {
                    file: CONFIG.to_owned(),
                    first: other.clone(),
                    first_value: previous.to_string(),
                    second: place,
                    second_value: entry.to_string(),
                });
            }
            quantization.overrides.insert(name, (place, entry));
        }
        Ok(quantization)
    }

    /// What is said about a module, and the field that says it.
    pub(crate) fn of(&self, module: &str) -> Option<(&str, Override)> {
        match self.overrides.get(module) {
            Some((place, entry)) => Some((place, *entry)),
            None => self.default.map(|default| (self.key.as_str(), Override::Affine(default))),
        }
    }

    /// Whether `module` has an entry of its own.
    pub(crate) fn names(&self, module: &str) -> bool {
        self.overrides.contains_key(module)
    }

    /// Fields of entries for modules that `known` does not hold, sorted.
    pub(crate) fn unknown(&self, known: impl Fn(&str) -> bool) -> Vec<&str> {
        let unknown = self.overrides.iter().filter(|(module, _)| !known(module));
        let mut fields: Vec<&str> = unknown.map(|(_, (field, _))| field.as_str()).collect();
        fields.sort_unstable();
        fields
    }

    /// Whether there is a block at all.
    pub(crate) fn is_present(&self) -> bool {
        self.default.is_some()
    }
}

impl std::fmt::Display for Override {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Override::Float => formatter.write_str("false"),
            Override::Affine(Affine { bits, group_size }) => {
                write!(formatter, "{bits} bits and group size {group_size}")
            }
        }
    }
}

/// Bits and group size of one entry. Entries inherit nothing: absent keys mean MLX's own defaults.
fn affine(place: &str, entry: &Map<String, Value>) -> Result<Affine, CheckpointError> {
    match entry.get("mode") {
        None | Some(Value::Null) => {}
        Some(Value::String(mode)) if mode == "affine" => {}
        Some(other) => {
            let scheme = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            let place = format!("{place}.mode");
            return Err(CheckpointError::UnsupportedQuantization { scheme, place });
        }
    }
    let fields = Fields::new(place, entry);
    let bits = fields.optional_integer("bits", 1, 64)?.unwrap_or(4) as u32;
    let group_size = fields.optional_integer("group_size", 1, 1 << 20)?.unwrap_or(64);
    if !BITS.contains(&bits) {
        return Err(fields.out_of_range("bits", "2, 3, 4, 5, 6 or 8", bits));
    }
    if !GROUP_SIZES.contains(&group_size) {
        return Err(fields.out_of_range("group_size", "32, 64 or 128", group_size));
    }
    Ok(Affine { bits, group_size })
}
