//! Strict reading of JSON request bodies.
//!
//! Serde's derived readers name neither every field nor every type the way a
//! user knows them, and ignore what they do not know. [`Fields`] hands out each
//! field of an object at most once; what was not asked for by the end is an
//! error, and `null` always means "as if absent".

use serde_json::Map;
use serde_json::Value;

use crate::error::ApiError;

/// Floats below it, if they have no fraction, are `i64` too.
const EXP_2_63: f64 = 9_223_372_036_854_775_808.0;

/// The fields of one JSON object that have not been read yet.
pub(crate) struct Fields {
    path: String,
    object: Map<String, Value>,
}

impl Fields {
    /// Takes an object apart; `path` is its place in the request, empty for the body.
    pub(crate) fn new(path: impl Into<String>, value: Value) -> Result<Fields, ApiError> {
        let path = path.into();
        match value {
            Value::Object(object) => Ok(Fields { path, object }),
            other if path.is_empty() => Err(ApiError::Field {
                param: String::new(),
                message: format!("the body must be a JSON object, not {}", kind(&other)),
                code: "invalid_type",
            }),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// The full path of a field of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Any value; absent and `null` are the same.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.object.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Whether the field is there and not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(|value| !value.is_null())
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(self.path(name), "a boolean", &other)),
        }
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(self.path(name), "a string", &other)),
        }
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(other) => Err(wrong_type(self.path(name), "an array", &other)),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(wrong_type(self.path(name), "an object", &other)),
        }
    }

    /// An integer between `low` and `high`; `64.0` is one, `64.5` and `"64"` are not.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        low: i64,
        high: i64,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let path = self.path(name);
        let Value::Number(number) = &value else {
            return Err(wrong_type(path, "an integer", &value));
        };
        // Integers of more than 64 bits are read as floats too.
        let integral = number.as_f64().filter(|float| float.fract() == 0.0);
        let exact = integral.filter(|float| float.abs() < EXP_2_63).map(|float| float as i64);
        match number.as_i64().or(exact) {
            Some(integer) if (low..=high).contains(&integer) => Ok(Some(integer)),
            None if integral.is_none() => Err(wrong_type(path, "an integer", &value)),
            Some(_) if high == i64::MAX => {
                Err(ApiError::field(path, format_args!("must be at least {low}, not {number}")))
            }
            _ => Err(ApiError::field(
                path,
                format_args!("must be between {low} and {high}, not {number}"),
            )),
        }
    }

    /// A finite number between `low` and `high`, both allowed.
    pub(crate) fn number(
        &mut self,
        name: &str,
        low: f64,
        high: f64,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let path = self.path(name);
        let Some(number) = value.as_f64() else { return Err(wrong_type(path, "a number", &value)) };
        if (low..=high).contains(&number) {
            // What is not 0 must not become 0, which may mean something else.
            let narrow = number as f32;
            Ok(Some(if narrow == 0.0 && number > 0.0 { f32::MIN_POSITIVE } else { narrow }))
        } else {
            Err(ApiError::field(
                path,
                format_args!("must be between {low} and {high}, not {number}"),
            ))
        }
    }

    /// Refuses what nobody asked for.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.object.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let param = self.path(name);
                Err(ApiError::Field {
                    message: format!("'{param}' is not a field this server knows"),
                    param,
                    code: "unknown_field",
                })
            }
        }
    }
}

/// `'{param}' must be {expected}, not {found}`.
pub(crate) fn wrong_type(param: impl Into<String>, expected: &str, found: &Value) -> ApiError {
    let param = param.into();
    ApiError::Field {
        message: format!("'{param}' must be {expected}, not {}", kind(found)),
        param,
        code: "invalid_type",
    }
}

/// `'{param}' is missing`.
pub(crate) fn missing(param: impl Into<String>) -> ApiError {
    let param = param.into();
    ApiError::Field { message: format!("'{param}' is missing"), param, code: "missing_field" }
}

/// How a user calls this kind of value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fractional number",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
