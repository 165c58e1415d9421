//! Buffers, byte ranges and weights that a plan names.

use std::ops::Range;

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// IEEE single.
    F32,
    /// bfloat16.
    Bf16,
    /// 32-bit unsigned.
    U32,
}

impl Elem {
    /// Size in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Elem::F32 | Elem::U32 => 4,
            Elem::Bf16 => 2,
        }
    }
}

/// Who owns a buffer and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferClass {
    /// Written before the run by whoever drives the device: tokens and control block.
    Input,
    /// Read after the run: logits.
    Output,
    /// Lives within one run; placed in a shared arena by lifetime.
    Scratch,
    /// KV cache of one session; grows with the context.
    KvCache,
    /// Recurrent or convolution state of one session; constant size.
    State,
}

impl BufferClass {
    /// Whether a session owns such buffers and keeps them from run to run.
    pub fn is_session(self) -> bool {
        match self {
            BufferClass::KvCache | BufferClass::State => true,
            BufferClass::Input | BufferClass::Output | BufferClass::Scratch => false,
        }
    }
}

/// Index of a buffer in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A named array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name in dumps. Session buffers (`KvCache`, `State`) are the same memory in every plan that
    /// names them alike.
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Elements.
    pub len: u64,
    /// Lifetime.
    pub class: BufferClass,
}

impl Buffer {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.len * self.elem.bytes()
    }
}

/// A contiguous byte range of one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The buffer.
    pub buffer: BufferId,
    /// Bytes from the buffer's start.
    pub bytes: Range<u64>,
}

impl Region {
    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.buffer == other.buffer
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

/// Index of a weight in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A weight that a plan reads; the device finds its bytes by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDecl {
    /// Canonical name, as in the checkpoint's manifest.
    pub name: String,
    /// Experts; 1 for everything that is not routed.
    pub n_experts: usize,
    /// Outputs (matrices), channels (convolution), elements (vectors).
    pub rows: usize,
    /// Inputs (matrices), taps (convolution), 1 (vectors).
    pub cols: usize,
    /// Bytes of all experts together.
    pub bytes: u64,
}
