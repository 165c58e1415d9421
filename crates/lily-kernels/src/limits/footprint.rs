//! How much memory a model needs on a device, before any of it is allocated.

use std::collections::HashMap;

use lily_checkpoint::manifest::{Manifest, WeightShape};
use lily_checkpoint::packed::PackedMatrix;
use lily_plan::buffer::BufferClass;
use lily_plan::valid::ValidPlan;

use super::Limits;

/// Bytes of a weight in device memory: the packed matrix, or `f32` numbers. `None` where the size
/// overflows.
pub fn weight_bytes(shape: &WeightShape) -> Option<u64> {
    match *shape {
        WeightShape::Matrix(matrix) => Some(PackedMatrix::of(&matrix)?.bytes),
        WeightShape::Vector { len, .. } => (len as u64).checked_mul(4),
        WeightShape::Conv { channels, width, .. } => {
            (channels as u64).checked_mul(width as u64)?.checked_mul(4)
        }
    }
}

/// Device memory of a model with its plans and one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// All weights of the checkpoint.
    pub weights: u64,
    /// Scratch; the plans share it.
    pub scratch: u64,
    /// Inputs and outputs; each plan has its own.
    pub ports: u64,
    /// KV cache and recurrent state of one session; the plans name them alike.
    pub session: u64,
}

impl Footprint {
    /// What these plans of one checkpoint need together. Sizes that overflow count as `u64::MAX`.
    pub fn of(manifest: &Manifest, plans: &[&ValidPlan]) -> Footprint {
        let mut sum = Footprint::default();
        for info in manifest.weights() {
            let bytes = weight_bytes(&info.shape).unwrap_or(u64::MAX);
            sum.weights = sum.weights.saturating_add(bytes);
        }
        let mut session = HashMap::new();
        for plan in plans {
            sum.scratch = sum.scratch.max(plan.arena_bytes());
            for buffer in &plan.plan().buffers {
                match buffer.class {
                    BufferClass::Input | BufferClass::Output => {
                        sum.ports = sum.ports.saturating_add(buffer.bytes());
                    }
                    BufferClass::KvCache | BufferClass::State => {
                        session.insert(buffer.name.as_str(), buffer.bytes());
                    }
                    BufferClass::Scratch => {}
                }
            }
        }
        sum.session = session.values().fold(0, |n, &bytes| n.saturating_add(bytes));
        sum
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        [self.scratch, self.ports, self.session]
            .iter()
            .fold(self.weights, |n, &b| n.saturating_add(b))
    }

    /// Bytes by which it exceeds what may be resident at once; `None` when it fits.
    pub fn excess(&self, limits: &Limits) -> Option<u64> {
        self.total().checked_sub(limits.working_set_bytes).filter(|&bytes| bytes > 0)
    }
}
