//! The tags of the answer format, recognised in text that may still be growing.

pub(super) const THINK: &str = "<think>";
pub(crate) const THINK_END: &str = "</think>";
pub(crate) const CALL: &str = "<tool_call>";
pub(super) const CALL_END: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";

/// Longest name in a tag. Beyond it the text is no tag; the bound keeps the
/// text that is held back small.
const MAX_NAME: usize = 256;

/// Longest run of white space looked across between two tags.
pub(super) const MAX_GAP: usize = 256;

/// Where a call was being opened when the text ended: `<tool_call>` with no complete function tag
/// behind it.
pub(super) fn cut_opening(text: &str) -> Option<usize> {
    let at = text.rfind(CALL)?;
    let rest = text[at + CALL.len()..].trim_start();
    (FUNCTION.starts_with(rest) || is_cut_name(rest, FUNCTION)).then_some(at)
}

/// Where the markup of a call starts with which the text ends, its last tag being cut (or, at the
/// very end, only line breaks).
pub(super) fn cut_markup(text: &str) -> Option<usize> {
    let line_break = text.len() - text.trim_end_matches(['\r', '\n']).len();
    let tags = text.match_indices('<').map(|(at, _)| at).find(|&at| ends_in_cut_tag(&text[at..]));
    tags.or((line_break > 0).then_some(text.len()))
}

fn ends_in_cut_tag(text: &str) -> bool {
    const TAGS: [&str; 6] = [PARAMETER_END, FUNCTION_END, CALL_END, CALL, FUNCTION, PARAMETER];
    let mut rest = text;
    loop {
        if TAGS.iter().any(|tag| tag.starts_with(rest))
            || [FUNCTION, PARAMETER].iter().any(|tag| is_cut_name(rest, tag))
        {
            return true;
        }
        let complete = [PARAMETER_END, FUNCTION_END, CALL_END, CALL];
        match complete.iter().find_map(|tag| rest.strip_prefix(tag)) {
            Some(behind) => rest = behind.trim_start(),
            None => return false,
        }
    }
}

/// `<function=NA`: a name that has not ended.
fn is_cut_name(text: &str, tag: &str) -> bool {
    text.strip_prefix(tag).is_some_and(|name| !name.contains(['>', '\n']))
}

/// Outcome of looking for something at the start of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen<T> {
    Yes(T),
    No,
    /// The text ends before it can be told.
    Maybe,
}

impl<T> Seen<T> {
    /// Decides `Maybe`, for a text that has ended.
    fn settle(self, ended: bool, value: Self) -> Self {
        match self {
            Self::Maybe if ended => value,
            other => other,
        }
    }
}

/// A tag with a name: `<function=NAME>`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named<'t> {
    pub(super) name: &'t str,
    /// Bytes of the text it takes up.
    pub(super) len: usize,
}

/// Text from some position on, and whether more can follow it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead<'t> {
    pub(super) text: &'t str,
    pub(super) ended: bool,
}

impl<'t> Ahead<'t> {
    fn skip(self, len: usize) -> Self {
        Self { text: &self.text[len..], ended: self.ended }
    }

    /// A fixed tag; gives its length.
    pub(super) fn tag(self, tag: &str) -> Seen<usize> {
        if self.text.starts_with(tag) {
            Seen::Yes(tag.len())
        } else if tag.starts_with(self.text) {
            Seen::Maybe.settle(self.ended, Seen::No)
        } else {
            Seen::No
        }
    }

    /// A tag that carries a name, such as `<function=`.
    pub(super) fn named(self, tag: &str) -> Seen<Named<'t>> {
        let start = match self.tag(tag) {
            Seen::Yes(len) => len,
            Seen::No => return Seen::No,
            Seen::Maybe => return Seen::Maybe,
        };
        let rest = &self.text[start..];
        match rest.find(['>', '<', '\n']) {
            Some(end) if rest[end..].starts_with('>') && end <= MAX_NAME => {
                let name = rest[..end].trim();
                if name.is_empty() {
                    Seen::No
                } else {
                    Seen::Yes(Named { name, len: start + end + 1 })
                }
            }
            None if rest.len() <= MAX_NAME => Seen::Maybe.settle(self.ended, Seen::No),
            _ => Seen::No,
        }
    }

    /// `<tool_call>`, white space, `<function=NAME>`.
    pub(super) fn call(self) -> Seen<Named<'t>> {
        match self.tag(CALL) {
            Seen::Yes(len) => {
                let Some(gap) = self.skip(len).gap() else { return Seen::No };
                match self.skip(len + gap).named(FUNCTION) {
                    Seen::Yes(named) => Seen::Yes(Named { len: len + gap + named.len, ..named }),
                    other => other,
                }
            }
            Seen::No => Seen::No,
            Seen::Maybe => Seen::Maybe,
        }
    }

    /// Whether `tag` comes here and is really the end of a value: code passed
    /// as a value may contain such a tag, but then something else than
    /// `followers` or the end of the answer comes after it.
    pub(super) fn closing(self, tag: &str, followers: &[&str]) -> Seen<()> {
        let len = match self.tag(tag) {
            Seen::Yes(len) => len,
            Seen::No => return Seen::No,
            Seen::Maybe => return Seen::Maybe,
        };
        let Some(gap) = self.skip(len).gap() else { return Seen::Yes(()) };
        let after = self.skip(len + gap);
        if after.text.is_empty() {
            return Seen::Maybe.settle(self.ended, Seen::Yes(()));
        }
        let mut seen = Seen::No;
        for follower in followers {
            match after.tag(follower) {
                Seen::Yes(_) => return Seen::Yes(()),
                Seen::Maybe => seen = Seen::Maybe,
                Seen::No => {}
            }
        }
        seen
    }

    /// Length of the white space here; none if it is longer than looked across.
    fn gap(self) -> Option<usize> {
        let gap = self.text.len() - self.text.trim_start().len();
        (gap <= MAX_GAP).then_some(gap)
    }
}
