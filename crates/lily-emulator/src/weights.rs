//! A checkpoint's weights as kernels read them.

use std::collections::HashMap;

use lily_checkpoint::manifest::{WeightInfo, WeightShape};
use lily_checkpoint::packed::PackedMatrix;
use lily_checkpoint::{Checkpoint, CheckpointError};
use lily_device::{DeviceError, Progress};

use crate::memory::AlignedBytes;

/// All weights by canonical name.
#[derive(Debug)]
pub(crate) struct WeightStore {
    by_name: HashMap<String, AlignedBytes>,
}

impl WeightStore {
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        progress: &dyn Progress,
    ) -> Result<Self, DeviceError> {
        let manifest = checkpoint.manifest();
        let (mut by_name, mut done) = (HashMap::new(), 0);
        for info in manifest.weights() {
            let weight = read(checkpoint, info).map_err(|source| DeviceError::Read {
                name: info.name.clone(),
                source: Box::new(source),
            })?;
            by_name.insert(info.name.clone(), weight);
            done += info.shape.bytes();
            progress.advance(done, manifest.bytes());
        }
        Ok(WeightStore { by_name })
    }

    /// The bytes of a weight.
    ///
    /// # Panics
    /// When the checkpoint lacks it.
    pub(crate) fn get(&self, name: &str) -> &AlignedBytes {
        let missing = || panic!("the plan names weight {name}, which the checkpoint lacks");
        self.by_name.get(name).unwrap_or_else(missing)
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_name.values().map(|weight| weight.len() as u64).sum()
    }
}

fn read(checkpoint: &Checkpoint, info: &WeightInfo) -> Result<AlignedBytes, CheckpointError> {
    let shape = match info.shape {
        WeightShape::Vector { .. } => {
            return Ok(AlignedBytes::of_f32(&checkpoint.read_vector(&info.name)?));
        }
        WeightShape::Conv { .. } => {
            return Ok(AlignedBytes::of_f32(&checkpoint.read_conv(&info.name)?));
        }
        WeightShape::Matrix(shape) => shape,
    };
    let layout = PackedMatrix::of(&shape).expect("the manifest's sizes were checked");
    let mut packed = AlignedBytes::zeroed(layout.bytes as usize);
    let (words, sides) = packed.split_at_mut(layout.side_offset as usize);
    let part = |range: std::ops::Range<u64>, start: u64| {
        (range.start - start) as usize..(range.end - start) as usize
    };
    for expert in 0..shape.n_experts {
        let rows = 0..shape.rows;
        let words = &mut words[part(layout.words(expert, &rows), 0)];
        let side = &mut sides[part(layout.side(expert, &rows), layout.side_offset)];
        checkpoint.pack_rows(&info.name, expert, rows, words, side)?;
    }
    Ok(packed)
}
