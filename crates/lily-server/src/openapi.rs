//! The OpenAPI document: files in `openapi/`, one for each group of routes,
//! merged when asked for.

use serde_json::Map;
use serde_json::Value;

use crate::model::Model;

/// The first holds what the document begins with; each of the others adds
/// `paths` and `components` of its own.
const FILES: [&str; 10] = [
    include_str!("../openapi/base.json"),
    include_str!("../openapi/shared.json"),
    include_str!("../openapi/models.json"),
    include_str!("../openapi/conversation.json"),
    include_str!("../openapi/chat_completions.json"),
    include_str!("../openapi/completions.json"),
    include_str!("../openapi/messages.json"),
    include_str!("../openapi/responses.json"),
    include_str!("../openapi/tokenize.json"),
    include_str!("../openapi/operations.json"),
];

/// The document for a model, whose vocabulary bounds token ids.
pub(crate) fn document(model: &Model) -> Value {
    let mut document = Map::new();
    for file in FILES {
        // The tests read all files; what is compiled in cannot change.
        let Ok(Value::Object(file)) = serde_json::from_str(file) else { continue };
        merge(&mut document, file);
    }
    let mut document = Value::Object(document);
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let last = model.tokenizer.len().saturating_sub(1);
    document["components"]["schemas"]["TokenId"]["maximum"] = last.into();
    document
}

/// Adds the fields of `from`, those of objects that both have one by one.
fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(&name), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (_, value) => drop(into.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_files_say_the_same_thing() {
        let mut seen = std::collections::HashSet::new();
        for file in FILES {
            let file: Value = serde_json::from_str(file).unwrap();
            for pointer in ["/paths", "/components/schemas", "/components/responses"] {
                for name in file.pointer(pointer).and_then(Value::as_object).into_iter().flatten() {
                    assert!(seen.insert((pointer, name.0.clone())), "{pointer} {}", name.0);
                }
            }
        }
    }
}
