//! Matches the tensors of the files with the weights that the configuration calls for.

use std::collections::HashSet;

use crate::config::ModelConfig;
use crate::error::CheckpointError;
use crate::expected::{Expected, ExpectedKind, HEAD, expected_weights};
use crate::manifest::{Dtype, Manifest, MatrixFormat, MatrixShape, WeightInfo, WeightShape};
use crate::quantization::{Affine, BITS, GROUP_SIZES, Override, Quantization};
use crate::safetensors::show_shape;
use crate::shards::{Located, Shards};

/// Where the bytes of one stored array are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) file: usize,
    pub(crate) offset: u64,
}

/// One stored array of every expert of a matrix.
#[derive(Clone, Debug)]
pub(crate) enum Array {
    /// Experts follow each other at a fixed distance in bytes.
    Strided { first: Span, stride: u64 },
    /// One tensor per expert.
    Separate(Vec<Span>),
}

impl Array {
    pub(crate) fn expert(&self, expert: usize) -> Span {
        match self {
            Array::Strided { first, stride } => {
                Span { file: first.file, offset: first.offset + stride * expert as u64 }
            }
            Array::Separate(spans) => spans[expert],
        }
    }
}

/// Where the bytes of one weight are.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    Matrix {
        weight: Array,
        affine: Option<(Array, Array)>,
    },
    /// As [`crate::packed`] lays it out.
    Packed {
        span: Span,
    },
    /// `plus_one`: add one when widening.
    Vector {
        span: Span,
        plus_one: bool,
    },
    Conv {
        span: Span,
    },
}

/// The result of matching: shapes, and the place of each in the same order.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) manifest: Manifest,
    pub(crate) locations: Vec<Location>,
    pub(crate) tied: bool,
    pub(crate) warnings: Vec<String>,
}

/// Matches everything; what is left over afterwards is refused by name.
pub(crate) fn match_weights(
    config: &ModelConfig,
    quantization: &Quantization,
    shards: &mut Shards,
) -> Result<Layout, CheckpointError> {
    let tied = !shards.tensors.keys().any(|name| name.starts_with("lm_head."));
    if tied && !config.tie_word_embeddings {
        return Err(CheckpointError::MissingHead);
    }
    let hf = is_hf_layout(config, shards)?;
    let mut matcher = Matcher { quantization, shards, hf, warnings: Vec::new() };
    let all = expected_weights(config);
    let names: HashSet<&str> = all.iter().map(|expected| expected.name.as_str()).collect();
    if let [first, rest @ ..] = &quantization.unknown(|name| names.contains(name))[..] {
        let more =
            if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        matcher.warnings.push(format!("{first}{more}: no such module in this model, ignored"));
    }
    let mut weights = Vec::new();
    let mut locations = Vec::new();
    for expected in all {
        if expected.name == HEAD && tied {
            continue;
        }
        let (shape, location) = matcher.weight(&expected)?;
        weights.push(WeightInfo { name: expected.name, shape });
        locations.push(location);
    }
    let warnings = matcher.warnings;
    if let Some(left) = shards.tensors.values().min_by_key(|tensor| &tensor.entry.name) {
        return Err(CheckpointError::UnexpectedTensor {
            tensor: left.entry.name.clone(),
            file: shards.file_name(left).to_owned(),
        });
    }
    Ok(Layout { manifest: Manifest::new(weights), locations, tied, warnings })
}

/// Whether norms are stored without the `+ 1`, told by the layout of the convolutions.
fn is_hf_layout(config: &ModelConfig, shards: &Shards) -> Result<bool, CheckpointError> {
    let mut known: Option<(bool, &str)> = None;
    for layer in 0..config.layers.len() {
        let name = format!("layers.{layer}.linear_attn.conv1d.weight");
        let Some(tensor) = shards.tensors.get(&name) else { continue };
        let hf = match tensor.entry.shape[..] {
            [_, 1, width] if width == config.conv_width => true,
            [_, width, 1] if width == config.conv_width => false,
            _ => {
                let channels = config.conv_dim();
                return Err(wrong_shape(shards, tensor, &conv_shapes(channels, config.conv_width)));
            }
        };
        match known {
            Some((other, first)) if other != hf => {
                return Err(CheckpointError::MixedLayouts {
                    first: first.to_owned(),
                    second: tensor.entry.name.clone(),
                });
            }
            _ => known = Some((hf, &tensor.entry.name)),
        }
    }
    match known {
        Some((hf, _)) => Ok(hf),
        None if shards.tensors.keys().any(|name| name.ends_with(".scales")) => Ok(false),
        // A missing convolution has a better error of its own.
        None if config.layers.contains(&crate::config::LayerKind::LinearAttention) => Ok(false),
        None => Err(CheckpointError::UnknownLayout),
    }
}

fn conv_shapes(channels: usize, width: usize) -> String {
    format!("[{channels}, {width}, 1] or [{channels}, 1, {width}]")
}

fn wrong_shape(shards: &Shards, tensor: &Located, expected: &str) -> CheckpointError {
    CheckpointError::TensorShape {
        tensor: tensor.entry.name.clone(),
        file: shards.file_name(tensor).to_owned(),
        expected: expected.to_owned(),
        found: show_shape(&tensor.entry.shape),
    }
}

/// How the experts of one layer are filed.
enum Experts {
    /// `switch_mlp.gate_proj`, all experts in one tensor.
    Stacked,
    /// `experts.gate_up_proj`, gate rows above up rows.
    Fused,
    /// `experts.N.gate_proj`.
    Separate,
}

struct Matcher<'a> {
    quantization: &'a Quantization,
    shards: &'a mut Shards,
    hf: bool,
    warnings: Vec<String>,
}

impl Matcher<'_> {
    fn weight(&mut self, expected: &Expected) -> Result<(WeightShape, Location), CheckpointError> {
        let name = &expected.name;
        match expected.kind {
            ExpectedKind::Vector { len, shifted } => {
                let tensor = self.vector_tensor(name)?;
                self.check_shape(&tensor, &[len])?;
                let dtype = self.float(&tensor)?;
                let location =
                    Location::Vector { span: span(&tensor), plus_one: shifted && self.hf };
                Ok((WeightShape::Vector { len, dtype }, location))
            }
            ExpectedKind::Conv { channels, width } => {
                let tensor = self.take(&format!("{name}.weight"))?;
                // Either axis order holds the same bytes, the short axis being 1.
                if ![[channels, 1, width], [channels, width, 1]]
                    .iter()
                    .any(|s| *s == *tensor.entry.shape)
                {
                    return Err(wrong_shape(self.shards, &tensor, &conv_shapes(channels, width)));
                }
                let dtype = self.float(&tensor)?;
                let location = Location::Conv { span: span(&tensor) };
                Ok((WeightShape::Conv { channels, width, dtype }, location))
            }
            ExpectedKind::Matrix { n_experts: None, rows, cols } => {
                let part = self.matrix(name, name, &[], rows, cols)?;
                let stride = 0;
                let strided = |first| Array::Strided { first, stride };
                let location = Location::Matrix {
                    weight: strided(part.weight),
                    affine: part.affine.map(|(s, b)| (strided(s), strided(b))),
                };
                let shape = MatrixShape { n_experts: 1, rows, cols, format: part.format };
                Ok((WeightShape::Matrix(shape), location))
            }
            ExpectedKind::Matrix { n_experts: Some(n_experts), rows, cols } => {
                self.experts(name, n_experts, rows, cols)
            }
        }
    }

    fn experts(
        &mut self,
        name: &str,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<(WeightShape, Location), CheckpointError> {
        let (layer, projection) = name.split_once(".switch_mlp.").expect("expert names");
        let (weight, affine, format) = match self.expert_form(layer, projection) {
            Experts::Stacked => {
                let part = self.matrix(name, name, &[n_experts], rows, cols)?;
                let strided = |first, bytes: usize| Array::Strided { first, stride: bytes as u64 };
                let (weight_bytes, scale_bytes) = row_bytes(part.format, cols);
                let affine = part.affine.map(|(scales, biases)| {
                    (strided(scales, rows * scale_bytes), strided(biases, rows * scale_bytes))
                });
                (strided(part.weight, rows * weight_bytes), affine, part.format)
            }
            Experts::Fused => {
                let (weight, format) = self.fused(layer, projection, n_experts, rows, cols)?;
                (weight, None, format)
            }
            Experts::Separate => {
                let mut parts = Vec::new();
                for expert in 0..n_experts {
                    let stored = format!("{layer}.experts.{expert}.{projection}");
                    parts.push(self.matrix(name, &stored, &[], rows, cols)?);
                }
                let format = parts[0].format;
                if let Some(other) = parts.iter().position(|part| part.format != format) {
                    return Err(CheckpointError::MixedExperts {
                        tensor: format!("{layer}.experts.{other}.{projection}"),
                        expected: format!("{format:?}"),
                        found: format!("{:?}", parts[other].format),
                    });
                }
                let affine =
                    parts.iter().map(|part| part.affine).collect::<Option<Vec<_>>>().map(|both| {
                        let (scales, biases) = both.into_iter().unzip();
                        (Array::Separate(scales), Array::Separate(biases))
                    });
                (Array::Separate(parts.iter().map(|p| p.weight).collect()), affine, format)
            }
        };
        let shape = MatrixShape { n_experts, rows, cols, format };
        Ok((WeightShape::Matrix(shape), Location::Matrix { weight, affine }))
    }

    fn expert_form(&self, layer: &str, projection: &str) -> Experts {
        let holds = |name: String| self.shards.tensors.contains_key(&name);
        let fused = if projection == "down_proj" { "down_proj" } else { "gate_up_proj" };
        if holds(format!("{layer}.switch_mlp.{projection}.weight")) {
            Experts::Stacked
        } else if holds(format!("{layer}.experts.{fused}")) {
            Experts::Fused
        } else if holds(format!("{layer}.experts.0.{projection}.weight")) {
            Experts::Separate
        } else {
            Experts::Stacked
        }
    }

    /// `experts.gate_up_proj` holds the rows of `gate_proj` and then those of `up_proj`, per expert.
    fn fused(
        &mut self,
        layer: &str,
        projection: &str,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<(Array, MatrixFormat), CheckpointError> {
        let (stored, stacked, above) = match projection {
            "gate_proj" => ("gate_up_proj", 2, 0),
            "up_proj" => ("gate_up_proj", 2, rows),
            _ => ("down_proj", 1, 0),
        };
        let stored = format!("{layer}.experts.{stored}");
        // `up_proj` comes second and is the last to need the tensor.
        let tensor = match projection {
            "gate_proj" => self.shards.tensors.get(&stored).cloned(),
            _ => self.shards.tensors.remove(&stored),
        }
        .ok_or_else(|| self.missing(&stored))?;
        self.check_shape(&tensor, &[n_experts, stacked * rows, cols])?;
        let dtype = self.float(&tensor)?;
        let row = (cols * dtype.bytes()) as u64;
        let Span { file, offset } = span(&tensor);
        let first = Span { file, offset: offset + above as u64 * row };
        let array = Array::Strided { first, stride: (stacked * rows) as u64 * row };
        Ok((array, MatrixFormat::Float(dtype)))
    }

    /// One matrix stored as `stored`; `experts` are leading dimensions of its arrays.
    fn matrix(
        &mut self,
        name: &str,
        stored: &str,
        experts: &[usize],
        rows: usize,
        cols: usize,
    ) -> Result<StoredMatrix, CheckpointError> {
        let weight = self.take(&format!("{stored}.weight"))?;
        let shape = |last: usize| [experts, &[rows, last]].concat();
        if !self.shards.tensors.contains_key(&format!("{stored}.scales")) {
            if weight.entry.dtype.used() == Some(Dtype::U32) {
                return Err(self.missing(&format!("{stored}.scales")));
            }
            self.check_shape(&weight, &shape(cols))?;
            let format = MatrixFormat::Float(self.float(&weight)?);
            if self.quantization.names(name)
                && let Some((place, Override::Affine(affine))) = self.quantization.of(name)
            {
                let says = Override::Affine(affine);
                self.warnings.push(format!("{place} says {says}, but {name} is stored as floats"));
            }
            return Ok(StoredMatrix { format, weight: span(&weight), affine: None });
        }
        let scales = self.take(&format!("{stored}.scales"))?;
        if scales.entry.dtype.used().is_none() {
            return Err(CheckpointError::UnsupportedQuantization {
                scheme: format!("microscaling ({} scales)", scales.entry.dtype.name()),
                place: scales.entry.name,
            });
        }
        let biases = self.take(&format!("{stored}.biases"))?;
        if weight.entry.dtype.used() != Some(Dtype::U32) {
            return Err(self.wrong_dtype(&weight, "U32"));
        }
        let stored_affine = self.derive(&weight, &scales, cols)?;
        self.check_shape(&weight, &shape(cols / 32 * stored_affine.bits as usize))?;
        self.check_shape(&scales, &shape(cols / stored_affine.group_size))?;
        self.check_shape(&biases, &scales.entry.shape)?;
        let scale = self.float(&scales)?;
        if biases.entry.dtype != scales.entry.dtype {
            return Err(self.wrong_dtype(&biases, scales.entry.dtype.name()));
        }
        self.cross_check(name, &weight, stored_affine)?;
        let Affine { bits, group_size } = stored_affine;
        let format = MatrixFormat::Affine { bits, group_size, scale };
        let affine = Some((span(&scales), span(&biases)));
        Ok(StoredMatrix { format, weight: span(&weight), affine })
    }

    /// Bits and group size from the stored shapes.
    fn derive(
        &self,
        weight: &Located,
        scales: &Located,
        cols: usize,
    ) -> Result<Affine, CheckpointError> {
        let words = weight.entry.shape.last().copied().unwrap_or(0);
        let groups = scales.entry.shape.last().copied().unwrap_or(0);
        // `cols` is capped, so 32 bits per element cannot overflow; the widths compare exactly.
        let bits =
            BITS.into_iter().find(|&bits| words.checked_mul(32) == Some(cols * bits as usize));
        let group_size =
            GROUP_SIZES.into_iter().find(|&size| groups.checked_mul(size) == Some(cols));
        match (bits, group_size) {
            (Some(bits), Some(group_size)) => Ok(Affine { bits, group_size }),
            _ => Err(CheckpointError::Packing {
                tensor: weight.entry.name.clone(),
                file: self.shards.file_name(weight).to_owned(),
                cols,
                words,
                groups,
            }),
        }
    }

    fn cross_check(
        &mut self,
        name: &str,
        weight: &Located,
        stored: Affine,
    ) -> Result<(), CheckpointError> {
        match self.quantization.of(name) {
            Some((_, says)) if says == Override::Affine(stored) => Ok(()),
            Some((place, says)) => Err(CheckpointError::QuantizationMismatch {
                tensor: weight.entry.name.clone(),
                file: self.shards.file_name(weight).to_owned(),
                stored_bits: stored.bits,
                stored_group_size: stored.group_size,
                field: place.to_owned(),
                config: says.to_string(),
            }),
            None => {
                let warning = "config.json has no quantization block: bits and group sizes are \
                               taken from the tensors";
                if !self.warnings.iter().any(|known| known == warning) {
                    self.warnings.push(warning.to_owned());
                }
                Ok(())
            }
        }
    }

    fn vector_tensor(&mut self, name: &str) -> Result<Located, CheckpointError> {
        // Parameters of the DeltaNet layer itself carry no suffix.
        let bare = name.ends_with(".A_log") || name.ends_with(".dt_bias");
        self.take(&if bare { name.to_owned() } else { format!("{name}.weight") })
    }

    fn take(&mut self, stored: &str) -> Result<Located, CheckpointError> {
        self.shards.tensors.remove(stored).ok_or_else(|| self.missing(stored))
    }

    fn missing(&self, stored: &str) -> CheckpointError {
        let tensor = stored.to_owned();
        match self.shards.absent.get(stored) {
            Some(file) => CheckpointError::MissingShard {
                file: file.clone(),
                named_by: format!("{} for tensor {tensor}", crate::shards::INDEX),
            },
            None => CheckpointError::MissingTensor { tensor },
        }
    }

    fn check_shape(&self, tensor: &Located, expected: &[usize]) -> Result<(), CheckpointError> {
        if tensor.entry.shape == expected {
            return Ok(());
        }
        Err(wrong_shape(self.shards, tensor, &show_shape(expected)))
    }

    fn float(&self, tensor: &Located) -> Result<Dtype, CheckpointError> {
        match tensor.entry.dtype.used() {
            Some(dtype @ (Dtype::Bf16 | Dtype::F16 | Dtype::F32)) => Ok(dtype),
            _ => Err(self.wrong_dtype(tensor, "BF16, F16 or F32")),
        }
    }

    fn wrong_dtype(&self, tensor: &Located, expected: &'static str) -> CheckpointError {
        CheckpointError::TensorDtype {
            tensor: tensor.entry.name.clone(),
            file: self.shards.file_name(tensor).to_owned(),
            expected,
            found: tensor.entry.dtype.name(),
        }
    }
}

struct StoredMatrix {
    format: MatrixFormat,
    weight: Span,
    affine: Option<(Span, Span)>,
}

fn span(tensor: &Located) -> Span {
    Span { file: tensor.file, offset: tensor.entry.offset }
}

/// Stored bytes of one row: of the weight, and of the scales (or the biases).
pub(crate) fn row_bytes(format: MatrixFormat, cols: usize) -> (usize, usize) {
    match format {
        MatrixFormat::Affine { bits, group_size, scale } => {
            (cols / 8 * bits as usize, cols / group_size * scale.bytes())
        }
        MatrixFormat::Float(dtype) => (cols * dtype.bytes(), 0),
    }
}
