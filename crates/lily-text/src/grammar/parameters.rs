//! The parameters of a function: what may stand between the tags of each.
//!
//! Text stands there as it is, everything else as JSON, and the output parser tells them apart by
//! the types in the schema. So what is allowed here is what the parser makes a valid value of.

use serde_json::{Map, Value, json};

use super::error::Refusal;
use super::schema::{check, escape as pointer, is_keyword, keyword_error};
use crate::parser::{ToolSchemas, Types};

/// Longest chain of references that is followed.
const MAX_REFERENCES: usize = 16;

/// One parameter.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) required: bool,
    /// What its value may be, one of these.
    pub(super) contents: Vec<Content>,
}

/// What may stand between the tags.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// This text.
    Literal(String),
    /// JSON of this schema, which stands by itself.
    Json(Value),
    /// A text that meets these conjuncts of a Lark terminal and is as a whole none of these patterns.
    Text { conjuncts: String, but: &'static [&'static str] },
}

/// Keywords of the parameters as a whole that are understood.
const TOP: [&str; 6] =
    ["type", "properties", "required", "additionalProperties", "$defs", "definitions"];

/// Text that the parser takes for null.
const NULL: [&str; 1] = [r"[ \t\r\n]*null[ \t\r\n]*"];
/// Text that the parser may take for something else than text.
const OTHER_VALUES: [&str; 2] = [
    r"[ \t\r\n]*[\-+.0-9\[{](?s:.*)",
    r"[ \t\r\n]*([nN][uU][lL][lL]|[tT][rR][uU][eE]|[fF][aA][lL][sS][eE])[ \t\r\n]*",
];

/// Formats as patterns of the bare text; those that need more than a pattern are left out.
const FORMATS: [(&str, &str); 6] = [
    ("date", r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"),
    (
        "time",
        r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    (
        "date-time",
        r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    ("uuid", r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    (
        "email",
        r"[A-Za-z0-9_+\-]{1,32}(\.[A-Za-z0-9_+\-]{1,32}){0,3}@[A-Za-z0-9]{1,40}(\.[A-Za-z0-9]{1,40}){1,4}",
    ),
    (
        "ipv4",
        r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    ),
];

/// The parameters of a function, in the order of its schema.
pub(super) fn parameters(
    schema: Option<&Value>,
    function: &str,
) -> Result<Vec<Parameter>, Refusal> {
    let Some(schema) = schema else { return Ok(Vec::new()) };
    let schema = check(schema)?;
    let Value::Object(root) = &schema else {
        return Err(Refusal::Form { place: "#".to_owned(), expected: "an object" });
    };
    check_top(root)?;
    let empty = Map::new();
    let properties = match root.get("properties") {
        None => &empty,
        Some(Value::Object(properties)) => properties,
        Some(_) => {
            return Err(Refusal::Form { place: "#/properties".to_owned(), expected: "an object" });
        }
    };
    let required = required(root)?;
    let tools = [json!({"name": function, "parameters": schema})];
    let types = ToolSchemas::new(&tools);
    let any = Value::Bool(true);
    let undeclared = required.iter().filter(|name| !properties.contains_key(**name));
    let all = properties.iter().map(|(name, schema)| (name.as_str(), schema));
    all.chain(undeclared.map(|name| (*name, &any)))
        .map(|(name, schema)| {
            let place = format!("#/properties/{}", pointer(name));
            if name.is_empty() || name.contains(['<', '>', '\n']) || name != name.trim() {
                return Err(keyword_error(
                    "#",
                    "properties",
                    format!("holds {name:?}, which no tag can carry"),
                ));
            }
            let reader = Reader { root, place };
            let contents = reader.contents(schema, types.types(function, name))?;
            Ok(Parameter { name: name.to_owned(), required: required.contains(&name), contents })
        })
        .collect()
}

fn check_top(root: &Map<String, Value>) -> Result<(), Refusal> {
    if root.get("type").is_some_and(|name| name != "object") {
        return Err(keyword_error("#", "type", "must be \"object\" for a tool"));
    }
    match root.keys().find(|name| is_keyword(name) && !TOP.contains(&name.as_str())) {
        Some(name) => Err(keyword_error(
            "#",
            name,
            "is not supported for the parameters of a tool as a whole",
        )),
        None => Ok(()),
    }
}

fn required(root: &Map<String, Value>) -> Result<Vec<&str>, Refusal> {
    let form = || Refusal::Form { place: "#/required".to_owned(), expected: "a list of strings" };
    match root.get("required") {
        None => Ok(Vec::new()),
        Some(Value::Array(names)) => {
            names.iter().map(|name| name.as_str().ok_or_else(form)).collect()
        }
        Some(_) => Err(form()),
    }
}

/// Reads the schema of one parameter.
struct Reader<'a> {
    root: &'a Map<String, Value>,
    place: String,
}

impl Reader<'_> {
    fn contents(&self, schema: &Value, types: Types) -> Result<Vec<Content>, Refusal> {
        if types.is_unknown() && !types.null() {
            // Taken as text unless it is an object or a list: valid whatever it is.
            self.require_unrestricted(schema)?;
            return Ok(vec![Content::Text { conjuncts: "/(?s:.*)/".to_owned(), but: &[] }]);
        }
        if !types.string() {
            return Ok(vec![self.json(schema)?]);
        }
        let mut texts = Vec::new();
        let mut others = Vec::new();
        self.split(schema, &mut texts, &mut others, 0)?;
        let but: &[&str] = if types.is_text_only() && types.null() {
            // The word is null, which is allowed.
            &[]
        } else if types.is_text_only() {
            &NULL
        } else {
            &OTHER_VALUES
        };
        let mut contents = Vec::new();
        for text in texts {
            match text {
                Content::Literal(text) if self.changes(&text, types) => {
                    return Err(keyword_error(
                        &self.place,
                        "enum",
                        format!(
                            "holds the text {text:?}, which a tool call cannot tell from another value"
                        ),
                    ));
                }
                Content::Text { conjuncts, .. } => contents.push(Content::Text { conjuncts, but }),
                other => contents.push(other),
            }
        }
        for other in others {
            contents.push(self.json(&other)?);
        }
        Ok(contents)
    }

    /// Whether the parser makes something else of a text.
    fn changes(&self, text: &str, types: Types) -> bool {
        serde_json::from_str(&types.convert(text)).ok() != Some(Value::from(text))
            || text.contains("</parameter>")
            || text.starts_with(['\n', '\r'])
            || text.ends_with(['\n', '\r'])
    }

    /// Divides a schema into what is text and what is not.
    fn split(
        &self,
        schema: &Value,
        texts: &mut Vec<Content>,
        others: &mut Vec<Value>,
        depth: usize,
    ) -> Result<(), Refusal> {
        let Value::Object(object) = schema else {
            return Err(self.cannot("type", "is missing"));
        };
        if depth > MAX_REFERENCES {
            return Err(self.cannot("$ref", "leads too far"));
        }
        let one = |name| object.get(name).and_then(Value::as_array).filter(|list| list.len() == 1);
        if let Some(Value::String(reference)) = object.get("$ref") {
            self.require_only(object, &["$ref"])?;
            return self.split(self.resolve(reference)?, texts, others, depth + 1);
        }
        if let Some(list) = one("allOf") {
            self.require_only(object, &["allOf"])?;
            return self.split(&list[0], texts, others, depth + 1);
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(Value::Array(list)) = object.get(name) {
                self.require_only(object, &[name])?;
                let before = texts.len();
                for (n, alternative) in list.iter().enumerate() {
                    self.split(alternative, texts, others, depth + 1)?;
                    if name == "oneOf" && n > 0 && before < texts.len() && texts.len() > before + 1
                    {
                        return Err(self.cannot("oneOf", "has several alternatives that are text"));
                    }
                }
                return Ok(());
            }
        }
        if let Some(values) = object.get("enum").and_then(Value::as_array) {
            self.require_only(object, &["enum", "type"])?;
            self.split_values(object, values, texts, others);
            return Ok(());
        }
        if let Some(value) = object.get("const") {
            self.require_only(object, &["const", "type"])?;
            self.split_values(object, std::slice::from_ref(value), texts, others);
            return Ok(());
        }
        match object.get("type") {
            Some(Value::String(name)) if name == "string" => {
                texts.push(Content::Text { conjuncts: self.text(object)?, but: &[] });
            }
            Some(Value::String(_)) => others.push(schema.clone()),
            Some(Value::Array(names)) => {
                if names.iter().any(|name| name == "string") {
                    texts.push(Content::Text { conjuncts: self.text(object)?, but: &[] });
                }
                let rest: Vec<Value> = names.iter().filter(|n| *n != "string").cloned().collect();
                if !rest.is_empty() {
                    let mut other = object.clone();
                    other.insert("type".to_owned(), Value::Array(rest));
                    others.push(Value::Object(other));
                }
            }
            _ if object.contains_key("properties") || object.contains_key("items") => {
                let name = if object.contains_key("properties") { "object" } else { "array" };
                let mut other = object.clone();
                other.insert("type".to_owned(), name.into());
                others.push(Value::Object(other));
            }
            _ => return Err(self.cannot("type", "is missing beside other types")),
        }
        Ok(())
    }

    fn split_values(
        &self,
        object: &Map<String, Value>,
        values: &[Value],
        texts: &mut Vec<Content>,
        others: &mut Vec<Value>,
    ) {
        let mut rest = Vec::new();
        for value in values {
            match value {
                Value::String(text) => texts.push(Content::Literal(text.clone())),
                other => rest.push(other.clone()),
            }
        }
        if !rest.is_empty() {
            let mut other = Map::new();
            if let Some(types) = object.get("type") {
                other.insert("type".to_owned(), types.clone());
            }
            other.insert("enum".to_owned(), Value::Array(rest));
            others.push(Value::Object(other));
        }
    }

    /// The conjuncts that a text of this schema meets.
    fn text(&self, object: &Map<String, Value>) -> Result<String, Refusal> {
        let bound = |name: &str| match object.get(name) {
            None => Ok(None),
            Some(value) => {
                value.as_u64().map(Some).ok_or_else(|| self.cannot(name, "must be a whole number"))
            }
        };
        let mut conjuncts = match (bound("minLength")?, bound("maxLength")?) {
            (None, None) => "/(?s:.*)/".to_owned(),
            (min, None) => format!("/(?s:.{{{},}})/", min.unwrap_or(0)),
            (min, Some(max)) if min.unwrap_or(0) <= max => {
                format!("/(?s:.{{{},{max}}})/", min.unwrap_or(0))
            }
            _ => return Err(self.cannot("minLength", "is larger than maxLength")),
        };
        if let Some(pattern) = object.get("pattern") {
            let pattern = pattern.as_str().ok_or_else(|| self.cannot("pattern", "must be text"))?;
            conjuncts.push_str(&format!(" & {}", self.pattern(pattern)?));
        }
        if let Some(name) = object.get("format").and_then(Value::as_str) {
            match FORMATS.iter().find(|(format, _)| *format == name) {
                Some((_, pattern)) => conjuncts.push_str(&format!(" & /{pattern}/")),
                None => {
                    return Err(self.cannot("format", "is not supported for text in a tool call"));
                }
            }
        }
        Ok(conjuncts)
    }

    /// A pattern that may match anywhere, as a term that matches the whole text.
    fn pattern(&self, pattern: &str) -> Result<String, Refusal> {
        let inner = pattern.strip_prefix('^').unwrap_or(pattern);
        let backslashes = |text: &str| text.bytes().rev().take_while(|&b| b == b'\\').count();
        let body = match inner.strip_suffix('$') {
            Some(body) if backslashes(body) % 2 == 0 => body,
            _ => inner,
        };
        if body.len() < pattern.len() && has_bare_bar(body) {
            return Err(self.cannot("pattern", "has anchors beside alternatives"));
        }
        let before = if inner.len() < pattern.len() { "" } else { "(?s:.*)" };
        let after = if body.len() < inner.len() { "" } else { "(?s:.*)" };
        let body = llguidance::regex_to_lark(body, "dw");
        Ok(format!("/{before}({body}){after}/"))
    }

    /// The schema by itself, with what it may refer to.
    fn json(&self, schema: &Value) -> Result<Content, Refusal> {
        self.check_references(schema)?;
        let Value::Object(object) = schema else { return Err(self.cannot("type", "is missing")) };
        let mut object = object.clone();
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = self.root.get(name) {
                object.insert(name.to_owned(), definitions.clone());
            }
        }
        // On one line, as the template writes it.
        let options = json!({
            "whitespace_flexible": false,
            "item_separator": ", ?",
            "key_separator": ": ?",
        });
        object.insert("x-guidance".to_owned(), options);
        Ok(Content::Json(Value::Object(object)))
    }

    fn check_references(&self, schema: &Value) -> Result<(), Refusal> {
        match schema {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref")
                    && !["#/$defs/", "#/definitions/"].iter().any(|at| reference.starts_with(at))
                {
                    return Err(
                        self.cannot("$ref", "must lead to \"#/$defs/\" or \"#/definitions/\"")
                    );
                }
                object.values().try_for_each(|value| self.check_references(value))
            }
            Value::Array(list) => list.iter().try_for_each(|value| self.check_references(value)),
            _ => Ok(()),
        }
    }

    fn resolve(&self, reference: &str) -> Result<&Value, Refusal> {
        let path = reference.strip_prefix("#/").unwrap_or_default();
        let mut names = path.split('/').map(|name| name.replace("~1", "/").replace("~0", "~"));
        names
            .next()
            .and_then(|name| self.root.get(&name))
            .and_then(|first| names.try_fold(first, |value, name| value.get(&name)))
            .ok_or_else(|| self.cannot("$ref", &format!("leads nowhere: {reference:?}")))
    }

    fn require_only(&self, object: &Map<String, Value>, names: &[&str]) -> Result<(), Refusal> {
        let other = |name: &&String| is_keyword(name) && !names.contains(&name.as_str());
        match object.keys().find(other) {
            Some(name) => {
                Err(self.cannot(name, &format!("is not supported beside {:?} in a tool", names[0])))
            }
            None => Ok(()),
        }
    }

    /// A schema without a type says nothing that text could break, or it is refused.
    fn require_unrestricted(&self, schema: &Value) -> Result<(), Refusal> {
        let Value::Object(object) = schema else {
            return if schema == &Value::Bool(false) {
                Err(self.cannot("properties", "allows no value"))
            } else {
                Ok(())
            };
        };
        match object.keys().find(|name| is_keyword(name)) {
            Some(name) => Err(self.cannot(name, "is not supported without a type in a tool")),
            None => Ok(()),
        }
    }

    fn cannot(&self, keyword: &str, complaint: &str) -> Refusal {
        keyword_error(&self.place, keyword, complaint)
    }
}

/// Whether alternatives stand outside of every group and class.
fn has_bare_bar(pattern: &str) -> bool {
    let mut depth = 0i32;
    let mut class = false;
    let mut escaped = false;
    for c in pattern.chars() {
        match c {
            _ if escaped => {
                escaped = false;
                continue;
            }
            '\\' => escaped = true,
            '[' => class = true,
            ']' => class = false,
            '(' if !class => depth += 1,
            ')' if !class => depth -= 1,
            '|' if !class && depth == 0 => return true,
            _ => {}
        }
    }
    false
}
