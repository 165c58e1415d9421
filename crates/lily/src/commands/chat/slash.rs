//! The commands of a session.

use crate::args::Switch;

pub(super) const HELP: &str = "\
/help            this list
/reset           forget the conversation
/think on|off    whether the model thinks before it answers (without a word: show it)
/system TEXT     set the system prompt (without TEXT: remove it) and forget the conversation
/quit            leave; so does Ctrl-D
Ctrl-C stops an answer; arrow up brings back earlier input.";

/// One line of input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input<'a> {
    Empty,
    Question(&'a str),
    Help,
    Reset,
    /// Without a switch: show the state.
    Think(Option<Switch>),
    /// An argument that is no switch.
    BadThink,
    System(Option<&'a str>),
    Quit,
    /// Looks like a command and is none, or lacks its argument.
    Unknown(&'a str),
}

pub(super) fn parse(line: &str) -> Input<'_> {
    let line = line.trim();
    if line.is_empty() {
        return Input::Empty;
    }
    if !line.starts_with('/') {
        return Input::Question(line);
    }
    let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match (command, rest) {
        ("/help", "") => Input::Help,
        ("/reset", "") => Input::Reset,
        ("/quit" | "/exit", "") => Input::Quit,
        ("/think", "on") => Input::Think(Some(Switch::On)),
        ("/think", "off") => Input::Think(Some(Switch::Off)),
        ("/think", "") => Input::Think(None),
        ("/think", _) => Input::BadThink,
        ("/system", "") => Input::System(None),
        ("/system", text) => Input::System(Some(text)),
        _ => Input::Unknown(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_questions_are_told_apart() {
        assert_eq!(parse("  "), Input::Empty);
        assert_eq!(parse(" What is 1/2? "), Input::Question("What is 1/2?"));
        assert_eq!(parse("/reset"), Input::Reset);
        assert_eq!(parse("/think off"), Input::Think(Some(Switch::Off)));
        assert_eq!(parse("/think"), Input::Think(None));
        assert_eq!(parse("/system Be brief."), Input::System(Some("Be brief.")));
        assert_eq!(parse("/system"), Input::System(None));
        assert_eq!(parse("/think maybe"), Input::BadThink);
        assert_eq!(parse("/unknown"), Input::Unknown("/unknown"));
    }
}
