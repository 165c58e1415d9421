//! An opened checkpoint.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};

use crate::config::{GenerationConfig, ModelConfig};
use crate::error::CheckpointError;
use crate::fields::CONFIG;
use crate::layout::{Array, Layout, Location, Span, match_weights, row_bytes};
use crate::manifest::{Dtype, Manifest, MatrixFormat, MatrixShape, WeightShape};
use crate::map::Mapping;
use crate::packed::PackedMatrix;
use crate::parse::{GENERATION, ParsedConfig, parse_config, parse_generation};
use crate::quantization::Quantization;
use crate::shards::Shards;
use crate::source::{Blob, FileStart, Source, is_plain_name};

const MAX_CONFIG_BYTES: u64 = 16 << 20;
pub(crate) const MAX_SIDE_FILE_BYTES: u64 = 512 << 20;

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
    source: Source,
    config: ModelConfig,
    generation: GenerationConfig,
    manifest: Manifest,
    /// In the order of the manifest.
    locations: Vec<Location>,
    files: Vec<Blob>,
    warnings: Vec<String>,
}

pub(crate) fn read_config(source: &Source) -> Result<ParsedConfig, CheckpointError> {
    match source.read(CONFIG, MAX_CONFIG_BYTES)? {
        Some(bytes) => parse_config(&bytes),
        None => Err(match source.gguf()? {
            Some(file) => CheckpointError::Gguf { file },
            None => CheckpointError::MissingFile { file: CONFIG.to_owned() },
        }),
    }
}

impl Checkpoint {
    /// Opens a directory (`config.json` and safetensors) or a `.lily` file and checks all of it but
    /// the weights' values, which are not read yet.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Self::from_source(Source::at(path)?)
    }

    /// Opens files that are in memory, by file name (the embedded demo model).
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_memory(files: Vec<(&'static str, &'static [u8])>) -> Result<Self, CheckpointError> {
        Self::from_source(Source::Memory(files))
    }

    /// Checks a checkpoint by the starts of its files: `config.json` and the index whole, of every
    /// safetensors file at least the header ([`header_bytes`](crate::header_bytes)). Weights cannot be read from it.
    ///
    /// # Errors
    /// As [`Checkpoint::open`], and [`CheckpointError::Io`] where a start is too short.
    pub fn from_starts(files: Vec<FileStart>) -> Result<Self, CheckpointError> {
        Self::from_source(Source::Starts(files))
    }

    fn from_source(source: Source) -> Result<Self, CheckpointError> {
        let ParsedConfig { model: mut config, root } = read_config(&source)?;
        let quantization = Quantization::parse(&root)?;
        let generation = match source.read(GENERATION, MAX_CONFIG_BYTES)? {
            Some(bytes) => parse_generation(&bytes)?,
            None => GenerationConfig::default(),
        };
        let (layout, files) = match &source {
            Source::Pack(pack) => (pack.layout(&config)?, vec![Source::whole(pack)]),
            Source::Directory(_) | Source::Memory(_) | Source::Starts(_) => {
                let mut shards = Shards::open(&source)?;
                let mut layout = match_weights(&config, &quantization, &mut shards)?;
                layout.warnings.splice(0..0, shards.warnings);
                (layout, shards.files)
            }
        };
        let Layout { manifest, locations, tied, warnings } = layout;
        config.tie_word_embeddings = tied;
        Ok(Checkpoint { source, config, generation, manifest, locations, files, warnings })
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
        &self.warnings
    }
    /// A side file such as `tokenizer.json`; `None` where it is missing.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when it exists and cannot be read, [`CheckpointError::FileTooLarge`]
    /// above 512 MiB, [`CheckpointError::NotAFile`] for a folder or device.
    pub fn side_file(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        if !is_plain_name(name) {
            return Ok(None);
        }
        self.source.read(name, MAX_SIDE_FILE_BYTES)
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
        name: &str,
        part: MatrixPart,
        expert: usize,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let (shape, location) = self.weight(name);
        let WeightShape::Matrix(matrix) = shape else { panic!("{name} is not a matrix") };
        assert!(expert < matrix.n_experts, "{name} has no expert {expert}");
        assert!(rows.start <= rows.end && rows.end <= matrix.rows, "{name} has no rows {rows:?}");
        if let &Location::Packed { span } = location {
            return self.read_packed_rows(span, &matrix, part, expert, &rows, out);
        }
        let Location::Matrix { weight, affine } = location else {
            panic!("{name} is not a matrix");
        };
        let (weight_bytes, scale_bytes) = row_bytes(matrix.format, matrix.cols);
        let (array, row_bytes): (&Array, usize) = match (part, affine) {
            (MatrixPart::Weight, _) => (weight, weight_bytes),
            (MatrixPart::Scales, Some((scales, _))) => (scales, scale_bytes),
            (MatrixPart::Biases, Some((_, biases))) => (biases, scale_bytes),
            (_, None) => panic!("{name} has no {part:?}"),
        };
        assert_eq!(out.len(), rows.len() * row_bytes, "buffer for rows {rows:?} of {name}");
        let Span { file, offset } = array.expert(expert);
        self.files[file].read_at(offset + (rows.start * row_bytes) as u64, out)
    }

    fn read_packed_rows(
        &self,
        span: Span,
        matrix: &MatrixShape,
        part: MatrixPart,
        expert: usize,
        rows: &Range<usize>,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let packed = PackedMatrix::of(matrix).expect("checked when the file was opened");
        let file = &self.files[span.file];
        if part == MatrixPart::Weight {
            let words = packed.words(expert, rows);
            assert_eq!(out.len() as u64, words.end - words.start, "buffer for rows {rows:?}");
            return file.read_at(span.offset + words.start, out);
        }
        let side = packed.side(expert, rows);
        let mut pairs = vec![0; (side.end - side.start) as usize];
        assert_eq!(out.len() * 2, pairs.len(), "buffer for rows {rows:?}");
        file.read_at(span.offset + side.start, &mut pairs)?;
        let MatrixFormat::Affine { scale, .. } = matrix.format else {
            panic!("a float matrix has no {part:?}");
        };
        let width = scale.bytes();
        let at = if part == MatrixPart::Scales { 0 } else { width };
        for (number, pair) in out.chunks_exact_mut(width).zip(pairs.chunks_exact(2 * width)) {
            number.copy_from_slice(&pair[at..at + width]);
        }
        Ok(())
    }

    /// The mapped `.lily` file, and where in it a weight lies as devices use it: matrices as
    /// [`crate::packed`] lays them out, everything else as `f32`. `None` for other checkpoints.
    ///
    /// # Panics
    /// When the manifest has no such weight.
    pub fn mapped(&self, name: &str) -> Option<(Arc<Mapping>, Range<usize>)> {
        let Source::Pack(pack) = &self.source else { return None };
        let entry = pack.weight(name).unwrap_or_else(|| panic!("no weight is called {name}"));
        let range = entry.offset as usize..(entry.offset + entry.bytes) as usize;
        Some((Arc::clone(pack.mapping()), range))
    }

    /// Compares every byte of a `.lily` file, weights and side files, with its checksums; other
    /// checkpoints have none, and pass. `progress` is told the bytes done and in all.
    ///
    /// # Errors
    /// [`CheckpointError::Pack`] for the first damaged place.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), CheckpointError> {
        match &self.source {
            Source::Pack(pack) => pack.verify_all(progress),
            Source::Directory(_) | Source::Memory(_) | Source::Starts(_) => Ok(()),
        }
    }

    /// Reads bytes of a packed matrix as they lie in a `.lily` file; `false` for other checkpoints,
    /// which have no such bytes.
    pub(crate) fn read_packed(
        &self,
        name: &str,
        range: Range<u64>,
        out: &mut [u8],
    ) -> Result<bool, CheckpointError> {
        let (_, location) = self.weight(name);
        let &Location::Packed { span } = location else { return Ok(false) };
        assert_eq!(out.len() as u64, range.end - range.start, "buffer for a part of {name}");
        self.files[span.file].read_at(span.offset + range.start, out)?;
        Ok(true)
    }

    /// A vector widened to `f32`, norms with their effective weight.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    ///
    /// # Panics
    /// When `name` is not a vector of the manifest.
    pub fn read_vector(&self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let (WeightShape::Vector { len, dtype }, &Location::Vector { span, plus_one }) =
            self.weight(name)
        else {
            panic!("{name} is not a vector");
        };
        let mut values = self.read_floats(span, len, dtype)?;
        if plus_one {
            for value in &mut values {
                *value += 1.0;
            }
        }
        Ok(values)
    }

    /// A convolution widened to `f32`: `[channels, width]`, whatever the layout on disk.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    ///
    /// # Panics
    /// When `name` is not a convolution of the manifest.
    pub fn read_conv(&self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let (WeightShape::Conv { channels, width, dtype }, &Location::Conv { span }) =
            self.weight(name)
        else {
            panic!("{name} is not a convolution");
        };
        self.read_floats(span, channels * width, dtype)
    }

    fn weight(&self, name: &str) -> (WeightShape, &Location) {
        let position =
            self.manifest.position(name).unwrap_or_else(|| panic!("no weight is called {name}"));
        (self.manifest.weights()[position].shape, &self.locations[position])
    }

    fn read_floats(
        &self,
        span: Span,
        len: usize,
        dtype: Dtype,
    ) -> Result<Vec<f32>, CheckpointError> {
        let mut bytes = vec![0; len * dtype.bytes()];
        self.files[span.file].read_at(span.offset, &mut bytes)?;
        let halves = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
        Ok(match dtype {
            Dtype::Bf16 => halves().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
            Dtype::F16 => halves().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
            Dtype::F32 => bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Dtype::U32 => unreachable!("vectors and convolutions are floats"),
        })
    }
}
