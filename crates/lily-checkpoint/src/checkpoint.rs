//! An opened checkpoint.

use std::ops::Range;
use std::path::Path;

use crate::config::{GenerationConfig, ModelConfig};
use crate::error::CheckpointError;
use crate::manifest::Manifest;

/// Which stored array of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixPart {
    /// Packed words or floats.
    Weight,
    /// Scales of an affine matrix.
    Scales,
    /// Biases of an affine matrix.
    Biases,
}

/// A validated checkpoint: configuration, manifest, and readers for every weight.
///
/// Readers take `&self` and may be called from many threads.
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    generation: GenerationConfig,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens a directory (`config.json` and safetensors) and checks all of it; no weight is read yet.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn open(_dir: &Path) -> Result<Self, CheckpointError> {
        todo!()
    }

    /// Opens files that are in memory, by file name (the embedded demo model).
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_memory(_files: Vec<(&'static str, &'static [u8])>) -> Result<Self, CheckpointError> {
        todo!()
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
    /// `generation_config.json`, or all-`None` where it is missing.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }
    /// Every weight of the model; nothing that is skipped by rule.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
    /// Things worth telling the user, one sentence each (for example an ignored index file).
    pub fn warnings(&self) -> &[String] {
        &[]
    }
    /// A side file such as `tokenizer.json`; `None` where it is missing.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when it exists and cannot be read.
    pub fn side_file(&self, _name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        todo!()
    }

    /// Copies rows of one part of a matrix into `out`, row-major, little-endian as stored.
    ///
    /// `rows` counts within one expert (`expert` is 0 for ordinary matrices). `out` is exactly
    /// `rows.len()` stored rows: `cols * bits / 8` bytes each (weight, affine), `cols / group_size *
    /// scale` (scales, biases), `cols * dtype` (float).
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    ///
    /// # Panics
    /// When the name, part, expert, rows or buffer size contradict the manifest.
    pub fn read_rows(
        &self,
        _name: &str,
        _part: MatrixPart,
        _expert: usize,
        _rows: Range<usize>,
        _out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        todo!()
    }

    /// A vector widened to `f32`, norms with their effective weight.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn read_vector(&self, _name: &str) -> Result<Vec<f32>, CheckpointError> {
        todo!()
    }

    /// A convolution widened to `f32`: `[channels, width]`, whatever the layout on disk.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn read_conv(&self, _name: &str) -> Result<Vec<f32>, CheckpointError> {
        todo!()
    }
}
