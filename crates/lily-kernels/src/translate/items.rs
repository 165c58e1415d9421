//! What stands at program scope: constants, kernels, instantiations, and everything else.

use super::code::{Rewriter, Scope};
use super::kernel::{self, Definition, KernelTemplate};
use super::lexer::Kind;
use super::source::Source;
use super::types::{self, Form, Space};
use super::{Entry, Problem, Target, TranslateError};

/// Goes through a source from top to bottom.
pub(crate) struct Items<'s, 'a> {
    rewriter: Rewriter<'s, 'a>,
    out: String,
    kernels: Vec<KernelTemplate>,
    /// With the token where each was asked for.
    entries: Vec<(Entry, usize)>,
}

impl<'s, 'a> Items<'s, 'a> {
    pub(crate) fn new(source: &'s Source<'a>, target: Target) -> Self {
        let rewriter = Rewriter { source, target };
        Items { rewriter, out: String::new(), kernels: Vec::new(), entries: Vec::new() }
    }

    pub(crate) fn finish(self) -> (String, Vec<(Entry, usize)>) {
        (self.out, self.entries)
    }

    pub(crate) fn all(&mut self) -> Result<(), TranslateError> {
        let source = self.rewriter.source;
        // Code from `start` on is ordinary so far.
        let (mut i, mut start) = (0, 0);
        while i < source.len() {
            if source.opens(i) && !kernel::is_attribute(self.rewriter, i) {
                i = source.closing(i) + 1;
                continue;
            }
            let begin = i;
            let end = match source.text(i) {
                "template" => self.template(i, start)?,
                "using" => self.using(i, start)?,
                "[" | "kernel" => return Err(source.error(i, Problem::NoTemplate)),
                _ if source.kind(i) == Kind::Word => self.constant(i, start)?,
                _ => None,
            };
            match end {
                Some(end) => {
                    self.out.push_str(&source.line_directive(end));
                    (i, start) = (end, end);
                }
                None => i = begin + 1,
            }
        }
        self.ordinary(start, source.len())
    }

    /// Writes ordinary code.
    fn ordinary(&mut self, start: usize, end: usize) -> Result<(), TranslateError> {
        let code = self.rewriter.code(start..end, Scope::Other)?;
        self.out.push_str(&code);
        Ok(())
    }

    /// `using namespace metal;`: the translated code stands inside that namespace.
    fn using(&mut self, i: usize, start: usize) -> Result<Option<usize>, TranslateError> {
        let source = self.rewriter.source;
        let semicolon = source.semicolon(i)?;
        let words: Vec<&str> =
            (i..semicolon).filter(|&j| source.is_word(j)).map(|j| source.text(j)).collect();
        if words != ["using", "namespace", "metal"] {
            return Ok(None);
        }
        self.ordinary(start, i)?;
        Ok(Some(semicolon + 1))
    }

    /// A constant of the program: a number, or a table.
    fn constant(&mut self, i: usize, start: usize) -> Result<Option<usize>, TranslateError> {
        let source = self.rewriter.source;
        let Some(spaced) = types::spaced(source, i)? else { return Ok(None) };
        match (spaced.form, spaced.space) {
            (Form::Storage, Space::Constant) => {}
            (Form::Storage, Space::Threadgroup) => {
                return Err(source.error(i, Problem::StorageOutsideKernel));
            }
            (Form::Storage, Space::Device) => {
                return Err(source.error(i, Problem::SpaceOfVariable("device")));
            }
            _ => return Ok(None),
        }
        self.ordinary(start, i)?;
        let semicolon = source.semicolon(i)?;
        let rest = spaced.end..semicolon;
        if let Some(at) = rest.clone().find(|&j| kernel::is_attribute(self.rewriter, j)) {
            let name = source.verbatim(at..source.closing(at) + 1);
            return Err(source.error(at, Problem::Attribute(name)));
        }
        let table = source.text(source.after(spaced.end)) == "[";
        let ty = self.rewriter.code(spaced.name.clone(), Scope::Other)?;
        let rest = self.rewriter.code(rest, Scope::Other)?;
        let qualifiers = match (self.rewriter.target, table) {
            (Target::Check, _) => "constant constexpr",
            (Target::Cuda, true) => "__constant__ const",
            (Target::Host, true) => "static const",
            (_, false) => "static constexpr",
        };
        self.out.push_str(&format!("{qualifiers} {ty} {rest};"));
        Ok(Some(semicolon + 1))
    }

    /// `template ...`: a kernel, an instantiation of one, or something ordinary.
    fn template(&mut self, i: usize, start: usize) -> Result<Option<usize>, TranslateError> {
        let source = self.rewriter.source;
        let mut j = source.after(i);
        if kernel::is_attribute(self.rewriter, j) {
            self.ordinary(start, i)?;
            return self.instantiation(i, j).map(Some);
        }
        if source.text(j) != "<" {
            return Ok(None);
        }
        let end = source.closing_angle(j)?;
        let template = j + 1..end;
        j = source.after(end);
        if !kernel::is_attribute(self.rewriter, j) && source.text(j) != "kernel" {
            // The list is passed by as a whole: a comma or a word in it begins nothing.
            return Ok(None);
        }
        self.ordinary(start, i)?;
        let mut attributes = Vec::new();
        loop {
            if kernel::is_attribute(self.rewriter, j) {
                let (found, end) = kernel::attributes(self.rewriter, j)?;
                attributes.extend(found);
                j = source.at(end);
            } else if source.text(j) == "kernel" {
                j = source.after(j);
            } else {
                break;
            }
        }
        if source.text(j) != "void" {
            return Err(source.error(j, Problem::NotVoid));
        }
        let name = source.after(j);
        let open = source.after(name);
        if !source.is_word(name) || source.text(open) != "(" {
            return Err(source.error(name, Problem::Malformed("kernel")));
        }
        let parameters = open + 1..source.closing(open);
        let brace = source.after(parameters.end);
        if source.text(brace) != "{" {
            return Err(source.error(brace, Problem::Malformed("kernel")));
        }
        let body = brace..source.closing(brace) + 1;
        let end = body.end;
        let definition = Definition { template, attributes, name, parameters, body };
        let (code, kernel) = kernel::define(self.rewriter, &definition)?;
        if self.kernels.iter().any(|known| known.name == kernel.name) {
            return Err(source.error(name, Problem::KernelTwice(kernel.name)));
        }
        self.out.push_str(&source.line_directive(i));
        self.out.push_str(&code);
        self.kernels.push(kernel);
        Ok(Some(end))
    }

    /// `template [[host_name("n")]] [[kernel]] decltype(f<A>) f<A>;` whose attributes begin at `j`.
    fn instantiation(&mut self, i: usize, mut j: usize) -> Result<usize, TranslateError> {
        let source = self.rewriter.source;
        let wrong = || source.error(i, Problem::Instantiation);
        let (mut host_name, mut is_kernel) = (None, false);
        while kernel::is_attribute(self.rewriter, j) {
            let (found, end) = kernel::attributes(self.rewriter, j)?;
            for attribute in found {
                match (attribute.name.as_str(), attribute.argument) {
                    ("host_name", Some(argument)) => {
                        host_name =
                            Some(source.verbatim(argument).trim().trim_matches('"').to_owned());
                    }
                    ("kernel", None) => is_kernel = true,
                    (name, _) => {
                        return Err(source.error(attribute.at, Problem::Attribute(name.to_owned())));
                    }
                }
            }
            j = source.at(end);
        }
        let host_name = host_name.filter(|_| is_kernel).ok_or_else(wrong)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if host_name.is_empty() || !host_name.chars().all(is_name) {
            return Err(wrong());
        }
        let open = source.after(j);
        if source.text(j) != "decltype" || source.text(open) != "(" {
            return Err(wrong());
        }
        let name = source.after(open);
        let angle = source.after(name);
        if source.text(angle) != "<" {
            return Err(wrong());
        }
        let angle_end = source.closing_angle(angle)?;
        let semicolon = source.semicolon(j)?;
        // What is declared has to be what decltype names.
        let significant = |range: std::ops::Range<usize>| -> String {
            range.filter(|&k| source.kind(k) != Kind::Blank).map(|k| source.text(k)).collect()
        };
        let closed = source.after(angle_end) == source.closing(open);
        if !closed
            || significant(name..angle_end + 1) != significant(source.closing(open) + 1..semicolon)
        {
            return Err(wrong());
        }
        let template = source.text(name);
        let kernel = self.kernels.iter().find(|k| k.name == template);
        let kernel = kernel
            .ok_or_else(|| source.error(name, Problem::UnknownKernel(template.to_owned())))?;
        let parts = source.split(angle + 1..angle_end)?;
        let args: Vec<String> =
            parts.into_iter().map(|p| source.verbatim(p).trim().to_owned()).collect();
        let (code, entry) = kernel::instantiate(kernel, self.rewriter.target, &host_name, &args)
            .map_err(|problem| source.error(i, problem))?;
        self.out.push_str(&code);
        self.entries.push((entry, i));
        Ok(semicolon + 1)
    }
}
