//! Tokens of a source, with the file and line that `#line` directives say.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// White space or a comment.
    Blank,
    /// A preprocessor line, continuation lines included.
    Directive,
    /// An identifier or keyword.
    Word,
    /// A number with its suffix.
    Number,
    /// A string or character literal.
    Quoted,
    /// An operator or bracket. `>` always comes alone, so that `a<b<c>>` needs no care.
    Symbol,
}

/// A piece of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// Index in [`Lexed::files`].
    pub(crate) file: usize,
    pub(crate) line: usize,
}

/// A source in tokens; their texts in order are the source.
#[derive(Debug)]
pub(crate) struct Lexed<'a> {
    pub(crate) tokens: Vec<Token<'a>>,
    pub(crate) files: Vec<String>,
}

/// Operators of more than one character; longer ones first where one begins another.
const OPERATORS: [&str; 20] = [
    "<<=", "->", "::", "<<", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=",
];

pub(crate) fn lex(source: &str) -> Lexed<'_> {
    let mut lexed = Lexed { tokens: Vec::new(), files: vec!["source".to_owned()] };
    let (mut rest, mut file, mut line, mut line_start) = (source, 0, 1, true);
    while !rest.is_empty() {
        let (kind, length) = token(rest, line_start);
        let text = &rest[..length];
        lexed.tokens.push(Token { kind, text, file, line });
        line += text.matches('\n').count();
        line_start = text.ends_with('\n') || (line_start && kind == Kind::Blank);
        if let (Kind::Directive, Some((number, name))) = (kind, line_directive(text)) {
            line = number.saturating_sub(1);
            if let Some(name) = name {
                file = lexed.files.iter().position(|f| f == name).unwrap_or(lexed.files.len());
                if file == lexed.files.len() {
                    lexed.files.push(name.to_owned());
                }
            }
        }
        rest = &rest[length..];
    }
    lexed
}

/// Kind and length of the token that `text`, which is not empty, begins with.
fn token(text: &str, line_start: bool) -> (Kind, usize) {
    let first = text.chars().next().expect("not empty");
    if first.is_whitespace() {
        // A line ends a token, so that a directive is seen at the start of the next.
        let length = text.find(|c: char| !c.is_whitespace() || c == '\n').unwrap_or(text.len());
        (Kind::Blank, length.max(1))
    } else if text.starts_with("//") {
        (Kind::Blank, text.find('\n').unwrap_or(text.len()))
    } else if text.starts_with("/*") {
        (Kind::Blank, text.find("*/").map_or(text.len(), |end| end + 2))
    } else if first == '#' && line_start {
        (Kind::Directive, directive_length(text))
    } else if first == '"' || first == '\'' {
        (Kind::Quoted, quoted_length(text, first))
    } else if is_word_start(first) {
        (Kind::Word, text.find(|c| !is_word(c)).unwrap_or(text.len()))
    } else if first.is_ascii_digit()
        || (first == '.' && text[1..].starts_with(|c: char| c.is_ascii_digit()))
    {
        (Kind::Number, number_length(text))
    } else {
        let operator = OPERATORS.iter().find(|o| text.starts_with(**o));
        (Kind::Symbol, operator.map_or(first.len_utf8(), |o| o.len()))
    }
}

pub(crate) fn is_word_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Up to the end of the line, which a backslash carries on to the next.
fn directive_length(text: &str) -> usize {
    let mut from = 0;
    while let Some(end) = text[from..].find('\n') {
        if !text[..from + end].ends_with('\\') {
            return from + end;
        }
        from += end + 1;
    }
    text.len()
}

fn quoted_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn number_length(text: &str) -> usize {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        let exponent_sign = !hexadecimal && matches!(previous, 'e' | 'E') && matches!(c, '+' | '-');
        if !(is_word(c) || c == '.' || exponent_sign) {
            return at;
        }
        previous = c;
    }
    text.len()
}

/// Number and name of a `#line` directive.
fn line_directive(text: &str) -> Option<(usize, Option<&str>)> {
    let rest = text.trim_start().strip_prefix('#')?.trim_start().strip_prefix("line")?;
    let mut words = rest.split_whitespace();
    let number = words.next()?.parse().ok()?;
    // The token's own line feed, which follows, counts.
    Some((number, rest.split('"').nth(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        let tokens = lex(source).tokens;
        tokens.iter().filter(|t| t.kind != Kind::Blank).map(|t| t.text).collect()
    }

    #[test]
    fn tokens_together_are_the_source() {
        let source = "#define A \\\n  1\nint x = 0x1eu+2; /* a\nb */ float y = .5e-3f; // end";
        let joined: String = lex(source).tokens.iter().map(|t| t.text).collect();
        assert_eq!(joined, source);
    }

    #[test]
    fn numbers_words_and_operators_are_told_apart() {
        assert_eq!(
            texts("a->b<<=1.5e-3f+0x1e+2>>3"),
            ["a", "->", "b", "<<=", "1.5e-3f", "+", "0x1e", "+", "2", ">", ">", "3"]
        );
        assert_eq!(texts("x = 'a' + \"b\\\"c\""), ["x", "=", "'a'", "+", "\"b\\\"c\""]);
    }

    #[test]
    fn a_hash_begins_a_directive_only_at_the_start_of_a_line() {
        let kinds: Vec<_> = lex("  #if A\n#endif").tokens.iter().map(|t| t.kind).collect();
        assert_eq!(kinds, [Kind::Blank, Kind::Directive, Kind::Blank, Kind::Directive]);
    }

    #[test]
    fn line_directives_name_the_following_lines() {
        let lexed = lex("a\n#line 7 \"k.h\"\nb\nc\n#line 3\nd");
        let words: Vec<_> = (lexed.tokens.iter())
            .filter(|t| t.kind == Kind::Word)
            .map(|t| (t.text, lexed.files[t.file].as_str(), t.line))
            .collect();
        assert_eq!(words, [("a", "source", 1), ("b", "k.h", 7), ("c", "k.h", 8), ("d", "k.h", 3)]);
    }
}
