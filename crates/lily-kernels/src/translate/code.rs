//! Statements, expressions and declarations, rewritten token by token.

use std::ops::Range;

use super::lexer::{self, Kind};
use super::source::Source;
use super::types::{self, Form, Space, Spaced};
use super::{Problem, Target, TranslateError};

/// Words of C++ that Metal lacks, and of Metal that the dialect leaves out.
const FORBIDDEN: [&str; 19] = [
    "goto",
    "new",
    "delete",
    "virtual",
    "throw",
    "try",
    "catch",
    "typeid",
    "dynamic_cast",
    "double",
    "std",
    "asm",
    "thread_local",
    "vertex",
    "fragment",
    "kernel",
    "visible",
    "texture2d",
    "sampler",
];

/// The one loop pragma that the kernels use.
const UNROLL: &str = "\"clang loop unroll(full)\"";

/// Where code stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The body of a kernel: threadgroup memory may be declared.
    Kernel,
    /// Anywhere else.
    Other,
}

/// Rewrites pieces of a source.
#[derive(Clone, Copy)]
pub(crate) struct Rewriter<'s, 'a> {
    pub(crate) source: &'s Source<'a>,
    pub(crate) target: Target,
}

impl Rewriter<'_, '_> {
    /// The tokens of a range, rewritten.
    pub(crate) fn code(&self, range: Range<usize>, scope: Scope) -> Result<String, TranslateError> {
        let source = self.source;
        let mut out = String::new();
        let (mut i, mut depth) = (range.start, 0usize);
        while i < range.end {
            let text = source.text(i);
            match source.kind(i) {
                Kind::Blank | Kind::Quoted => out.push_str(text),
                Kind::Directive => out.push_str(&self.directive(i)?),
                Kind::Number => {
                    check_literal(text).map_err(|problem| source.error(i, problem))?;
                    out.push_str(text);
                }
                Kind::Word => {
                    let outermost = scope == Scope::Kernel && depth == 0;
                    i = self.word(i, outermost, &mut out)?;
                    continue;
                }
                Kind::Symbol => {
                    match text {
                        "{" | "(" | "[" => depth += 1,
                        "}" | ")" | "]" => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    if text == "[" && source.text(i + 1) == "[" {
                        let name = source.verbatim(i..source.closing(i) + 1);
                        return Err(source.error(i, Problem::Attribute(name)));
                    }
                    out.push_str(text);
                    if matches!(text, "." | "->") && self.swizzle(i + 1) {
                        out.push_str(source.text(i + 1));
                        out.push_str("_()");
                        i += 1;
                    }
                }
            }
            i += 1;
        }
        Ok(out)
    }

    /// Rewrites what begins with the word at `i`; returns where to go on.
    fn word(&self, i: usize, outermost: bool, out: &mut String) -> Result<usize, TranslateError> {
        let source = self.source;
        let text = source.text(i);
        if FORBIDDEN.contains(&text) {
            return Err(source.error(i, Problem::Forbidden(text.to_owned())));
        }
        if let Some(spaced) = types::spaced(source, i)? {
            return self.spaced(i, &spaced, outermost, out);
        }
        let next = source.after(i);
        match text {
            "_Pragma" if source.text(next) == "(" => {
                let argument = source.at(next + 1);
                let end = source.closing(next);
                out.push_str(loop_pragma(source.text(argument), self.target).ok_or_else(|| {
                    source.error(i, Problem::Pragma(source.text(argument).to_owned()))
                })?);
                Ok(end + 1)
            }
            // The host's pointers are classes, which reinterpret_cast refuses.
            "reinterpret_cast" if self.target == Target::Host && source.text(next) == "<" => {
                let pointer = types::spaced(source, source.after(next))?;
                let class = pointer.is_some_and(|p| p.space != Space::Thread);
                out.push_str(if class { "static_cast" } else { text });
                Ok(i + 1)
            }
            // OpenCL C++ has no constructors of vectors.
            _ if self.target == Target::Check
                && is_vector_type(text)
                && source.text(next) == "(" =>
            {
                out.push_str(&format!("__mkvec<{text}>"));
                Ok(i + 1)
            }
            "vec" if self.target == Target::Check && source.text(next) == "<" => {
                let end = source.closing_angle(next)? + 1;
                let name = self.code(i + 1..end, Scope::Other)?;
                let call = source.text(source.at(end)) == "(";
                out.push_str(&if call {
                    format!("__mkvec<vec{name}>")
                } else {
                    format!("vec{name}")
                });
                Ok(end)
            }
            _ => {
                out.push_str(text);
                Ok(i + 1)
            }
        }
    }

    /// Rewrites a type with an address space; returns where to go on.
    fn spaced(
        &self,
        i: usize,
        spaced: &Spaced,
        outermost: bool,
        out: &mut String,
    ) -> Result<usize, TranslateError> {
        let source = self.source;
        match (spaced.form, spaced.space) {
            (Form::Storage, Space::Threadgroup) if !outermost => {
                return Err(source.error(i, Problem::StorageOutsideKernel));
            }
            (Form::Storage, Space::Threadgroup) => return self.storage(i, spaced, out),
            (Form::Storage, Space::Device) => {
                return Err(source.error(i, Problem::SpaceOfVariable("device")));
            }
            (Form::Storage, Space::Constant) => {
                return Err(source.error(i, Problem::SpaceOfVariable("constant")));
            }
            (Form::Argument, _) if self.target == Target::Cuda => {
                return Err(source.error(i, Problem::Tensor));
            }
            _ => {}
        }
        if spaced.alignment.is_some() {
            return Err(source.error(i, Problem::Alignment));
        }
        if self.target == Target::Check {
            out.push_str(&self.verbatim_spaced(i, spaced)?);
        } else {
            out.push_str(&self.spaced_type(spaced)?);
        }
        // Blanks before the next token: a comment there keeps its line.
        let behind = source.before(spaced.end).map_or(spaced.end, |j| j + 1);
        if spaced.form == Form::Method || spaced.form == Form::Storage {
            out.push(' ');
        }
        Ok(behind.max(i + 1))
    }

    /// Everything but the address space, which clang understands, is rewritten.
    fn verbatim_spaced(&self, i: usize, spaced: &Spaced) -> Result<String, TranslateError> {
        let source = self.source;
        let qualifiers = source.verbatim(i..spaced.name.start);
        let name = self.code(spaced.name.clone(), Scope::Other)?;
        let behind = source.before(spaced.end).map_or(spaced.end, |j| j + 1);
        let rest = source.verbatim(spaced.name.end..behind.max(spaced.name.end));
        Ok(format!("{qualifiers}{name}{rest}"))
    }

    /// The type for a machine without address spaces in its language.
    pub(crate) fn spaced_type(&self, spaced: &Spaced) -> Result<String, TranslateError> {
        let mut out: String = spaced.others.iter().map(|word| format!("{word} ")).collect();
        let name = self.code(spaced.name.clone(), Scope::Other)?;
        let constant = if spaced.constant { "const " } else { "" };
        let class = self.target == Target::Host && spaced.space != Space::Thread;
        out.push_str(&match spaced.form {
            Form::Pointer if class => format!("::lily::ptr<{constant}{name}>"),
            Form::Pointer => format!("{constant}{name}*"),
            Form::Reference => format!("{constant}{name}&"),
            Form::Storage | Form::Argument => format!("{constant}{name}"),
            Form::Method => constant.trim_end().to_owned(),
        });
        Ok(out)
    }

    /// Rewrites `threadgroup T name[N];`; returns where to go on.
    fn storage(
        &self,
        i: usize,
        spaced: &Spaced,
        out: &mut String,
    ) -> Result<usize, TranslateError> {
        let source = self.source;
        let declared = spaced.end;
        if !source.is_word(declared) {
            let found = source.text(declared).to_owned();
            return Err(source.error(declared, Problem::StorageForm(found)));
        }
        let mut end = source.after(declared);
        let dimensions_start = end;
        while source.text(end) == "[" {
            end = source.after(source.closing(end));
        }
        if source.text(end) != ";" {
            return Err(source.error(end, Problem::StorageForm(source.text(end).to_owned())));
        }
        if spaced.constant || !spaced.others.is_empty() {
            return Err(source.error(i, Problem::StorageForm("a qualifier".to_owned())));
        }
        let name = source.text(declared);
        let ty = self.code(spaced.name.clone(), Scope::Other)?;
        let dimensions = self.code(dimensions_start..end, Scope::Other)?;
        let dimensions = dimensions.trim_end();
        out.push_str(&match self.target {
            Target::Cuda => {
                // Vectors are read from arrays of scalars.
                let alignment = match &spaced.alignment {
                    Some(range) => self.code(range.clone(), Scope::Other)?,
                    None => "16".to_owned(),
                };
                format!("__shared__ __align__({alignment}) {ty} {name}{dimensions};")
            }
            Target::Host if ty.contains(',') => {
                format!("typedef {ty} {name}_element; LILY_THREADGROUP({name}_element, {name}, {dimensions});")
            }
            Target::Host => format!("LILY_THREADGROUP({ty}, {name}, {dimensions});"),
            Target::Check => self.checked_storage(&ty, name, dimensions_start..end)?,
        });
        Ok(end + 1)
    }

    /// A pointer where Metal has an array, and a type whose size counts: clang allows local memory in
    /// kernels only, and no kernel may be a template.
    fn checked_storage(
        &self,
        ty: &str,
        name: &str,
        dimensions: Range<usize>,
    ) -> Result<String, TranslateError> {
        let all = self.code(dimensions.clone(), Scope::Other)?;
        let size = format!("typedef {ty} {name}_lily_storage {};", all.trim());
        let first = self.source.at(dimensions.start);
        let allocated = match self.source.text(first) {
            "[" => {
                let rest =
                    self.code(self.source.closing(first) + 1..dimensions.end, Scope::Other)?;
                let rest = rest.trim();
                match rest {
                    "" => format!("threadgroup {ty}* {name} = __tg_alloc<{ty}>();"),
                    _ => format!(
                        "threadgroup {ty} (*{name}){rest} = (threadgroup {ty} (*){rest})__tg_alloc<{ty}>();"
                    ),
                }
            }
            _ => format!("threadgroup {ty}& {name} = *__tg_alloc<{ty}>();"),
        };
        Ok(format!("{size} {allocated}"))
    }

    /// Whether the token is a swizzle of several letters; the machines' vectors have methods for them.
    fn swizzle(&self, i: usize) -> bool {
        let text = self.source.text(i);
        self.target != Target::Check
            && self.source.is_word(i)
            && (2..=4).contains(&text.len())
            && text.chars().all(|c| "xyzw".contains(c))
    }

    fn directive(&self, i: usize) -> Result<String, TranslateError> {
        let text = self.source.text(i);
        let body = text.trim_start().trim_start_matches('#').trim_start();
        let error = |problem| Err(self.source.error(i, problem));
        if let Some(rest) = body.strip_prefix("pragma") {
            let words: Vec<&str> = rest.split_whitespace().collect();
            return match words.as_slice() {
                ["METAL", ..] | ["once"] => Ok(String::new()),
                _ => error(Problem::Pragma(rest.trim().to_owned())),
            };
        }
        if body.starts_with("include") {
            // The run-time text stands for the system's headers; project files are inlined before.
            return match body.contains('<') {
                true => Ok(String::new()),
                false => error(Problem::Forbidden(text.trim().to_owned())),
            };
        }
        if !body.starts_with("define") {
            return Ok(text.to_owned());
        }
        self.macro_definition(i)
    }

    /// The body of a macro, rewritten as far as it can be without knowing where it is used.
    fn macro_definition(&self, i: usize) -> Result<String, TranslateError> {
        let text = self.source.text(i);
        let start = text.find('#').expect("a directive") + 1;
        let lexed = lexer::lex(&text[start..]);
        let mut out = text[..start].to_owned();
        let significant: Vec<_> = lexed.tokens.iter().filter(|t| t.kind != Kind::Blank).collect();
        if significant.iter().any(|t| Space::of(t.text).is_some() || t.text == "kernel") {
            return Err(self.source.error(i, Problem::SpaceInMacro(text.trim().to_owned())));
        }
        let mut tokens = lexed.tokens.iter().peekable();
        while let Some(token) = tokens.next() {
            if token.text == "_Pragma" {
                let inside: Vec<&str> = tokens.by_ref().take(3).map(|t| t.text).collect();
                let [_, argument, _] = inside[..] else {
                    return Err(self.source.error(i, Problem::Pragma(text.trim().to_owned())));
                };
                out.push_str(
                    loop_pragma(argument, self.target).ok_or_else(|| {
                        self.source.error(i, Problem::Pragma(argument.to_owned()))
                    })?,
                );
                continue;
            }
            let vector_call = self.target == Target::Check
                && is_vector_type(token.text)
                && tokens.peek().is_some_and(|t| t.text == "(");
            match vector_call {
                true => out.push_str(&format!("__mkvec<{}>", token.text)),
                false => out.push_str(token.text),
            }
            let swizzle = |t: &&lexer::Token<'_>| {
                t.kind == Kind::Word
                    && (2..=4).contains(&t.text.len())
                    && t.text.chars().all(|c| "xyzw".contains(c))
            };
            if token.text == "."
                && self.target != Target::Check
                && let Some(word) = tokens.next_if(swizzle)
            {
                out.push_str(word.text);
                out.push_str("_()");
            }
        }
        Ok(out)
    }
}

/// The pragma for a compiler; nothing for the host, where unrolled loops only compile slowly.
fn loop_pragma(argument: &str, target: Target) -> Option<&'static str> {
    (argument == UNROLL).then_some(match target {
        Target::Host => "",
        Target::Cuda => "_Pragma(\"unroll\")",
        Target::Check => "_Pragma(\"clang loop unroll(full)\")",
    })
}

fn check_literal(text: &str) -> Result<(), Problem> {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    match !hexadecimal && (text.ends_with(['h', 'H']) || text.ends_with("bf")) {
        true => Err(Problem::HalfLiteral(text.to_owned())),
        false => Ok(()),
    }
}

/// `float4`, `ushort2`, ...
fn is_vector_type(word: &str) -> bool {
    const ELEMENTS: [&str; 12] = [
        "bool", "half", "bfloat", "float", "short", "ushort", "int", "uint", "long", "ulong",
        "char", "uchar",
    ];
    word.strip_suffix(['2', '3', '4']).is_some_and(|element| ELEMENTS.contains(&element))
}
