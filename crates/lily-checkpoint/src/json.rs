//! JSON that repeats no key.
//!
//! `serde_json` keeps the last of two equal keys; a file whose meaning depends on that is refused.
//! Its recursion limit of 128 bounds nesting.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::CheckpointError;

/// Parses `bytes` as one JSON object.
pub(crate) fn parse_object(
    file: &str,
    bytes: &[u8],
) -> Result<Map<String, Value>, CheckpointError> {
    let json = |reason: String| CheckpointError::Json { file: file.to_owned(), reason };
    match serde_json::from_slice::<Strict>(bytes) {
        Ok(Strict(Value::Object(map))) => Ok(map),
        Ok(Strict(other)) => Err(json(format!("{} instead of an object", kind(&other)))),
        Err(error) => Err(json(error.to_string())),
    }
}

/// A value for an error message, shortened.
pub(crate) fn shown(value: &Value) -> String {
    shorten(&value.to_string())
}

/// At most 80 characters of `text`.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number is not finite"))
    }
    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Strict(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let Strict(value) = entries.next_value()?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("key {:?} appears twice", shorten(&key))));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_is_refused_at_any_depth() {
        for text in [r#"{"a": 1, "a": 2}"#, r#"{"a": [{"b": 1, "b": 1}]}"#] {
            let error = parse_object("config.json", text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("twice"), "{error}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_recursing_through_it() {
        let text = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let error = parse_object("config.json", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("recursion limit"), "{error}");
    }

    #[test]
    fn values_survive_parsing() {
        let text = r#"{"a": [1, -2, 0.5, null, true, "x"], "b": {}}"#;
        let map = parse_object("config.json", text.as_bytes()).unwrap();
        assert_eq!(Value::Object(map), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn anything_but_an_object_is_refused() {
        for text in ["[]", "1", "null", "", "{} {}"] {
            assert!(parse_object("config.json", text.as_bytes()).is_err(), "{text}");
        }
    }
}
