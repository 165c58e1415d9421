//! What differs from run to run, blanked out.

use serde_json::Value;
use serde_json::json;

use super::client::Response;

/// Characters of an id after its prefix.
const RANDOM: usize = 24;

/// Blanks out the random parts of ids, and times.
pub(crate) fn redact(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match name.as_str() {
                    "created" | "created_at" | "completed_at" if value.is_number() => {
                        *value = json!(0);
                    }
                    _ => redact(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(redact),
        Value::String(text) => {
            let id = text.split_once('_').filter(|(_, random)| {
                random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
            });
            if let Some((prefix, _)) = id {
                *text = format!("{prefix}_*");
            }
        }
        _ => {}
    }
}

/// A stream of named events, each on one line.
pub(crate) fn stream(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.body);
    let lines = response.named_events().into_iter().map(|(name, mut data)| {
        assert_eq!(data["type"], name.as_str(), "the name of an event is its type");
        redact(&mut data);
        format!("{name}: {data}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A body that is not streamed.
pub(crate) fn body(response: &Response) -> String {
    let mut value = response.json();
    redact(&mut value);
    serde_json::to_string_pretty(&value).unwrap()
}
