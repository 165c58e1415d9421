//! Whether a launch binds what its kernel takes.

use lily_plan::buffer::Region;
use lily_plan::op::Op;

use crate::launch::{Binding, Launch};
use crate::params;
use crate::translate::{BufferKind, Entry, EntryBuffer};

/// What does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindingError {
    /// The numbers of arguments.
    #[error("the kernel takes {expected} buffers, the launch binds {found}")]
    Count {
        /// What the kernel takes.
        expected: usize,
        /// What the launch has.
        found: usize,
    },
    /// A buffer where a value is taken, or the reverse.
    #[error("buffer {name:?} ({index}) is bound to {found}, and the kernel takes {expected}")]
    Kind {
        /// Buffer index.
        index: usize,
        /// The kernel's name for it.
        name: String,
        /// What the kernel takes.
        expected: &'static str,
        /// What the launch has.
        found: &'static str,
    },
    /// A value of another size than its struct.
    #[error("{name:?} is bound to {found} bytes, and {ty} has {expected:?}")]
    Size {
        /// The kernel's name for it.
        name: String,
        /// Its type.
        ty: String,
        /// Bytes of the type; none where it is not known.
        expected: Option<usize>,
        /// Bytes of the launch.
        found: usize,
    },
    /// Something that the step of the plan only reads.
    #[error("the kernel may write to {name:?}, which its step only reads")]
    Writes {
        /// The kernel's name for it.
        name: String,
    },
    /// Something that the step of the plan writes.
    #[error(
        "the step writes its operand {operand:?}, and no buffer that the kernel may write is bound to it"
    )]
    NotWritten {
        /// The operation's name for it.
        operand: &'static str,
    },
}

/// Compares the buffers of an entry with the bindings of a launch, and both with what the plan says
/// about the operation: what the kernel may write, the operation writes, and the reverse.
///
/// # Errors
/// The first difference.
pub fn bindings(op: &Op, launch: &Launch, entry: &Entry) -> Result<(), BindingError> {
    let (expected, found) = (entry.buffers.len(), launch.bindings.len());
    if expected != found {
        return Err(BindingError::Count { expected, found });
    }
    let signature = op.signature();
    let written = || signature.operands.iter().filter(|operand| operand.access.writes());
    for (index, (buffer, binding)) in entry.buffers.iter().zip(&launch.bindings).enumerate() {
        form(index, buffer, binding)?;
        let allowed = match binding {
            Binding::Region(region) => written().any(|operand| overlap(operand.region, region)),
            Binding::Weight(_) | Binding::Params(_) => false,
        };
        if is_writable(buffer) && !allowed {
            return Err(BindingError::Writes { name: buffer.name.clone() });
        }
    }
    let bound_to = |operand: &Region| {
        let mut pairs = entry.buffers.iter().zip(&launch.bindings);
        pairs.any(|(buffer, binding)| match binding {
            Binding::Region(region) => is_writable(buffer) && overlap(operand, region),
            Binding::Weight(_) | Binding::Params(_) => false,
        })
    };
    match written().find(|operand| !bound_to(operand.region)) {
        Some(operand) => Err(BindingError::NotWritten { operand: operand.name }),
        None => Ok(()),
    }
}

fn is_writable(buffer: &EntryBuffer) -> bool {
    buffer.kind == BufferKind::Pointer { writable: true }
}

fn overlap(a: &Region, b: &Region) -> bool {
    a.buffer == b.buffer && a.bytes.start < b.bytes.end && b.bytes.start < a.bytes.end
}

/// A value or a pointer, as the kernel takes it.
fn form(index: usize, buffer: &EntryBuffer, binding: &Binding) -> Result<(), BindingError> {
    let name = buffer.name.clone();
    match (buffer.kind, binding) {
        (BufferKind::Value, Binding::Params(bytes)) => {
            let (expected, found) = (params::size_of_struct(&buffer.element), bytes.len());
            if expected == Some(found) {
                return Ok(());
            }
            Err(BindingError::Size { name, ty: buffer.element.clone(), expected, found })
        }
        (BufferKind::Pointer { .. }, Binding::Region(_) | Binding::Weight(_)) => Ok(()),
        (BufferKind::Pointer { .. }, Binding::Params(_)) => {
            Err(BindingError::Kind { index, name, expected: "a pointer", found: "a value" })
        }
        (BufferKind::Value, Binding::Region(_) | Binding::Weight(_)) => {
            Err(BindingError::Kind { index, name, expected: "a value", found: "a buffer" })
        }
    }
}
