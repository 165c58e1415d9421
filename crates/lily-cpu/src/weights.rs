//! A checkpoint's weights in memory, and their resolution for one plan.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lily_checkpoint::Checkpoint;
use lily_checkpoint::manifest::WeightShape;
use lily_device::{DeviceError, Progress};
use lily_plan::buffer::{BufferId, Elem, WeightId};
use lily_plan::plan::Plan;

use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::simd::Isa;

/// One weight.
#[derive(Clone, Debug)]
enum Weight {
    Matrix(Arc<Matrix>),
    /// Vectors, and convolutions as `[channels, width]`.
    Floats(Arc<[f32]>),
}

/// All weights by canonical name.
#[derive(Debug)]
pub(crate) struct WeightStore {
    by_name: HashMap<String, Weight>,
    bytes: u64,
}

impl WeightStore {
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        isa: Isa,
        pool: &Pool,
        progress: &dyn Progress,
    ) -> Result<Self, DeviceError> {
        let manifest = checkpoint.manifest();
        let total = manifest.bytes();
        let done = AtomicU64::new(0);
        let advance = |bytes: u64| {
            let now = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            progress.advance(now.min(total), total);
        };
        let mut by_name = HashMap::with_capacity(manifest.weights().len());
        let mut bytes = 0;
        for info in manifest.weights() {
            let read = |result: Result<Vec<f32>, _>| {
                result.map_err(|source| DeviceError::Read {
                    name: info.name.clone(),
                    source: Box::new(source),
                })
            };
            let weight = match info.shape {
                WeightShape::Matrix(_) => {
                    let matrix = Matrix::load(checkpoint, info, isa, pool, &advance)?;
                    bytes += matrix.bytes();
                    Weight::Matrix(Arc::new(matrix))
                }
                WeightShape::Vector { .. } | WeightShape::Conv { .. } => {
                    let floats = match info.shape {
                        WeightShape::Vector { .. } => read(checkpoint.read_vector(&info.name))?,
                        _ => read(checkpoint.read_conv(&info.name))?,
                    };
                    advance(info.shape.bytes());
                    bytes += 4 * floats.len() as u64;
                    Weight::Floats(floats.into())
                }
            };
            by_name.insert(info.name.clone(), weight);
        }
        Ok(WeightStore { by_name, bytes })
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The weights as one plan numbers them.
    pub(crate) fn of<'a>(&'a self, plan: &'a Plan) -> Weights<'a> {
        Weights { store: self, plan }
    }
}

/// Weights as one plan numbers them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights<'a> {
    store: &'a WeightStore,
    plan: &'a Plan,
}

impl Weights<'_> {
    /// Buffers of the plan.
    pub(crate) fn plan_buffers(&self) -> usize {
        self.plan.buffers.len()
    }

    /// Whether a buffer of the plan holds `bf16`.
    pub(crate) fn is_bf16(&self, id: BufferId) -> bool {
        self.plan.buffer(id).elem == Elem::Bf16
    }

    fn get(&self, id: WeightId) -> (&str, &Weight) {
        let name = &self.plan.weight(id).name;
        match self.store.by_name.get(name) {
            Some(weight) => (name, weight),
            None => panic!("the plan names weight {name}, which the checkpoint lacks"),
        }
    }

    /// A matrix.
    pub(crate) fn matrix(&self, id: WeightId) -> Arc<Matrix> {
        match self.get(id) {
            (_, Weight::Matrix(matrix)) => Arc::clone(matrix),
            (name, Weight::Floats(_)) => panic!("weight {name} is not a matrix"),
        }
    }

    /// A vector of `len` elements, or a convolution of as many taps in all.
    pub(crate) fn floats(&self, id: WeightId, len: usize) -> Arc<[f32]> {
        match self.get(id) {
            (name, Weight::Floats(floats)) => {
                assert_eq!(floats.len(), len, "elements of weight {name}");
                Arc::clone(floats)
            }
            (name, Weight::Matrix(_)) => panic!("weight {name} is a matrix"),
        }
    }
}
