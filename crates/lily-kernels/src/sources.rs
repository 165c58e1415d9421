//! The texts of `kernels/`: carried inside the program, put together per library.
//!
//! Metal compiles a library from one string and knows no include path, so the project's includes
//! (`#include "common/format.h"`, relative to `kernels/`) are inlined here, each file once, with
//! `#line` directives: every compiler's messages name file and line. Includes of the system
//! (`#include <metal_stdlib>`) stay.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use crate::launch::{Kernel, Module};

/// The name under which the parameter structs of [`crate::params`] are included.
pub const PARAMS_HEADER: &str = "params.h";

/// Development: a folder that is read at run time in place of the texts inside the program.
pub const KERNELS_VARIABLE: &str = "LILY_KERNELS";

/// Name (relative to `kernels/`) and text, sorted by name.
static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/kernel_files.rs"));

/// Why a source could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No such file under `kernels/`.
    #[error("{at}there is no kernel source {name:?}")]
    Missing {
        /// File and line of the include, or nothing.
        at: Position,
        /// What was asked for, relative to `kernels/`.
        name: String,
    },
    /// A file of the folder that `LILY_KERNELS` names.
    #[error("cannot read the kernel source {name:?}")]
    Read {
        /// Name relative to that folder.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// An include under `#if`: it would be inlined once whatever the condition says.
    #[error("{at}an include may not stand under a condition")]
    ConditionalInclude {
        /// File and line of the include.
        at: Position,
    },
    /// An include that is not understood.
    #[error("{at}malformed include {text:?}")]
    MalformedInclude {
        /// File and line of the include.
        at: Position,
        /// The line.
        text: String,
    },
}

/// File and line, if known; shows as `file:line: `, ready to stand before a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// As a `#line` directive names it: `kernels/...`.
    pub file: String,
    /// From 1; 0 where there is none.
    pub line: usize,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.line == 0 { Ok(()) } else { write!(f, "{}:{}: ", self.file, self.line) }
    }
}

/// Every file that is carried inside the program, relative to `kernels/`.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The text of one file, as it stands.
///
/// # Errors
/// There is no such file, or the folder of `LILY_KERNELS` cannot be read.
pub fn file(name: &str) -> Result<Cow<'static, str>, SourceError> {
    if let Some(root) = std::env::var_os(KERNELS_VARIABLE) {
        return std::fs::read_to_string(Path::new(&root).join(name))
            .map(Cow::Owned)
            .map_err(|source| SourceError::Read { name: name.to_owned(), source });
    }
    match FILES.binary_search_by_key(&name, |(name, _)| name) {
        Ok(at) => Ok(Cow::Borrowed(FILES[at].1)),
        Err(_) => Err(SourceError::Missing { at: Position::default(), name: name.to_owned() }),
    }
}

/// A module's source with its project includes inlined, for any machine.
///
/// # Errors
/// An include that does not exist or is not understood.
pub fn module(module: Module) -> Result<String, SourceError> {
    let folder = module.folder();
    flatten(&format!("{folder}/{folder}.metal"))
}

/// A module's source with the given kernels instantiated: what a device compiles.
///
/// # Errors
/// As for [`module()`].
pub fn library(module: Module, kernels: &[&Kernel]) -> Result<String, SourceError> {
    let mut text = self::module(module)?;
    text.push_str("#line 1 \"instantiations\"\n");
    for kernel in kernels {
        text.push_str(&kernel.instantiation());
        text.push('\n');
    }
    Ok(text)
}

/// Any file of `kernels/` with its project includes inlined.
///
/// # Errors
/// As for [`module()`].
pub fn flatten(name: &str) -> Result<String, SourceError> {
    let mut flattened = Flattened::default();
    flattened.add(name, Position::default())?;
    Ok(flattened.text)
}

#[derive(Default)]
struct Flattened {
    text: String,
    seen: BTreeSet<String>,
}

impl Flattened {
    fn add(&mut self, name: &str, at: Position) -> Result<(), SourceError> {
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let text = match name {
            PARAMS_HEADER => Cow::Owned(crate::params::header()),
            _ => file(name).map_err(|error| match error {
                SourceError::Missing { name, .. } => SourceError::Missing { at, name },
                other => other,
            })?,
        };
        self.line_directive(1, name);
        let mut conditions = 0;
        for (index, line) in text.lines().enumerate() {
            let at = || Position { file: format!("kernels/{name}"), line: index + 1 };
            let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
            match directive {
                Some(d) if d.starts_with("if") => conditions += 1,
                Some(d) if d.starts_with("endif") => conditions -= 1,
                _ => {}
            }
            match directive.and_then(|d| d.strip_prefix("include")) {
                Some(what) if what.trim_start().starts_with('"') => {
                    let included = quoted(what.trim()).ok_or_else(|| {
                        SourceError::MalformedInclude { at: at(), text: line.to_owned() }
                    })?;
                    if conditions != 0 {
                        return Err(SourceError::ConditionalInclude { at: at() });
                    }
                    self.add(included, at())?;
                    self.line_directive(index + 2, name);
                }
                _ if directive.is_some_and(is_pragma_once) => self.text.push('\n'),
                _ => {
                    self.text.push_str(line);
                    self.text.push('\n');
                }
            }
        }
        Ok(())
    }

    fn line_directive(&mut self, line: usize, name: &str) {
        writeln!(self.text, "#line {line} \"kernels/{name}\"").expect("writing to a string");
    }
}

/// What stands between the quotes, if nothing else follows but a comment.
fn quoted(text: &str) -> Option<&str> {
    let (name, rest) = text.strip_prefix('"')?.split_once('"')?;
    let rest = rest.trim();
    (rest.is_empty() || rest.starts_with("//")).then_some(name)
}

fn is_pragma_once(directive: &str) -> bool {
    let mut words = directive.split_whitespace();
    words.next() == Some("pragma") && words.next() == Some("once")
}
