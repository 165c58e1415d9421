//! Kernels: their parameters, their bodies, and the entry points of their instantiations.

use std::ops::Range;

use super::code::{Rewriter, Scope};
use super::lexer::{self, Kind};
use super::types::{self, Form, Space, Spaced};
use super::{BufferKind, Entry, EntryBuffer, Problem, Target, TranslateError};

/// A kernel template of the source.
pub(crate) struct KernelTemplate {
    pub(crate) name: String,
    /// Names of the template parameters.
    parameters: Vec<String>,
    /// By index.
    buffers: Vec<Buffer>,
    /// The argument of `max_total_threads_per_threadgroup`.
    max_threads: Option<String>,
}

struct Buffer {
    name: String,
    /// The type in the target's language.
    ty: String,
    /// The type of the elements, or of the value.
    element: String,
    kind: BufferKind,
}

/// Facts about a thread: attribute, and the run-time's function that tells it.
const BUILT_IN: [(&str, &str); 8] = [
    ("threadgroup_position_in_grid", "tg_pos_"),
    ("threadgroups_per_grid", "tgs_per_grid_"),
    ("thread_index_in_threadgroup", "tid_"),
    ("thread_position_in_threadgroup", "tid_"),
    ("simdgroup_index_in_threadgroup", "sg_"),
    ("thread_index_in_simdgroup", "lane_"),
    ("simdgroups_per_threadgroup", "nsg_"),
    ("threads_per_threadgroup", "ntid_"),
];

/// `[[name]]` or `[[name(argument)]]`.
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) argument: Option<Range<usize>>,
    pub(crate) at: usize,
}

/// Reads `[[a, b(c)]]` at token `i`; the second value is where it ends.
pub(crate) fn attributes(
    rewriter: Rewriter<'_, '_>,
    i: usize,
) -> Result<(Vec<Attribute>, usize), TranslateError> {
    let source = rewriter.source;
    let end = source.closing(i);
    let inner = source.after(i);
    let mut found = Vec::new();
    for part in source.split(inner + 1..source.closing(inner))? {
        let at = source.at(part.start);
        let open = source.after(at);
        let argument = match source.text(open) {
            "(" if open < part.end => Some(open + 1..source.closing(open)),
            _ => None,
        };
        found.push(Attribute { name: source.text(at).to_owned(), argument, at });
    }
    Ok((found, end + 1))
}

/// Whether an attribute begins at `i`.
pub(crate) fn is_attribute(rewriter: Rewriter<'_, '_>, i: usize) -> bool {
    rewriter.source.text(i) == "[" && rewriter.source.text(rewriter.source.after(i)) == "["
}

/// Where the pieces of a kernel's definition stand.
pub(crate) struct Definition {
    /// Inside the `<>` of `template <...>`.
    pub(crate) template: Range<usize>,
    pub(crate) attributes: Vec<Attribute>,
    /// The kernel's name.
    pub(crate) name: usize,
    /// Inside the parentheses.
    pub(crate) parameters: Range<usize>,
    /// The braces of the body.
    pub(crate) body: Range<usize>,
}

/// The rewritten definition, and what its instantiations need to know.
pub(crate) fn define(
    rewriter: Rewriter<'_, '_>,
    definition: &Definition,
) -> Result<(String, KernelTemplate), TranslateError> {
    let source = rewriter.source;
    let name = source.text(definition.name).to_owned();
    let parameters = template_parameters(rewriter, definition.template.clone())?;
    let mut max_threads = None;
    for attribute in &definition.attributes {
        match (attribute.name.as_str(), &attribute.argument) {
            ("kernel", None) => {}
            ("max_total_threads_per_threadgroup", Some(argument)) => {
                max_threads = Some(rewriter.code(argument.clone(), Scope::Other)?);
            }
            (name, _) => {
                return Err(source.error(attribute.at, Problem::Attribute(name.to_owned())));
            }
        }
    }

    let (mut indexed, mut locals, mut checked) = (Vec::new(), String::new(), Vec::new());
    for part in source.split(definition.parameters.clone())? {
        let parameter = parameter(rewriter, part)?;
        if rewriter.target == Target::Check {
            checked.push(rewriter.code(parameter.declaration.clone(), Scope::Other)?);
        }
        match parameter.kind {
            ParameterKind::Buffer { index, buffer } => indexed.push((index, buffer, parameter.at)),
            ParameterKind::BuiltIn(function) => {
                let ty = source.verbatim(parameter.declaration.start..parameter.name);
                let (ty, name) = (ty.trim(), source.text(parameter.name));
                locals.push_str(&format!(" {ty} {name} = {function}<{ty}>();"));
            }
        }
    }
    indexed.sort_by_key(|(index, ..)| *index);
    let last = indexed.len().saturating_sub(1);
    for (expected, (found, _, at)) in indexed.iter().enumerate() {
        if expected != *found {
            return Err(source.error(*at, Problem::BufferIndices { last, found: *found }));
        }
    }
    let buffers: Vec<Buffer> = indexed.into_iter().map(|(_, buffer, _)| buffer).collect();

    let template = rewriter.code(definition.template.clone(), Scope::Other)?;
    let body = rewriter.code(definition.body.start + 1..definition.body.end - 1, Scope::Kernel)?;
    let line = source.line_directive(definition.body.start);
    let list = |items: Vec<String>| items.join(", ");
    let arguments = || buffers.iter().map(|b| format!("{} {}", b.ty, b.name)).collect();
    let code = match rewriter.target {
        Target::Host => {
            format!(
                "template <{template}> void {name}({}) {{{locals}{line}{body}}}",
                list(arguments())
            )
        }
        Target::Cuda => format!(
            "template <{template}> __device__ __forceinline__ void {name}({}) {{{locals}{line}{body}}}",
            list(arguments())
        ),
        Target::Check => {
            let memory = threadgroup_memory(rewriter, definition.body.clone())?;
            format!("template <{template}> void {name}({}) {{{line}{body}{memory}}}", list(checked))
        }
    };
    Ok((code, KernelTemplate { name, parameters, buffers, max_threads }))
}

/// The names of the template parameters.
fn template_parameters(
    rewriter: Rewriter<'_, '_>,
    range: Range<usize>,
) -> Result<Vec<String>, TranslateError> {
    let source = rewriter.source;
    let mut names = Vec::new();
    for part in source.split(range)? {
        let name = source.before(part.end).filter(|&j| j >= part.start);
        let words: Vec<usize> = part
            .clone()
            .filter(|&j| !matches!(source.kind(j), Kind::Blank | Kind::Directive))
            .collect();
        match name {
            Some(j) if words.len() == 2 && source.is_word(j) => {
                names.push(source.text(j).to_owned())
            }
            _ => return Err(source.error(part.start, Problem::TemplateParameter)),
        }
    }
    Ok(names)
}

struct Parameter {
    kind: ParameterKind,
    /// Without attributes.
    declaration: Range<usize>,
    /// The name's token.
    name: usize,
    at: usize,
}

enum ParameterKind {
    Buffer { index: usize, buffer: Buffer },
    BuiltIn(&'static str),
}

fn parameter(rewriter: Rewriter<'_, '_>, part: Range<usize>) -> Result<Parameter, TranslateError> {
    let source = rewriter.source;
    let at = source.at(part.start);
    let bracket = part.clone().find(|&j| is_attribute(rewriter, j));
    let declaration = at..bracket.unwrap_or(part.end);
    let name = source.before(declaration.end).filter(|&j| j > at && source.is_word(j));
    let Some(name) = name else {
        return Err(source.error(at, Problem::Malformed("kernel parameter")));
    };
    let wrong_count =
        || source.error(at, Problem::ParameterAttributes(source.text(name).to_owned()));
    let bracket = bracket.ok_or_else(wrong_count)?;
    let (attributes, end) = attributes(rewriter, bracket)?;
    let [attribute] = attributes.as_slice() else { return Err(wrong_count()) };
    if source.at(end) < part.end {
        return Err(wrong_count());
    }

    let kind = match (attribute.name.as_str(), &attribute.argument) {
        ("buffer", Some(argument)) => {
            let index = source.verbatim(argument.clone()).trim().parse();
            let index = index.map_err(|_| source.error(at, Problem::Malformed("buffer index")))?;
            ParameterKind::Buffer { index, buffer: buffer(rewriter, declaration.clone(), name)? }
        }
        (attribute_name, None) => {
            let built_in = BUILT_IN.iter().find(|(known, _)| *known == attribute_name);
            let unknown = || source.error(at, Problem::Attribute(attribute_name.to_owned()));
            ParameterKind::BuiltIn(built_in.ok_or_else(unknown)?.1)
        }
        (name, _) => return Err(source.error(at, Problem::Attribute(name.to_owned()))),
    };
    Ok(Parameter { kind, declaration, name, at })
}

fn buffer(
    rewriter: Rewriter<'_, '_>,
    declaration: Range<usize>,
    name: usize,
) -> Result<Buffer, TranslateError> {
    let source = rewriter.source;
    let text = source.text(name);
    let wrong = || source.error(declaration.start, Problem::BufferForm(text.to_owned()));
    let spaced = types::spaced(source, declaration.start)?.ok_or_else(wrong)?;
    if spaced.end != name {
        return Err(wrong());
    }
    let kind = match (spaced.form, spaced.space) {
        (Form::Pointer, Space::Device) => BufferKind::Pointer { writable: !spaced.constant },
        (Form::Pointer, Space::Constant) => BufferKind::Pointer { writable: false },
        (Form::Reference, Space::Constant) => BufferKind::Value,
        _ => return Err(wrong()),
    };
    Ok(Buffer {
        name: text.to_owned(),
        ty: rewriter.spaced_type(&spaced)?,
        element: source.verbatim(spaced.name.clone()),
        kind,
    })
}

/// For the check: the assertion that all threadgroup memory of a kernel fits.
fn threadgroup_memory(
    rewriter: Rewriter<'_, '_>,
    body: Range<usize>,
) -> Result<String, TranslateError> {
    let source = rewriter.source;
    let (mut sizes, mut i) = (String::from("0"), body.start + 1);
    while i < body.end {
        if source.opens(i) {
            i = source.closing(i);
        } else if source.is_word(i)
            && let Some(Spaced { form: Form::Storage, space: Space::Threadgroup, end, .. }) =
                types::spaced(source, i)?
        {
            sizes.push_str(&format!(
                " + (sizeof({}_lily_storage) + 15) / 16 * 16",
                source.text(end)
            ));
            i = end;
        }
        i += 1;
    }
    Ok(format!("; static_assert({sizes} <= 32768, \"threadgroup memory\"); "))
}

/// The entry point of an instantiation `decltype(f<args>) f<args>`.
pub(crate) fn instantiate(
    template: &KernelTemplate,
    target: Target,
    host_name: &str,
    args: &[String],
) -> Result<(String, Entry), Problem> {
    if args.len() != template.parameters.len() {
        return Err(Problem::ArgumentCount {
            template: template.name.clone(),
            expected: template.parameters.len(),
            found: args.len(),
        });
    }
    let put_in = |text: &str| substitute(text, &template.parameters, args);
    let max_threads = template.max_threads.as_deref().map(put_in);
    let call = format!("{}<{}>", template.name, args.join(", "));
    // Neighbouring threadgroups that exchange numbers (kernels/common/cluster.h).
    let cluster = template.parameters.iter().position(|name| name == "CLUSTER");
    let cluster = cluster.map(|at| args[at].as_str()).filter(|&size| size != "1");
    let code = match target {
        Target::Host => {
            let cluster = cluster.map_or(String::new(), |n| {
                format!(
                    " extern \"C\" __attribute__((visibility(\"default\"))) const metal::uint \
                     lily_cluster_{host_name} = {n};"
                )
            });
            let arguments =
                template.buffers.iter().enumerate().map(|(i, buffer)| match buffer.kind {
                    BufferKind::Pointer { .. } => format!("{}(b[{i}])", put_in(&buffer.ty)),
                    BufferKind::Value => {
                        format!("::lily::value<{}>(b[{i}])", put_in(&buffer.element))
                    }
                });
            format!(
                "extern \"C\" __attribute__((visibility(\"default\"))) void lily_entry_{host_name}\
                 (const ::lily::binding* b) {{ {call}({}); }}{cluster}",
                arguments.collect::<Vec<_>>().join(", ")
            )
        }
        Target::Cuda => {
            let parameters = template.buffers.iter().map(|buffer| match buffer.kind {
                BufferKind::Pointer { .. } => format!("{} {}", put_in(&buffer.ty), buffer.name),
                BufferKind::Value => {
                    format!("const __grid_constant__ {} {}", put_in(&buffer.element), buffer.name)
                }
            });
            let parameters = parameters.chain(["const __grid_constant__ ahead_ ahead".to_owned()]);
            let names: Vec<_> = template.buffers.iter().map(|b| b.name.as_str()).collect();
            let cluster =
                cluster.map_or(String::new(), |n| format!("__cluster_dims__({n}, 1, 1) "));
            format!(
                "extern \"C\" __global__ void {cluster}__launch_bounds__({}) {host_name}({}) \
                 {{ LILY_BEGIN(ahead); {call}({}); }}",
                max_threads.as_deref().unwrap_or("1024"),
                parameters.collect::<Vec<_>>().join(", "),
                names.join(", ")
            )
        }
        Target::Check => format!("template decltype({call}) {call};"),
    };
    let buffers = template.buffers.iter().map(|buffer| EntryBuffer {
        name: buffer.name.clone(),
        element: put_in(&buffer.element),
        kind: buffer.kind,
    });
    let entry = Entry {
        host_name: host_name.to_owned(),
        template: template.name.clone(),
        args: args.to_vec(),
        max_threads,
        buffers: buffers.collect(),
    };
    Ok((code, entry))
}

/// Puts the arguments in the place of the template's parameters.
fn substitute(text: &str, parameters: &[String], args: &[String]) -> String {
    let mut out = String::new();
    let mut previous = "";
    for token in lexer::lex(text).tokens {
        let parameter = parameters.iter().position(|p| token.kind == Kind::Word && p == token.text);
        match parameter {
            Some(at) if !matches!(previous, "::" | ".") => out.push_str(&args[at]),
            _ => out.push_str(token.text),
        }
        previous = token.text;
    }
    out
}
