//! Rules of Metal that neither the translation nor a C++ compiler would notice broken.

use std::collections::BTreeSet;

use super::source::Source;
use super::types::{self, Space};
use super::{Problem, TranslateError};

/// Types of Metal's library that a pointer may go to, without the digit of a vector.
const NUMBERS: [&str; 20] = [
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "bfloat",
    "float", "size_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t",
    "uint64_t",
];

/// Every pointer and reference names its address space, and every method that of `this`.
pub(crate) fn check(source: &Source<'_>) -> Result<(), TranslateError> {
    let types = type_names(source);
    let mut i = source.at(0);
    while i < source.len() {
        if source.is_word(i) {
            if let Some(spaced) = types::spaced(source, i)? {
                i = spaced.end.max(source.after(i));
                continue;
            }
            if matches!(source.text(i), "struct" | "class" | "union") {
                methods(source, i)?;
            }
            bare_pointer(source, i, &types)?;
        }
        i = source.after(i);
    }
    Ok(())
}

fn is_number(word: &str) -> bool {
    NUMBERS.contains(&word)
        || word.strip_suffix(['2', '3', '4']).is_some_and(|element| NUMBERS.contains(&element))
}

/// Names that are types wherever they stand: structs, type parameters, typedefs, unless the same name
/// is a variable or a number elsewhere.
fn type_names<'a>(source: &Source<'a>) -> BTreeSet<&'a str> {
    let (mut types, mut values) = (BTreeSet::from(["auto"]), BTreeSet::new());
    let mut i = source.at(0);
    while i < source.len() {
        let next = source.after(i);
        match source.text(i) {
            // `typename F::side_t` names no type of its own.
            "struct" | "class" | "union" | "typename"
                if source.is_word(next) && source.text(source.after(next)) != "::" =>
            {
                types.insert(source.text(next));
            }
            word if is_number(word) && source.is_word(next) => {
                values.insert(source.text(next));
            }
            _ => {}
        }
        i = next;
    }
    &types - &values
}

/// `T* p` or `T& r` without an address space.
fn bare_pointer(
    source: &Source<'_>,
    i: usize,
    types: &BTreeSet<&str>,
) -> Result<(), TranslateError> {
    let word = source.text(i);
    if !(is_number(word) || types.contains(word)) {
        return Ok(());
    }
    let mut next = source.after(i);
    if source.text(next) == "<" {
        let Ok(end) = source.closing_angle(next) else { return Ok(()) };
        next = source.after(end);
    }
    if source.text(next) == "const" {
        next = source.after(next);
    }
    match source.text(next) {
        "*" | "&" => Err(source.error(i, Problem::BarePointer(word.to_owned()))),
        _ => Ok(()),
    }
}

/// Methods of the struct at `i` have `thread` behind their parameters.
fn methods(source: &Source<'_>, i: usize) -> Result<(), TranslateError> {
    let mut j = source.after(i);
    while source.is_word(j) || matches!(source.text(j), "<" | "::") {
        j = match source.text(j) {
            "<" => source.after(source.closing_angle(j)?),
            _ => source.after(j),
        };
    }
    if source.text(j) != "{" {
        return Ok(());
    }
    let (mut k, end) = (source.after(j), source.closing(j));
    while k < end {
        if !source.opens(k) {
            k = source.after(k);
            continue;
        }
        let close = source.closing(k);
        if source.text(k) == "(" {
            let mut behind = source.after(close);
            let mut thread = false;
            while source.text(behind) == "const" || Space::of(source.text(behind)).is_some() {
                thread |= source.text(behind) == "thread";
                behind = source.after(behind);
            }
            if source.text(behind) == "{" && !thread {
                return Err(source.error(k, Problem::MethodWithoutThread));
            }
        }
        k = source.after(close);
    }
    Ok(())
}
