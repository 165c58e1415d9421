//! The kernels in other languages: CUDA C++ for NVIDIA, host C++ for the emulator, and the dialect of
//! OpenCL C++ that clang can check ([`crate::check`]).
//!
//! The translation works on tokens. It knows the few places where Metal is more than C++: address
//! spaces, attributes, kernel templates and their instantiations, program-scope constants, swizzles
//! and pragmas. Everything else is C++ and passes as it stands; types and functions of Metal's library
//! are the business of the run-time texts (`kernels/runtime`). What it does not understand is an
//! error with file and line. `kernels/README.md` has the rules of the dialect.

mod code;
mod items;
mod kernel;
mod lexer;
mod lint;
mod source;
mod types;

use std::collections::BTreeSet;

use crate::sources::Position;

/// A source that has been translated.
#[derive(Clone, Debug)]
pub struct Translated {
    /// The code, inside `namespace metal`; the run-time text of the back end goes before it.
    pub code: String,
    /// One per instantiation, in order.
    pub entries: Vec<Entry>,
}

/// A kernel that a machine can launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As the source says: `template [[host_name("...")]]`.
    pub host_name: String,
    /// The template that it instantiates.
    pub template: String,
    /// The template's arguments.
    pub args: Vec<String>,
    /// The argument of `max_total_threads_per_threadgroup` with the template's arguments put in.
    pub max_threads: Option<String>,
    /// By buffer index, without gaps.
    pub buffers: Vec<EntryBuffer>,
}

/// A buffer argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryBuffer {
    /// The parameter's name.
    pub name: String,
    /// The type of its elements, or of the value, with the template's arguments put in.
    pub element: String,
    /// How it is bound.
    pub kind: BufferKind,
}

/// How a buffer argument is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// The address of a buffer.
    Pointer {
        /// The kernel may write through it.
        writable: bool,
    },
    /// Bytes by value: `constant T&`.
    Value,
}

/// What is not understood, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}{problem}")]
pub struct TranslateError {
    /// File and line, as the `#line` directives say.
    pub at: Position,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Problem {
    #[error("{0:?} has no counterpart")]
    Unbalanced(String),
    #[error("a declaration without an end")]
    NoSemicolon,
    #[error("{0:?} where a type is expected")]
    NoType(String),
    #[error("more than one address space")]
    TwoSpaces,
    #[error("the address space goes before the type")]
    SpaceBehindType,
    #[error("a pointer to a pointer")]
    PointerToPointer,
    #[error("a pointer or reference to an array: pass a pointer to the elements")]
    PointerToArray,
    #[error("an rvalue reference with an address space")]
    RvalueReference,
    #[error("only `thread` can follow a method's parameters")]
    MethodSpace,
    #[error("a pointer or reference to {0} without an address space")]
    BarePointer(String),
    #[error("a method has `thread` behind its parameters (a constructor cannot: use a function)")]
    MethodWithoutThread,
    #[error("alignas needs an argument")]
    Alignment,
    #[error("threadgroup memory is declared at the outermost level of a kernel's body")]
    StorageOutsideKernel,
    #[error("one threadgroup variable per declaration, without initialiser: {0:?} follows")]
    StorageForm(String),
    #[error("tensors are known to Metal and to the emulator")]
    Tensor,
    #[error("a variable in the address space {0}")]
    SpaceOfVariable(&'static str),
    #[error("an array of a template type with a comma needs a typedef")]
    CommaInStorage,
    #[error("{0:?} is not part of the dialect")]
    Forbidden(String),
    #[error("the literal {0:?}: write half(1.0f) or bfloat(1.0f)")]
    HalfLiteral(String),
    #[error("an unknown pragma: {0}")]
    Pragma(String),
    #[error("an address space inside a macro: {0}")]
    SpaceInMacro(String),
    #[error("the attribute {0:?} is unknown here")]
    Attribute(String),
    #[error("a kernel has to be a template")]
    NoTemplate,
    #[error("a kernel returns void")]
    NotVoid,
    #[error("malformed {0}")]
    Malformed(&'static str),
    #[error("a template parameter of a kernel has no default and one name")]
    TemplateParameter,
    #[error("the kernel parameter {0:?} needs exactly one attribute")]
    ParameterAttributes(String),
    #[error("the buffer {0:?} has to be a device or constant pointer or a constant reference")]
    BufferForm(String),
    #[error(
        "buffer indices have to be 0 to {last} without gaps; {found} is not one or comes twice"
    )]
    BufferIndices { last: usize, found: usize },
    #[error("the kernel {0:?} is defined twice")]
    KernelTwice(String),
    #[error("there is no kernel template {0:?}")]
    UnknownKernel(String),
    #[error("{template:?} takes {expected} template arguments, not {found}")]
    ArgumentCount { template: String, expected: usize, found: usize },
    #[error(
        "an instantiation is written: template [[host_name(\"n\")]] [[kernel]] decltype(f<A>) f<A>;"
    )]
    Instantiation,
    #[error("the host name {0:?} comes twice")]
    HostNameTwice(String),
}

/// What a source is translated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Host,
    Cuda,
    /// What `clang -x clcpp` parses.
    Check,
}

/// Host C++ for the emulator, which has `kernels/runtime/host.hpp`.
///
/// Pointers into `device`, `constant` and `threadgroup` memory become `::lily::ptr<T>`, threadgroup
/// storage becomes `LILY_THREADGROUP(T, name, dimensions)`, and every instantiation the function
/// `extern "C" void lily_entry_<host name>(const ::lily::binding*)`, which each fibre calls. Where it runs in
/// clusters (`common/cluster.h`), the number `lily_cluster_<host name>` says of how many threadgroups.
///
/// # Errors
/// Where the source leaves the dialect.
pub fn host(source: &str) -> Result<Translated, TranslateError> {
    translate(source, Target::Host)
}

/// CUDA C++ for NVRTC, after `kernels/runtime/cuda.cuh`.
///
/// Every instantiation becomes an `extern "C" __global__` function of its host name. Its parameters
/// are the buffers by index: pointers, and structs by value.
///
/// # Errors
/// Where the source leaves the dialect.
pub fn cuda(source: &str) -> Result<Translated, TranslateError> {
    translate(source, Target::Cuda)
}

pub(crate) fn translate(text: &str, target: Target) -> Result<Translated, TranslateError> {
    let source = source::Source::new(text)?;
    lint::check(&source)?;
    let mut items = items::Items::new(&source, target);
    items.all()?;
    let (code, entries) = items.finish();
    let mut names = BTreeSet::new();
    for (entry, at) in &entries {
        if !names.insert(entry.host_name.as_str()) {
            return Err(source.error(*at, Problem::HostNameTwice(entry.host_name.clone())));
        }
    }
    // For the check it stands outside, as on Metal: names that both have are ambiguous there.
    let code = match target {
        Target::Check => format!("using namespace metal;\n{code}\n"),
        Target::Host | Target::Cuda => {
            format!("namespace metal {{\n{code}\n}} // namespace metal\n")
        }
    };
    Ok(Translated { code, entries: entries.into_iter().map(|(entry, _)| entry).collect() })
}
