//! A source in tokens with its brackets matched, and ways to walk through it.

use std::ops::Range;

use super::lexer::{self, Kind, Token};
use super::{Problem, TranslateError};
use crate::sources::Position;

pub(crate) struct Source<'a> {
    tokens: Vec<Token<'a>>,
    /// For every opening bracket the index of its closing one.
    closing: Vec<usize>,
    files: Vec<String>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(text: &'a str) -> Result<Self, TranslateError> {
        let lexed = lexer::lex(text);
        let mut source = Source {
            closing: vec![0; lexed.tokens.len()],
            tokens: lexed.tokens,
            files: lexed.files,
        };
        let mut open = Vec::new();
        for i in 0..source.tokens.len() {
            if source.tokens[i].kind != Kind::Symbol {
                continue;
            }
            match source.tokens[i].text {
                "(" | "[" | "{" => open.push(i),
                close @ (")" | "]" | "}") => {
                    let opening = match close {
                        ")" => "(",
                        "]" => "[",
                        _ => "{",
                    };
                    match open.pop() {
                        Some(o) if source.tokens[o].text == opening => source.closing[o] = i,
                        _ => return Err(source.error(i, Problem::Unbalanced(close.to_owned()))),
                    }
                }
                _ => {}
            }
        }
        match open.pop() {
            Some(o) => Err(source.error(o, Problem::Unbalanced(source.text(o).to_owned()))),
            None => Ok(source),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn kind(&self, i: usize) -> Kind {
        self.tokens[i].kind
    }

    /// The token's text; nothing beyond the end.
    pub(crate) fn text(&self, i: usize) -> &'a str {
        self.tokens.get(i).map_or("", |t| t.text)
    }

    pub(crate) fn is_word(&self, i: usize) -> bool {
        self.tokens.get(i).is_some_and(|t| t.kind == Kind::Word)
    }

    /// The tokens as they stand.
    pub(crate) fn verbatim(&self, range: Range<usize>) -> String {
        self.tokens[range].iter().map(|t| t.text).collect()
    }

    /// The first token from `i` on that is no blank and no directive, or the end.
    pub(crate) fn at(&self, mut i: usize) -> usize {
        while i < self.tokens.len() && matches!(self.tokens[i].kind, Kind::Blank | Kind::Directive)
        {
            i += 1;
        }
        i
    }

    /// The one after token `i`.
    pub(crate) fn after(&self, i: usize) -> usize {
        self.at(i + 1)
    }

    /// The one before token `i`, if there is one.
    pub(crate) fn before(&self, i: usize) -> Option<usize> {
        (0..i).rev().find(|&j| !matches!(self.tokens[j].kind, Kind::Blank | Kind::Directive))
    }

    /// The closing bracket of the opening one at `i`.
    pub(crate) fn closing(&self, i: usize) -> usize {
        self.closing[i]
    }

    pub(crate) fn opens(&self, i: usize) -> bool {
        self.kind(i) == Kind::Symbol && matches!(self.text(i), "(" | "[" | "{")
    }

    /// The `>` of a list of template arguments that begins with the `<` at `i`.
    pub(crate) fn closing_angle(&self, i: usize) -> Result<usize, TranslateError> {
        let (mut j, mut depth) = (i, 0);
        while j < self.tokens.len() {
            match self.text(j) {
                "<" => depth += 1,
                ">" => depth -= 1,
                ";" | "{" => break,
                _ if self.opens(j) => j = self.closing(j),
                _ => {}
            }
            if depth == 0 {
                return Ok(j);
            }
            j += 1;
        }
        Err(self.error(i, Problem::Unbalanced("<".to_owned())))
    }

    /// The parts of a range between commas that stand in no bracket and no template argument list;
    /// none for a blank range.
    pub(crate) fn split(&self, range: Range<usize>) -> Result<Vec<Range<usize>>, TranslateError> {
        let (mut parts, mut start, mut i) = (Vec::new(), range.start, range.start);
        while i < range.end {
            match self.text(i) {
                "<" => i = self.closing_angle(i)?,
                "," => {
                    parts.push(start..i);
                    start = i + 1;
                }
                _ if self.opens(i) => i = self.closing(i),
                _ => {}
            }
            i += 1;
        }
        if self.at(start) < range.end || !parts.is_empty() {
            parts.push(start..range.end);
        }
        Ok(parts)
    }

    /// The end of the statement or declaration that `i` lies in: its `;`.
    pub(crate) fn semicolon(&self, mut i: usize) -> Result<usize, TranslateError> {
        let start = i;
        while i < self.tokens.len() {
            match self.text(i) {
                ";" => return Ok(i),
                _ if self.opens(i) => i = self.closing(i),
                _ => {}
            }
            i += 1;
        }
        Err(self.error(start, Problem::NoSemicolon))
    }

    pub(crate) fn position(&self, i: usize) -> Position {
        match self.tokens.get(i).or(self.tokens.last()) {
            Some(t) => Position { file: self.files[t.file].clone(), line: t.line },
            None => Position::default(),
        }
    }

    /// A `#line` directive that makes the next line the one of token `i`.
    pub(crate) fn line_directive(&self, i: usize) -> String {
        let at = self.position(i);
        format!("\n#line {} \"{}\"\n", at.line, at.file)
    }

    pub(crate) fn error(&self, i: usize, problem: Problem) -> TranslateError {
        TranslateError { at: self.position(i), problem }
    }
}
