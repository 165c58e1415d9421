//! The words of `llguidance` as one line for users.

use llguidance::api::StopReason;

/// Longest text that is passed on, in characters.
const MAX: usize = 400;

/// What `llguidance` says, without what only its developers need and without its diagrams, whose
/// carets point nowhere once they stand in a line.
pub(super) fn tidy(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or_default();
    let message = message.strip_prefix("panic: ").unwrap_or(message).trim();
    if message == StopReason::NoExtensionBias.to_string() {
        return "nothing fits it".to_owned();
    }
    let line = in_one_line(message);
    // An option that users cannot set.
    let option = ". Enable 'coerce_one_of' option to approximate oneOf with anyOf";
    let line = line.replace(option, " where alternatives may overlap; anyOf is");
    match line.char_indices().nth(MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// The reason for a form that is a line of a grammar of ours: its place there tells users nothing.
pub(super) fn without_place(reason: &str) -> &str {
    let rest = reason.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    rest.map_or(reason, |(_, rest)| rest)
}

fn in_one_line(message: &str) -> String {
    let lines: Vec<_> = message.lines().map(str::trim).filter(|line| !is_diagram(line)).collect();
    let line = match message.split_once("regex parse error:") {
        // The regular expression is shown again between the two.
        Some((before, _)) => {
            let error = lines.iter().rev().find_map(|line| line.strip_prefix("error: "));
            let before = before.trim().trim_end_matches(" (in regex):").trim_end_matches(':');
            let parts = [before, error.unwrap_or("it cannot be parsed")];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
        }
        None => lines.join(" "),
    };
    with_place_in_words(&line).unwrap_or(line)
}

/// Lines of carets, and the numbered lines of a grammar.
fn is_diagram(line: &str) -> bool {
    let numbered = line.split_once('|').map(|(number, _)| number.trim());
    line.bytes().all(|byte| byte == b'^' || byte == b' ')
        || numbered.is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// `at 1(8): reason` as `line 1, column 8: reason`.
fn with_place_in_words(text: &str) -> Option<String> {
    let (place, reason) = text.strip_prefix("at ").unwrap_or(text).split_once(": ")?;
    let (line, column) = place.strip_suffix(')')?.split_once('(')?;
    let (line, column): (usize, usize) = (line.parse().ok()?, column.parse().ok()?);
    Some(format!("line {line}, column {column}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagram_becomes_a_line_without_carets() {
        let regex = "at 1(8): invalid regex \"a(?=b)\" (in regex): regex parse error:\n    a(?=b)\n     \
                     ^^^\nerror: look-around is not supported\n1 | start: /a(?=b)/\n           ^";
        let line = "line 1, column 8: invalid regex \"a(?=b)\": look-around is not supported";
        assert_eq!(tidy(regex), line);
        assert_eq!(without_place(line), "invalid regex \"a(?=b)\": look-around is not supported");
        assert_eq!(
            tidy("regex parse error:\n    (\n    ^\nerror: unclosed group"),
            "unclosed group"
        );
        let name = "at 2(8): unknown name: \"x\"\n1 | start: x\n           ^\n2 | y: \"a\"";
        assert_eq!(tidy(name), "line 2, column 8: unknown name: \"x\"");
        assert_eq!(
            tidy("1(10): lexer error\n1 | start: \"a\n   ^\n2 |"),
            "line 1, column 10: lexer error"
        );
    }

    #[test]
    fn other_words_stay_as_they_are() {
        for words in
            ["Invalid type: sting", "Unsatisfiable schema: minimum (3) is (1): x", "line up: a"]
        {
            assert_eq!(tidy(words), words);
        }
        assert_eq!(without_place("Invalid type: sting"), "Invalid type: sting");
        assert_eq!(tidy(&"é".repeat(500)).chars().count(), MAX + 1);
    }
}
