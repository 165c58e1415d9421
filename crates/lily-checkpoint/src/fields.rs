//! Typed access to the fields of a JSON object, with errors that name the field.

use serde_json::{Map, Value};

use crate::error::CheckpointError;
use crate::json::shown;

pub(crate) const CONFIG: &str = "config.json";

/// One object of a configuration file. `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    file: &'a str,
    /// Path of the object, empty at the root.
    place: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// An object of `config.json`.
    pub(crate) fn new(place: &'a str, map: &'a Map<String, Value>) -> Self {
        Fields { file: CONFIG, place, map }
    }

    /// The root of another file.
    pub(crate) fn of_file(file: &'a str, map: &'a Map<String, Value>) -> Self {
        Fields { file, place: "", map }
    }

    pub(crate) fn path(&self, key: &str) -> String {
        if self.place.is_empty() { key.to_owned() } else { format!("{}.{key}", self.place) }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn missing(&self, key: &str) -> CheckpointError {
        CheckpointError::MissingField { file: self.file.to_owned(), field: self.path(key) }
    }

    fn wrong(&self, key: &str, expected: &'static str, found: &Value) -> CheckpointError {
        let (file, field) = (self.file.to_owned(), self.path(key));
        CheckpointError::WrongType { file, field, expected, found: shown(found) }
    }

    pub(crate) fn out_of_range(
        &self,
        key: &str,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> CheckpointError {
        CheckpointError::OutOfRange {
            file: self.file.to_owned(),
            field: self.path(key),
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    pub(crate) fn unsupported(
        &self,
        key: &str,
        expected: &'static str,
        found: &Value,
    ) -> CheckpointError {
        let (file, field) = (self.file.to_owned(), self.path(key));
        CheckpointError::UnsupportedValue { file, field, expected, found: shown(found) }
    }

    pub(crate) fn optional_integer(
        &self,
        key: &str,
        least: usize,
        most: usize,
    ) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = as_integer(value).ok_or_else(|| self.wrong(key, "a whole number", value))?;
        match usize::try_from(number) {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(self.out_of_range(key, format!("{least} to {most}"), number)),
        }
    }

    pub(crate) fn integer(
        &self,
        key: &str,
        least: usize,
        most: usize,
    ) -> Result<usize, CheckpointError> {
        self.optional_integer(key, least, most)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number that satisfies `accept`, described by `expected`.
    pub(crate) fn optional_number(
        &self,
        key: &str,
        expected: &'static str,
        accept: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| self.wrong(key, "a number", value))?;
        if number.is_finite() && accept(number) {
            Ok(Some(number))
        } else {
            Err(self.out_of_range(key, expected, number))
        }
    }

    pub(crate) fn optional_bool(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, "true or false", other)),
        }
    }

    pub(crate) fn optional_string(&self, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "a string", other)),
        }
    }

    pub(crate) fn optional_array(&self, key: &str) -> Result<Option<&'a [Value]>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wrong(key, "an array", other)),
        }
    }

    pub(crate) fn optional_object(
        &self,
        key: &str,
    ) -> Result<Option<&'a Map<String, Value>>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.wrong(key, "an object", other)),
        }
    }

    /// One token id or a list of them.
    pub(crate) fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let one = |value: &Value| {
            as_integer(value)
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| self.wrong(key, "a token id or a list of them", value))
        };
        match value {
            Value::Array(items) if items.len() > 1024 => {
                Err(self.out_of_range(key, "at most 1024 ids", items.len()))
            }
            Value::Array(items) => items.iter().map(one).collect::<Result<_, _>>().map(Some),
            other => Ok(Some(vec![one(other)?])),
        }
    }
}

/// Whole numbers, also where a writer spelt them as floats.
fn as_integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
    })
}
