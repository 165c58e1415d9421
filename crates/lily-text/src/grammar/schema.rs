//! Checking a JSON schema before it becomes a grammar: what `llguidance` would overlook, and what
//! would cost too much.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::error::Refusal;

/// Schemas within a schema, itself included.
const MAX_SCHEMAS: usize = 5_000;
/// Values in all `enum`s together.
const MAX_ENUM_VALUES: usize = 10_000;
/// Schemas inside each other.
const MAX_DEPTH: usize = 64;
/// Largest bound on a length or number of things. Bounds are unrolled.
const MAX_BOUND: u64 = 100_000;

/// Largest number that a schema may compare with: up to here doubles hold whole numbers exactly.
const MAX_NUMBER: f64 = 9_007_199_254_740_992.0;
/// Largest divisor, and product of all different ones, without regard to decimal points.
/// Divisibility is a machine with a state for each remainder, and schemas may have to hold together.
const MAX_DIVISOR: u64 = 10_000;
/// Decimal places of a divisor at most.
const MAX_DIVISOR_PLACES: usize = 6;

/// Formats of strings that are enforced.
pub(super) const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Keywords whose value is a schema.
const ONE: [&str; 3] = ["additionalProperties", "additionalItems", "items"];
/// Keywords whose value is a list of schemas.
const LIST: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];
/// Keywords whose value holds schemas under names.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that bound how much of something there is.
const BOUNDS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
/// Keywords of one draft or another, or of OpenAPI, that restrict what is valid and are not
/// enforced.
const UNSUPPORTED: [&str; 19] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "$recursiveAnchor",
    "nullable",
    // Options of the library, which a request must not set.
    "x-guidance",
];

/// Keywords that restrict what is valid and are enforced.
const ENFORCED: [&str; 27] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// What `type` may name.
const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// Whether a keyword restricts what is valid.
pub(super) fn is_keyword(name: &str) -> bool {
    ENFORCED.contains(&name) || UNSUPPORTED.contains(&name)
}

/// The schema with options for the library, after all of it has been checked.
pub(super) fn prepare(schema: &Value, options: &Value) -> Result<Value, Refusal> {
    let schema = check(schema)?;
    let mut root = match schema {
        Value::Object(root) => root,
        // Any value, or none.
        Value::Bool(true) => Map::new(),
        _ => return Ok(schema),
    };
    root.insert("x-guidance".to_owned(), options.clone());
    Ok(Value::Object(root))
}

/// The schema without keywords that say nothing, after all of it has been checked.
pub(super) fn check(schema: &Value) -> Result<Value, Refusal> {
    let mut schema = schema.clone();
    let mut counts = Counts { schemas: 0, enum_values: 0, divisors: BTreeSet::new() };
    counts.visit(&mut schema, "#", 0)?;
    Ok(schema)
}

struct Counts {
    schemas: usize,
    enum_values: usize,
    divisors: BTreeSet<u64>,
}

impl Counts {
    fn visit(&mut self, schema: &mut Value, place: &str, depth: usize) -> Result<(), Refusal> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            return Err(too_large("number of schemas", self.schemas, MAX_SCHEMAS));
        }
        if depth > MAX_DEPTH {
            return Err(too_large("depth of the schema", depth, MAX_DEPTH));
        }
        let object = match schema {
            Value::Object(object) => object,
            Value::Bool(_) => return Ok(()),
            _ => {
                let place = place.to_owned();
                return Err(Refusal::Form { place, expected: "a schema: an object or a boolean" });
            }
        };
        // What asks for nothing need not be refused.
        for name in ["uniqueItems", "nullable"] {
            if object.get(name) == Some(&Value::Bool(false)) {
                object.shift_remove(name);
            }
        }
        if let Some(keyword) = UNSUPPORTED.iter().find(|name| object.contains_key(**name)) {
            return Err(keyword_error(place, keyword, "is not supported"));
        }
        self.check_values(object, place)?;
        for (name, value) in object {
            let place = || format!("{place}/{}", escape(name));
            match value {
                Value::Object(named) if NAMED.contains(&name.as_str()) => {
                    for (key, schema) in named {
                        self.visit(schema, &format!("{}/{}", place(), escape(key)), depth + 1)?;
                    }
                }
                Value::Array(list) if LIST.contains(&name.as_str()) => {
                    for (index, schema) in list.iter_mut().enumerate() {
                        self.visit(schema, &format!("{}/{index}", place()), depth + 1)?;
                    }
                }
                _ if ONE.contains(&name.as_str()) => self.visit(value, &place(), depth + 1)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add_divisor(&mut self, divisor: &Value, place: &str) -> Result<(), Refusal> {
        let product = coefficient(divisor).and_then(|coefficient| {
            self.divisors.insert(coefficient);
            self.divisors.iter().try_fold(1u64, |product, next| product.checked_mul(*next))
        });
        if product.is_some_and(|product| product <= MAX_DIVISOR) {
            return Ok(());
        }
        let complaint = format!(
            "must be a positive number, of at most {MAX_DIVISOR} together with all others and \
             without decimal points"
        );
        Err(keyword_error(place, "multipleOf", complaint))
    }

    fn check_values(&mut self, object: &Map<String, Value>, place: &str) -> Result<(), Refusal> {
        check_forms(object, place)?;
        if let Some(Value::Array(values)) = object.get("enum") {
            self.enum_values += values.len();
            if self.enum_values > MAX_ENUM_VALUES {
                let what = "number of enum values";
                return Err(too_large(what, self.enum_values, MAX_ENUM_VALUES));
            }
            if values.is_empty() {
                return Err(keyword_error(place, "enum", "allows no value"));
            }
        }
        for name in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const"] {
            if object.get(name).is_some_and(holds_huge_number) {
                return Err(keyword_error(
                    place,
                    name,
                    format!("holds a number beyond {MAX_NUMBER}"),
                ));
            }
        }
        if object.get("enum").is_some_and(holds_huge_number) {
            return Err(keyword_error(
                place,
                "enum",
                format!("holds a number beyond {MAX_NUMBER}"),
            ));
        }
        if let Some(divisor) = object.get("multipleOf") {
            self.add_divisor(divisor, place)?;
        }
        for name in BOUNDS {
            if object.get(name).and_then(Value::as_u64).is_some_and(|bound| bound > MAX_BOUND) {
                return Err(keyword_error(place, name, format!("is larger than {MAX_BOUND}")));
            }
        }
        if let Some(Value::String(format)) = object.get("format")
            && may_be_string(object)
            && !FORMATS.contains(&format.as_str())
        {
            let complaint = format!("is {format:?}; enforced are {}", FORMATS.join(", "));
            return Err(keyword_error(place, "format", complaint));
        }
        if let Some(Value::String(reference)) = object.get("$ref")
            && reference != "#"
            && !reference.starts_with("#/")
        {
            let complaint = format!("is {reference:?}; it must begin with \"#/\"");
            return Err(keyword_error(place, "$ref", complaint));
        }
        Ok(())
    }
}

/// What the library would refuse without saying where it stands.
fn check_forms(object: &Map<String, Value>, place: &str) -> Result<(), Refusal> {
    for (name, value) in object {
        let (fits, expected) = match name.as_str() {
            "enum" | "anyOf" | "oneOf" | "allOf" => (value.is_array(), "a list"),
            "properties" => (value.is_object(), "an object"),
            "$ref" => (value.is_string(), "a string"),
            "type" => {
                check_type(value, place)?;
                continue;
            }
            _ => continue,
        };
        if !fits {
            return Err(Refusal::Form { place: format!("{place}/{name}"), expected });
        }
    }
    Ok(())
}

fn check_type(value: &Value, place: &str) -> Result<(), Refusal> {
    let names = match value {
        Value::Array(names) => names.as_slice(),
        one => std::slice::from_ref(one),
    };
    let is_known = |name: &&Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    match names.iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let (found, types) = (shortened(&name.to_string()), TYPES.join(", "));
            let complaint = format!("is {found}; expected one of {types}, or a list of these");
            Err(keyword_error(place, "type", complaint))
        }
    }
}

/// A value for a message.
fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn may_be_string(object: &Map<String, Value>) -> bool {
    match object.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        _ => true,
    }
}

fn holds_huge_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_none_or(|number| number.abs() > MAX_NUMBER),
        Value::Array(list) => list.iter().any(holds_huge_number),
        Value::Object(object) => object.values().any(holds_huge_number),
        _ => false,
    }
}

/// A divisor without its decimal point and trailing zeros.
fn coefficient(value: &Value) -> Option<u64> {
    let divisor = value.as_f64().filter(|divisor| *divisor > 0.0)?;
    let digits = format!("{divisor}");
    let (whole, places) = digits.split_once('.').unwrap_or((&digits, ""));
    let whole = if places.is_empty() { whole.trim_end_matches('0') } else { whole };
    let coefficient = format!("{whole}{places}").parse().ok();
    coefficient.filter(|_| places.len() <= MAX_DIVISOR_PLACES)
}

pub(super) fn keyword_error(place: &str, keyword: &str, complaint: impl Into<String>) -> Refusal {
    Refusal::Keyword {
        place: place.to_owned(),
        keyword: keyword.to_owned(),
        complaint: complaint.into(),
    }
}

fn too_large(what: &'static str, found: usize, max: usize) -> Refusal {
    Refusal::TooLarge { what, found, max }
}

/// A name as part of a JSON pointer.
pub(super) fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
