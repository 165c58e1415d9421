//! Declarations with an address space: `const device uint4* w`, `threadgroup float xs[N]`.

use std::ops::Range;

use super::source::Source;
use super::{Problem, TranslateError};

/// An address space of Metal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Device,
    Constant,
    Threadgroup,
    Thread,
}

impl Space {
    pub(crate) fn of(word: &str) -> Option<Self> {
        match word {
            "device" => Some(Space::Device),
            "constant" => Some(Space::Constant),
            "threadgroup" => Some(Space::Threadgroup),
            "thread" => Some(Space::Thread),
            _ => None,
        }
    }
}

/// What follows the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `*`
    Pointer,
    /// `&`
    Reference,
    /// A variable of the space itself.
    Storage,
    /// A template argument by itself, as in `tensor<threadgroup bfloat, ...>`.
    Argument,
    /// No type at all: the space of `this`, after the parameters of a method.
    Method,
}

/// A type with an address space.
#[derive(Clone, Debug)]
pub(crate) struct Spaced {
    pub(crate) space: Space,
    pub(crate) constant: bool,
    /// `static`, `constexpr`, `volatile` and `inline`, as they stand.
    pub(crate) others: Vec<String>,
    /// The argument of `alignas`.
    pub(crate) alignment: Option<Range<usize>>,
    /// The type's name, without qualifiers.
    pub(crate) name: Range<usize>,
    pub(crate) form: Form,
    /// The first token that does not belong to it: behind the `*` or `&`, or the variable's name.
    pub(crate) end: usize,
}

/// Words that may stand together with an address space in front of a type.
fn is_qualifier(word: &str) -> bool {
    matches!(word, "const" | "volatile" | "static" | "constexpr" | "inline" | "alignas")
        || Space::of(word).is_some()
}

/// Reads a type with an address space that begins at token `i`, if one does.
pub(crate) fn spaced(source: &Source<'_>, i: usize) -> Result<Option<Spaced>, TranslateError> {
    let (mut j, mut space, mut constant) = (i, None, false);
    let (mut others, mut alignment) = (Vec::new(), None);
    while source.is_word(j) && is_qualifier(source.text(j)) {
        match source.text(j) {
            "const" => constant = true,
            "alignas" => {
                let open = source.after(j);
                if source.text(open) != "(" {
                    return Err(source.error(j, Problem::Alignment));
                }
                alignment = Some(open + 1..source.closing(open));
                j = source.closing(open);
            }
            word => match (Space::of(word), space) {
                (Some(_), Some(_)) => return Err(source.error(j, Problem::TwoSpaces)),
                (Some(found), None) => space = Some(found),
                (None, _) => others.push(word.to_owned()),
            },
        }
        j = source.after(j);
    }
    let Some(space) = space else { return Ok(None) };
    let constant = constant || space == Space::Constant;
    let spaced = |name, form, end| Spaced { space, constant, others, alignment, name, form, end };

    if matches!(source.text(j), "{" | ";" | "->" | "=") {
        return match space {
            Space::Thread => Ok(Some(spaced(j..j, Form::Method, j))),
            _ => Err(source.error(i, Problem::MethodSpace)),
        };
    }
    if matches!(source.text(j), "*" | "&") {
        return Err(source.error(i, Problem::SpaceBehindType));
    }
    let name = type_name(source, j)?;
    let mut constant_behind = false;
    let mut k = source.at(name.end);
    while source.is_word(k) && is_qualifier(source.text(k)) {
        match source.text(k) {
            "const" => constant_behind = true,
            _ => return Err(source.error(k, Problem::SpaceBehindType)),
        }
        k = source.after(k);
    }
    let (form, end) = match source.text(k) {
        "*" => (Form::Pointer, source.after(k)),
        "&" => (Form::Reference, source.after(k)),
        "&&" => return Err(source.error(k, Problem::RvalueReference)),
        "(" if space != Space::Thread => return Err(source.error(k, Problem::PointerToArray)),
        "," | ">" => (Form::Argument, k),
        _ => (Form::Storage, k),
    };
    if form == Form::Pointer && matches!(source.text(end), "*" | "&") && space != Space::Thread {
        return Err(source.error(end, Problem::PointerToPointer));
    }
    let mut result = spaced(name, form, end);
    result.constant |= constant_behind;
    Ok(Some(result))
}

/// The name of a type: `uint4`, `typename F::side_t`, `metal::vec<T, 4>`, `unsigned int`.
pub(crate) fn type_name(source: &Source<'_>, i: usize) -> Result<Range<usize>, TranslateError> {
    const PARTS_OF_NUMBERS: [&str; 5] = ["unsigned", "signed", "long", "short", "int"];
    let mut j = i;
    if source.text(j) == "typename" {
        j = source.after(j);
    }
    if source.text(j) == "::" {
        j = source.after(j);
    }
    loop {
        if source.text(j) == "template" {
            j = source.after(j);
        }
        if !source.is_word(j) {
            return Err(source.error(j, Problem::NoType(source.text(j).to_owned())));
        }
        let mut end = j + 1;
        let mut next = source.after(j);
        if PARTS_OF_NUMBERS.contains(&source.text(j)) {
            while PARTS_OF_NUMBERS.contains(&source.text(next)) || source.text(next) == "char" {
                end = next + 1;
                next = source.after(next);
            }
        }
        if source.text(j) == "decltype" && source.text(next) == "(" {
            end = source.closing(next) + 1;
            next = source.at(end);
        }
        if source.text(next) == "<" {
            end = source.closing_angle(next)? + 1;
            next = source.at(end);
        }
        if source.text(next) != "::" {
            return Ok(i..end);
        }
        j = source.after(next);
    }
}
