//! One tool call: its parameters, as they come.

use std::collections::HashSet;

use super::machine::Output;
use super::markup::{
    Ahead, CALL, CALL_END, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END, Seen, cut_markup,
};
use super::values::{ToolSchemas, Types, escape, quote};

/// A call whose name is known.
#[derive(Debug)]
pub(super) struct Call {
    index: usize,
    function: String,
    keys: HashSet<String>,
    value: Option<Open>,
    /// Text that belongs to no parameter.
    stray: String,
}

/// A parameter whose value has not ended.
#[derive(Debug)]
struct Open {
    types: Types,
    /// Whether the line break after the opening tag is behind.
    begun: bool,
    /// Whether none of the value itself has come yet.
    empty: bool,
    /// Whether the opening quote of a JSON string has been given out.
    streamed: bool,
    /// Value so far, if it is not streamed.
    held: String,
}

pub(super) enum Step {
    /// Takes the first bytes and goes on.
    Take(usize),
    /// More text is needed.
    Wait,
    /// Takes the first bytes, and the call ends.
    End(usize),
}

/// How a value ends.
enum Ending {
    /// With its closing tag, of this length.
    Closed(usize),
    /// Where something else begins that only comes after a value.
    Cut,
}

impl Call {
    pub(super) fn new(index: usize, function: &str) -> Self {
        Self {
            index,
            function: function.to_owned(),
            keys: HashSet::new(),
            value: None,
            stray: String::new(),
        }
    }

    pub(super) fn step(
        &mut self,
        ahead: Ahead<'_>,
        tools: &ToolSchemas,
        output: &mut Output,
    ) -> Step {
        if self.value.is_some() {
            self.inside_value(ahead, tools, output)
        } else {
            self.between_values(ahead, tools, output)
        }
    }

    fn between_values(
        &mut self,
        ahead: Ahead<'_>,
        tools: &ToolSchemas,
        output: &mut Output,
    ) -> Step {
        let at = ahead.text.find('<').unwrap_or(ahead.text.len());
        if at > 0 {
            self.stray.push_str(&ahead.text[..at]);
            return Step::Take(at);
        }
        if ahead.text.is_empty() {
            return Step::Wait;
        }
        let mut undecided = false;
        match ahead.named(PARAMETER) {
            Seen::Yes(tag) => {
                self.open(tag.name, tools, output);
                return Step::Take(tag.len);
            }
            Seen::Maybe => undecided = true,
            Seen::No => {}
        }
        match ahead.tag(FUNCTION_END) {
            Seen::Yes(len) => return Step::End(len),
            Seen::Maybe => undecided = true,
            Seen::No => {}
        }
        // Where `</function>` was left out, what follows a call ends it.
        match ahead.tag(CALL_END) {
            Seen::Yes(_) => return Step::End(0),
            Seen::Maybe => undecided = true,
            Seen::No => {}
        }
        for call in [ahead.call(), ahead.named(FUNCTION)] {
            match call {
                Seen::Yes(_) => return Step::End(0),
                Seen::Maybe => undecided = true,
                Seen::No => {}
            }
        }
        if undecided {
            return Step::Wait;
        }
        self.stray.push('<');
        Step::Take(1)
    }

    fn open(&mut self, key: &str, tools: &ToolSchemas, output: &mut Output) {
        let before = if self.keys.is_empty() { '{' } else { ',' };
        output.arguments(self.index, format!("{before}{}:", quote(key)));
        self.keys.insert(key.to_owned());
        self.value = Some(Open {
            types: tools.types(&self.function, key),
            begun: false,
            empty: true,
            streamed: false,
            held: String::new(),
        });
    }

    fn inside_value(&mut self, ahead: Ahead<'_>, tools: &ToolSchemas, output: &mut Output) -> Step {
        let Some(value) = &mut self.value else { return Step::Wait };
        if !value.begun {
            return match line_break(ahead) {
                Seen::Yes(len) => {
                    value.begun = true;
                    Step::Take(len)
                }
                _ => Step::Wait,
            };
        }
        let text = ahead.text;
        let tag = text.find('<').unwrap_or(text.len());
        // A line break before a closing tag is not part of the value.
        let end = text[..tag].strip_suffix('\n').unwrap_or(&text[..tag]);
        let end = end.strip_suffix('\r').unwrap_or(end).len();
        let ending = if tag == text.len() {
            Seen::Maybe
        } else {
            let rest = Ahead { text: &text[tag..], ..ahead };
            ending(rest, end < tag || (tag == 0 && value.empty), |key| {
                !self.keys.contains(key) && tools.declares(&self.function, key)
            })
        };
        match ending {
            Seen::Yes(ending) => {
                value.push(&text[..end], self.index, output);
                value.close(self.index, output);
                self.value = None;
                match ending {
                    Ending::Closed(len) => Step::Take(tag + len),
                    Ending::Cut => Step::Take(tag),
                }
            }
            Seen::No => {
                value.push(&text[..=tag], self.index, output);
                Step::Take(tag + 1)
            }
            Seen::Maybe if ahead.ended => {
                value.push(text, self.index, output);
                if text.is_empty() { Step::Wait } else { Step::Take(text.len()) }
            }
            Seen::Maybe if end > 0 => {
                value.push(&text[..end], self.index, output);
                Step::Take(end)
            }
            Seen::Maybe => Step::Wait,
        }
    }

    /// Where undecided text stops being this call's when no more text comes; `None` keeps all.
    pub(super) fn kept(&self, text: &str) -> Option<usize> {
        let at = cut_markup(text)?;
        if self.value.is_none() {
            return Some(at);
        }
        let closing = [PARAMETER_END, FUNCTION_END, CALL_END];
        if let Some(tag) = closing.iter().find(|tag| text[at..].starts_with(**tag)) {
            return Some(at + tag.len());
        }
        // The line break before a closing tag is not part of the value.
        let value = &text[..at];
        let value = value.strip_suffix('\n').unwrap_or(value);
        Some(value.strip_suffix('\r').unwrap_or(value).len())
    }

    /// The call is complete.
    pub(super) fn end(self, output: &mut Output) {
        let fragment = if self.keys.is_empty() { "{}" } else { "}" };
        output.arguments(self.index, fragment.to_owned());
        output.end_call(self.index);
        self.give_stray(output);
    }

    /// The answer ends here, the call has not.
    pub(super) fn finish(mut self, output: &mut Output) {
        match self.value.take() {
            Some(value) => value.abandon(self.index, output),
            // Its last parameter was closed: only closing tags are missing.
            None if !self.keys.is_empty() => return self.end(output),
            None => output.arguments(self.index, "{".to_owned()),
        }
        self.give_stray(output);
    }

    fn give_stray(&self, output: &mut Output) {
        let stray = self.stray.trim();
        if !stray.is_empty() {
            output.displaced(stray);
        }
    }
}

impl Open {
    fn push(&mut self, text: &str, index: usize, output: &mut Output) {
        self.empty &= text.is_empty();
        if self.streamed {
            output.arguments(index, escape(text));
            return;
        }
        self.held.push_str(text);
        if self.types.is_certainly_string(&self.held) {
            self.streamed = true;
            let held = std::mem::take(&mut self.held);
            output.arguments(index, format!("\"{}", escape(&held)));
        }
    }

    fn close(&self, index: usize, output: &mut Output) {
        let rest = if self.streamed { "\"".to_owned() } else { self.types.convert(&self.held) };
        output.arguments(index, rest);
    }

    /// Gives out what there is of a value, as a string that does not end.
    fn abandon(&self, index: usize, output: &mut Output) {
        if !self.streamed {
            output.arguments(index, format!("\"{}", escape(&self.held)));
        }
    }
}

/// The line break after an opening tag, if any.
fn line_break(ahead: Ahead<'_>) -> Seen<usize> {
    match ahead.text.as_bytes() {
        [b'\r', b'\n', ..] => Seen::Yes(2),
        [b'\n', ..] => Seen::Yes(1),
        [] | [b'\r'] if !ahead.ended => Seen::Maybe,
        _ => Seen::Yes(0),
    }
}

/// Whether a value ends at the tag that comes next.
fn ending(ahead: Ahead<'_>, at_line_start: bool, expected: impl Fn(&str) -> bool) -> Seen<Ending> {
    let mut undecided = false;
    match ahead.closing(PARAMETER_END, &[PARAMETER, FUNCTION_END, CALL_END, CALL]) {
        Seen::Yes(()) => return Seen::Yes(Ending::Closed(PARAMETER_END.len())),
        Seen::Maybe => undecided = true,
        Seen::No => {}
    }
    for (tag, followers) in [(FUNCTION_END, &[CALL_END] as &[_]), (CALL_END, &[CALL])] {
        match ahead.closing(tag, followers) {
            Seen::Yes(()) => return Seen::Yes(Ending::Cut),
            Seen::Maybe => undecided = true,
            Seen::No => {}
        }
    }
    if at_line_start {
        match ahead.named(PARAMETER) {
            Seen::Yes(tag) if expected(tag.name) => return Seen::Yes(Ending::Cut),
            Seen::Maybe => undecided = true,
            Seen::Yes(_) | Seen::No => {}
        }
    }
    if undecided { Seen::Maybe } else { Seen::No }
}
