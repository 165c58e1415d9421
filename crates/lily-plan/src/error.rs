//! Everything that can be wrong with a plan.

use std::ops::Range;

use crate::buffer::{BufferClass, Elem};

/// One broken rule of a plan: the step, the operand, what was expected, what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The plan's rows or capacity make no sense.
    #[error("plan {dimension}: expected {expected}, found {found}")]
    Plan {
        /// `rows` or `capacity`.
        dimension: &'static str,
        /// What must hold.
        expected: &'static str,
        /// The value.
        found: usize,
    },
    /// A driving buffer is not what [`crate::plan::Ports`] says.
    #[error("port {port}: expected {expected}, found {found}")]
    Port {
        /// Field name.
        port: &'static str,
        /// What must hold.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// Two buffers, weights or steps share a name.
    #[error("two {what} are named {name}")]
    DuplicateName {
        /// `buffers`, `weights` or `steps`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A buffer is empty, or its size in bytes overflows.
    #[error("buffer {buffer}: {len} elements are none or too many")]
    BufferSize {
        /// Buffer name.
        buffer: String,
        /// Elements.
        len: u64,
    },
    /// A region names a buffer that the plan lacks.
    #[error("step {step}: {operand}: buffer {index} does not exist, the plan has {n_buffers}")]
    UnknownBuffer {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Index named.
        index: u32,
        /// Buffers there are.
        n_buffers: usize,
    },
    /// A region reaches beyond its buffer.
    #[error("step {step}: {operand}: bytes {bytes:?} lie outside {buffer} of {size} bytes")]
    OutOfBounds {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Buffer name.
        buffer: String,
        /// The region.
        bytes: Range<u64>,
        /// The buffer's size in bytes.
        size: u64,
    },
    /// A region does not start at an element.
    #[error(
        "step {step}: {operand}: starts at byte {start} of {buffer}, expected a multiple of {expected}"
    )]
    Misaligned {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Buffer name.
        buffer: String,
        /// First byte.
        start: u64,
        /// Element size in bytes.
        expected: u64,
    },
    /// A region has the wrong length for the operation's dimensions.
    #[error("step {step}: {operand}: expected {expected} bytes, found {found}")]
    Length {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Bytes that the dimensions ask for.
        expected: u64,
        /// Bytes of the region.
        found: u64,
    },
    /// A size that the dimensions ask for overflows.
    #[error("step {step}: {operand}: its size overflows")]
    Overflow {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
    },
    /// A buffer has the wrong element type.
    #[error("step {step}: {operand}: expected one of {expected:?}, found {found:?} in {buffer}")]
    ElementType {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Buffer name.
        buffer: String,
        /// Allowed types.
        expected: &'static [Elem],
        /// The buffer's type.
        found: Elem,
    },
    /// An operand lies in a buffer that may not hold it.
    #[error("step {step}: {operand}: expected {expected}, found {found:?} buffer {buffer}")]
    Home {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Buffer name.
        buffer: String,
        /// Where it has to lie.
        expected: String,
        /// The buffer's class.
        found: BufferClass,
    },
    /// A dimension is zero or contradicts another one.
    #[error("step {step}: {dimension}: expected {expected}, found {found}")]
    Dimension {
        /// Step name.
        step: String,
        /// Dimension.
        dimension: &'static str,
        /// What must hold.
        expected: String,
        /// Its value.
        found: usize,
    },
    /// An operation names a weight that the plan lacks.
    #[error("step {step}: {operand}: weight {index} does not exist, the plan has {n_weights}")]
    UnknownWeight {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Index named.
        index: u32,
        /// Weights there are.
        n_weights: usize,
    },
    /// A weight has the wrong shape for the operation's dimensions.
    #[error("step {step}: {operand}: expected {expected}, found {found} in weight {weight}")]
    WeightShape {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Weight name.
        weight: String,
        /// Shape that the dimensions ask for.
        expected: String,
        /// The weight's shape.
        found: String,
    },
    /// A step writes to a buffer that only the driver of the device may write.
    #[error("step {step}: {operand}: writes to input buffer {buffer}")]
    WriteToInput {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Buffer name.
        buffer: String,
    },
    /// A step reads bytes that nothing has written.
    #[error("step {step}: {operand}: bytes {bytes:?} of {buffer} were never written")]
    Uninitialised {
        /// Step name.
        step: String,
        /// Operand.
        operand: &'static str,
        /// Buffer name.
        buffer: String,
        /// First unwritten range inside the operand.
        bytes: Range<u64>,
    },
    /// An operation would write over another of its own operands.
    #[error("step {step}: {written} overlaps {operand}")]
    Alias {
        /// Step name.
        step: String,
        /// The written operand.
        written: &'static str,
        /// The other operand.
        operand: &'static str,
    },
    /// An output buffer has bytes that no step writes.
    #[error("output {buffer}: bytes {bytes:?} are never written")]
    UnwrittenOutput {
        /// Buffer name.
        buffer: String,
        /// First unwritten range.
        bytes: Range<u64>,
    },
    /// Two scratch buffers that live at the same time share bytes of the arena.
    #[error("scratch buffers {first} and {second} share bytes of the arena in stage {stage}")]
    SharedBytes {
        /// One buffer.
        first: String,
        /// The other.
        second: String,
        /// A stage in which both live.
        stage: usize,
    },
}
