//! JSON text as Python's `json.dumps(value, ensure_ascii=False)` writes it.
//!
//! Prompts were rendered by Python when the model was trained, so separators,
//! number forms and escapes are part of the model's input format.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting that is written; requests are parsed with a smaller limit.
const MAX_DEPTH: usize = 256;

/// Writes `value` as one line of JSON, or over several lines where `indent`
/// gives the spaces per level.
pub(crate) fn dumps(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), indent };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    indent: Option<usize>,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float_repr(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.mapping(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("a value of kind {kind} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.separate(empty, depth + 1);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn mapping(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut empty = true;
        for key in value.try_iter()? {
            self.separate(empty, depth + 1);
            empty = false;
            match key.as_str() {
                Some(text) => self.string(text),
                // Python turns numbers, booleans and None into their JSON text.
                None => {
                    let text = dumps(&key, None)?;
                    self.string(&text);
                }
            }
            self.out.push_str(": ");
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn separate(&mut self, first: bool, depth: usize) {
        match self.indent {
            Some(_) => {
                if !first {
                    self.out.push(',');
                }
                self.new_line(depth);
            }
            None if !first => self.out.push_str(", "),
            None => {}
        }
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth)));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' => self.out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Python's `repr` of a float: the shortest digits that read back as the same
/// number, positional from 1e-4 up to 1e16, with an exponent of at least two
/// digits elsewhere.
pub(crate) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let positional = number.to_string();
    if positional.contains('.') { positional } else { positional + ".0" }
}

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;

    use super::*;

    fn python(json: &str) -> String {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        dumps(&Value::from(Serde(value)), None).unwrap()
    }

    #[test]
    fn separators_and_key_order_are_those_of_python() {
        assert_eq!(python(r#"{"b":[1,2,{}],"a":[]}"#), r#"{"b": [1, 2, {}], "a": []}"#);
    }

    #[test]
    fn text_is_neither_made_ascii_nor_html_safe() {
        assert_eq!(
            python(r#""<é> & '日本' \u2028 \"q\" \\""#),
            "\"<é> & '日本' \u{2028} \\\"q\\\" \\\\\""
        );
        assert_eq!(python(r#""\n\r\t\b\f\u0001\u007f""#), "\"\\n\\r\\t\\b\\f\\u0001\u{7f}\"");
    }

    #[test]
    fn floats_are_written_as_python_repr_does() {
        for (json, expected) in [
            ("1.0", "1.0"),
            ("100.0", "100.0"),
            ("-0.0", "-0.0"),
            ("0.0", "0.0"),
            ("2.5", "2.5"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("1.5e300", "1.5e+300"),
            ("123456789012345680.0", "1.2345678901234568e+17"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e-100", "1e-100"),
            ("0.1", "0.1"),
        ] {
            assert_eq!(python(json), expected, "{json}");
        }
    }

    #[test]
    fn integers_keep_all_their_digits() {
        for json in ["0", "-1", "9007199254740993", "18446744073709551615", "-9223372036854775808"]
        {
            assert_eq!(python(json), json);
        }
    }

    #[test]
    fn an_indent_breaks_lines_but_leaves_empty_containers_closed() {
        let value: serde_json::Value = serde_json::from_str(r#"{"a":[1,{}],"b":[]}"#).unwrap();
        assert_eq!(
            dumps(&Value::from(Serde(value)), Some(2)).unwrap(),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
        );
    }
}
