//! Parameter values: from the model's plain text to JSON, by the tool's schema.

use std::collections::HashMap;

use serde_json::Value;

/// Longest chain of `$ref`, `anyOf` and the like that is followed.
const MAX_SCHEMA_DEPTH: usize = 16;

/// The functions a request offers, by name.
#[derive(Debug, Default)]
pub(crate) struct ToolSchemas {
    parameters: HashMap<String, Value>,
}

impl ToolSchemas {
    /// Reads OpenAI's tool objects, wrapped in `function` or flat.
    pub(crate) fn new(tools: &[Value]) -> Self {
        let parameters = tools
            .iter()
            .filter_map(|tool| {
                let function = tool.get("function").unwrap_or(tool);
                let name = function.get("name")?.as_str()?;
                let schema = function.get("parameters").cloned().unwrap_or_default();
                Some((name.to_owned(), schema))
            })
            .collect();
        Self { parameters }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    pub(super) fn knows(&self, function: &str) -> bool {
        self.parameters.contains_key(function)
    }

    /// Whether `function` declares `parameter`.
    pub(super) fn declares(&self, function: &str, parameter: &str) -> bool {
        self.parameters
            .get(function)
            .and_then(|schema| schema.get("properties")?.get(parameter))
            .is_some()
    }

    /// The types `parameter` of `function` may have.
    pub(crate) fn types(&self, function: &str, parameter: &str) -> Types {
        let mut types = Types::default();
        if let Some(root) = self.parameters.get(function) {
            let declared = root.get("properties").and_then(|all| all.get(parameter));
            if let Some(schema) = declared.or_else(|| root.get("additionalProperties")) {
                types.collect(schema, root, 0);
            }
        }
        types
    }
}

/// A set of JSON types; empty if the schema does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Types {
    string: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    /// Object or array.
    container: bool,
    null: bool,
}

impl Types {
    fn collect(&mut self, schema: &Value, root: &Value, depth: usize) {
        if depth > MAX_SCHEMA_DEPTH {
            return;
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.add(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.add(name))
            }
            _ => self.collect_untyped(schema, root, depth),
        }
    }

    fn collect_untyped(&mut self, schema: &Value, root: &Value, depth: usize) {
        if let Some(target) = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|path| root.pointer(path.strip_prefix('#')?))
        {
            self.collect(target, root, depth + 1);
        }
        for alternatives in ["anyOf", "oneOf", "allOf"] {
            for alternative in
                schema.get(alternatives).and_then(Value::as_array).into_iter().flatten()
            {
                self.collect(alternative, root, depth + 1);
            }
        }
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        for value in values.chain(schema.get("const")) {
            self.add(match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(number) if number.is_f64() => "number",
                Value::Number(_) => "integer",
                Value::String(_) => "string",
                Value::Array(_) | Value::Object(_) => "object",
            });
        }
        if schema.get("properties").is_some() || schema.get("items").is_some() {
            self.add("object");
        }
    }

    /// Adds a type by its name in JSON Schema or by one of the names that
    /// clients use instead.
    fn add(&mut self, name: &str) {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "string" | "str" | "text" | "varchar" | "char" | "enum" => self.string = true,
            "boolean" | "bool" | "binary" => self.boolean = true,
            "object" | "array" | "arr" => self.container = true,
            "null" | "none" => self.null = true,
            _ if ["int", "uint", "long", "short", "unsigned"]
                .iter()
                .any(|p| name.starts_with(p)) =>
            {
                self.integer = true
            }
            _ if ["num", "float", "double"].iter().any(|p| name.starts_with(p)) => {
                self.number = true
            }
            _ if ["dict", "list"].iter().any(|p| name.starts_with(p)) => self.container = true,
            _ => {}
        }
    }

    pub(crate) fn is_unknown(self) -> bool {
        self == Self::default() || self == Self { null: true, ..Self::default() }
    }

    /// Whether text is allowed.
    pub(crate) fn string(self) -> bool {
        self.string
    }

    /// Whether null is allowed.
    pub(crate) fn null(self) -> bool {
        self.null
    }

    /// Whether there is nothing but text, and null perhaps.
    pub(crate) fn is_text_only(self) -> bool {
        self.string && !(self.integer || self.number || self.boolean || self.container)
    }

    /// Whether a value beginning with `start` is certain to be passed as a
    /// string, so that it can be streamed.
    pub(super) fn is_certainly_string(self, start: &str) -> bool {
        let start = if self.is_text_only() {
            start
        } else if self.is_unknown() {
            start.trim_start()
        } else {
            return false;
        };
        // True for a text means true for whatever it grows into.
        let may_be_container = !self.is_text_only() && start.starts_with(['{', '[']);
        !start.is_empty() && !"null".starts_with(start) && !may_be_container
    }

    /// The JSON text of a complete value.
    ///
    /// `null` is null whatever the schema says, as the template writes both
    /// null and the word this way. Types other than string are tried first;
    /// a value that fits none of the allowed types is passed as a string
    /// rather than dropped.
    pub(crate) fn convert(self, value: &str) -> String {
        if self.is_certainly_string(value) {
            return quote(value);
        }
        let trimmed = value.trim();
        if trimmed == "null" {
            return "null".to_owned();
        }
        self.integer
            .then(|| integer(trimmed))
            .flatten()
            .or_else(|| self.number.then(|| number(trimmed)).flatten())
            .or_else(|| self.boolean.then(|| boolean(trimmed)).flatten())
            .or_else(|| {
                let strict = self.string || self.is_unknown();
                (self.container || self.is_unknown()).then(|| json(trimmed, strict)).flatten()
            })
            .unwrap_or_else(|| quote(value))
    }
}

/// `140` and `140.0` are both the integer 140.
fn integer(text: &str) -> Option<String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let digits = digits.trim_start_matches('0');
        let sign = if text.starts_with('-') && !digits.is_empty() { "-" } else { "" };
        return Some(format!("{sign}{}", if digits.is_empty() { "0" } else { digits }));
    }
    let number = finite(text)?;
    // Beyond 2^53 a float no longer says which integer was meant.
    (number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0).then(|| {
        let text = format!("{number:.0}");
        if text == "-0" { "0".to_owned() } else { text }
    })
}

fn number(text: &str) -> Option<String> {
    // A JSON number is kept as it is written, with all its digits.
    if matches!(serde_json::from_str(text), Ok(Value::Number(_))) {
        return Some(text.to_owned());
    }
    serde_json::Number::from_f64(finite(text)?).map(|number| number.to_string())
}

/// Reads a float in decimal form; "inf" and "nan" are words.
fn finite(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

fn boolean(text: &str) -> Option<String> {
    ["true", "false"].into_iter().find(|word| text.eq_ignore_ascii_case(word)).map(str::to_owned)
}

/// The text itself if it is JSON; if `strict`, only an object or array.
fn json(text: &str, strict: bool) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    (!strict || value.is_object() || value.is_array()).then(|| text.to_owned())
}

/// A JSON string.
pub(super) fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

/// The inside of a JSON string. Pieces may be escaped on their own and joined.
pub(super) fn escape(text: &str) -> String {
    let quoted = quote(text);
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn convert(schema: Value, value: &str) -> String {
        let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {
            "type": "object",
            "properties": {"x": schema},
            "$defs": {"Unit": {"type": "string", "enum": ["c", "f"]}, "Loop": {"$ref": "#/$defs/Loop"}},
        }}})];
        ToolSchemas::new(&tools).types("f", "x").convert(value)
    }

    #[test]
    fn values_follow_the_type_in_the_schema() {
        for (schema, value, expected) in [
            (json!({"type": "string"}), "12", r#""12""#),
            (json!({"type": "string"}), " a\n\"b\" ", r#"" a\n\"b\" ""#),
            (json!({"type": "string"}), "true", r#""true""#),
            (json!({"type": "string"}), "null", "null"),
            (json!({"type": "integer"}), "12", "12"),
            (json!({"type": "integer"}), "140.0", "140"),
            (json!({"type": "integer"}), "-7", "-7"),
            (json!({"type": "integer"}), "007", "7"),
            (json!({"type": "integer"}), "-0", "0"),
            (
                json!({"type": "integer"}),
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (json!({"type": "integer"}), "1.5", r#""1.5""#),
            (json!({"type": "integer"}), "many", r#""many""#),
            (json!({"type": "number"}), "2.50", "2.50"),
            (json!({"type": "number"}), "3", "3"),
            (json!({"type": "number"}), ".5", "0.5"),
            (json!({"type": "number"}), "inf", r#""inf""#),
            (json!({"type": "boolean"}), "True", "true"),
            (json!({"type": "boolean"}), "false", "false"),
            (json!({"type": "boolean"}), "perhaps", r#""perhaps""#),
            (json!({"type": "object"}), "{\"a\": [1, null]}", "{\"a\": [1, null]}"),
            (json!({"type": "array"}), "[1,2]", "[1,2]"),
            (json!({"type": "object"}), "{'a': 1}", r#""{'a': 1}""#),
            (json!({"type": "object"}), "for i in x: {", r#""for i in x: {""#),
            (json!({"type": "object"}), "null", "null"),
        ] {
            assert_eq!(convert(schema.clone(), value), expected, "{schema} {value}");
        }
    }

    #[test]
    fn without_a_type_only_objects_and_arrays_are_taken_apart() {
        assert_eq!(convert(json!({}), "5"), r#""5""#);
        assert_eq!(convert(json!({}), "[5]"), "[5]");
        assert_eq!(convert(json!({}), "{\"a\":1}"), "{\"a\":1}");
        assert_eq!(convert(json!({}), "{broken"), r#""{broken""#);
        assert_eq!(convert(json!({}), "null"), "null");
        assert_eq!(ToolSchemas::default().types("g", "y").convert("5"), r#""5""#);
    }

    #[test]
    fn alternatives_are_tried_before_falling_back_to_a_string() {
        let optional = json!({"anyOf": [{"type": "integer"}, {"type": "null"}]});
        assert_eq!(convert(optional.clone(), "5"), "5");
        assert_eq!(convert(optional, "null"), "null");
        assert_eq!(convert(json!({"type": ["integer", "string"]}), "5"), "5");
        assert_eq!(convert(json!({"type": ["integer", "string"]}), "five"), r#""five""#);
        assert_eq!(convert(json!({"type": ["object", "string"]}), "\"x\""), r#""\"x\"""#);
        assert_eq!(convert(json!({"enum": [1, 2]}), "2"), "2");
        assert_eq!(convert(json!({"const": "2"}), "2"), r#""2""#);
    }

    #[test]
    fn references_are_followed_and_circles_end() {
        assert_eq!(convert(json!({"$ref": "#/$defs/Unit"}), "5"), r#""5""#);
        assert_eq!(convert(json!({"allOf": [{"$ref": "#/$defs/Unit"}]}), "{}"), r#""{}""#);
        assert_eq!(convert(json!({"$ref": "#/$defs/Loop"}), "5"), r#""5""#);
        assert_eq!(convert(json!({"$ref": "#/$defs/Missing"}), "5"), r#""5""#);
    }

    #[test]
    fn only_what_must_become_a_string_is_streamed() {
        let text = Types { string: true, ..Types::default() };
        assert!(!text.is_certainly_string("nu"));
        assert!(text.is_certainly_string("nut"));
        assert!(text.is_certainly_string("{"));
        let unknown = Types::default();
        assert!(!unknown.is_certainly_string("  "));
        assert!(!unknown.is_certainly_string(" {"));
        assert!(unknown.is_certainly_string("a"));
        assert!(!Types { integer: true, ..text }.is_certainly_string("abc"));
    }
}
