//! Everything that can be wrong with a checkpoint.

/// One broken rule, with the names involved, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file could not be read or written.
    #[error("cannot access {path}")]
    Io {
        /// File name.
        path: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A `.lily` file breaks a rule of its format.
    #[error("cannot use {file}")]
    Pack {
        /// File name.
        file: String,
        /// The rule.
        #[source]
        source: crate::pack::PackError,
    },
    /// The path is neither a directory nor a `.lily` file.
    #[error("{path} is {found}, expected {expected}")]
    NotACheckpoint {
        /// Path given.
        path: String,
        /// What to give instead.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// The model is a GGUF file.
    #[error(
        "{file} is GGUF, which is not supported, expected a directory of safetensors (MLX affine or \
         Hugging Face) or a .lily file"
    )]
    Gguf {
        /// File name or path.
        file: String,
    },
    /// A file is not an ordinary file.
    #[error("{file} is not a regular file")]
    NotAFile {
        /// File name.
        file: String,
    },
    /// A required file is missing.
    #[error("{file} is missing")]
    MissingFile {
        /// File name.
        file: String,
    },
    /// A text file is larger than any genuine one.
    #[error("{file} has {found} bytes, more than the limit of {limit}")]
    FileTooLarge {
        /// File name.
        file: String,
        /// Most bytes accepted.
        limit: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// A file is not well-formed JSON, repeats a key, or nests too deeply.
    #[error("{file} is not valid JSON: {reason}")]
    Json {
        /// File name.
        file: String,
        /// What the parser says.
        reason: String,
    },

    /// A configuration lacks a field that has no default.
    #[error("{file} lacks {field}")]
    MissingField {
        /// File name.
        file: String,
        /// Path of the field.
        field: String,
    },
    /// A field has the wrong JSON type.
    #[error("{field} in {file} is {found}, expected {expected}")]
    WrongType {
        /// File name.
        file: String,
        /// Path of the field.
        field: String,
        /// Type expected.
        expected: &'static str,
        /// Value found, shortened.
        found: String,
    },
    /// A field has a value outside its range.
    #[error("{field} in {file} is {found}, expected {expected}")]
    OutOfRange {
        /// File name.
        file: String,
        /// Path of the field.
        field: String,
        /// Values accepted.
        expected: String,
        /// Value found.
        found: String,
    },
    /// A field asks for something this engine does not do.
    #[error("{field} {found} in {file} is not supported, expected {expected}")]
    UnsupportedValue {
        /// File name.
        file: String,
        /// Path of the field.
        field: String,
        /// Values supported.
        expected: &'static str,
        /// Value found.
        found: String,
    },
    /// Two fields that say the same thing differ.
    #[error("{first} is {first_value} but {second} is {second_value} in {file}")]
    Contradiction {
        /// File name.
        file: String,
        /// Path of one field.
        first: String,
        /// Its value.
        first_value: String,
        /// Path of the other field.
        second: String,
        /// Its value.
        second_value: String,
    },
    /// The model belongs to another family.
    #[error("model_type {found} is not supported, expected qwen3_5 or qwen3_5_moe")]
    UnsupportedModel {
        /// `model_type` found.
        found: String,
    },
    /// The weights are quantised in a way other than MLX affine.
    #[error(
        "{scheme} quantisation ({place}) is not supported, expected MLX affine or no quantisation"
    )]
    UnsupportedQuantization {
        /// Name of the scheme, as the file spells it.
        scheme: String,
        /// Field or tensor that names it.
        place: String,
    },

    /// No weights were found.
    #[error("no model*.safetensors in {path}")]
    NoWeights {
        /// Directory.
        path: String,
    },
    /// A shard is missing.
    #[error("shard {file} is missing; {named_by} names it")]
    MissingShard {
        /// File name of the shard.
        file: String,
        /// Index file, sibling shard or tensor that says it exists.
        named_by: String,
    },
    /// The index names a shard outside the directory.
    #[error("shard name {shard:?} in {file} is not a plain file name")]
    ShardName {
        /// Index file.
        file: String,
        /// Name found.
        shard: String,
    },
    /// The index places a tensor in a shard that lacks it.
    #[error("{index} places tensor {tensor} in {file}, which lacks it")]
    IndexedTensorMissing {
        /// Index file.
        index: String,
        /// Tensor name in the index.
        tensor: String,
        /// Shard.
        file: String,
    },

    /// A safetensors file ends before its header does.
    #[error("{file} is truncated: {expected} bytes expected, {found} found")]
    Truncated {
        /// File name.
        file: String,
        /// Bytes that the header asks for.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// A safetensors file is longer than its header says.
    #[error("{file} has {found} bytes, {expected} expected")]
    TrailingBytes {
        /// File name.
        file: String,
        /// Bytes that the header accounts for.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// The header of a safetensors file is too long.
    #[error("header of {file} has {found} bytes, more than the limit of {limit}")]
    HeaderTooLong {
        /// File name.
        file: String,
        /// Most bytes accepted.
        limit: u64,
        /// Length found.
        found: u64,
    },
    /// The header of a safetensors file is not what the format asks for.
    #[error("header of {file} is malformed: {reason}")]
    Header {
        /// File name.
        file: String,
        /// What the parser says.
        reason: String,
    },
    /// A header names a tensor twice.
    #[error("header of {file} names tensor {tensor} twice")]
    HeaderDuplicate {
        /// File name.
        file: String,
        /// Tensor name.
        tensor: String,
    },
    /// A tensor has an element type that the format does not know.
    #[error("tensor {tensor} in {file} has unknown dtype {found}")]
    UnknownDtype {
        /// File name.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Type found.
        found: String,
    },
    /// A tensor has too many dimensions or a size that overflows.
    #[error("tensor {tensor} in {file} has impossible shape {found}")]
    ImpossibleShape {
        /// File name.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Shape found, shortened.
        found: String,
    },
    /// A tensor's byte range runs backwards.
    #[error("tensor {tensor} in {file} has byte range {start}..{end}")]
    ByteRange {
        /// File name.
        file: String,
        /// Tensor name.
        tensor: String,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A tensor's byte range disagrees with its dtype and shape.
    #[error(
        "tensor {tensor} in {file} occupies {found} bytes, {expected} expected for {dtype} {shape}"
    )]
    ByteCount {
        /// File name.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Element type.
        dtype: &'static str,
        /// Shape.
        shape: String,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} in {file} overlap")]
    Overlap {
        /// File name.
        file: String,
        /// One tensor.
        first: String,
        /// The other.
        second: String,
    },
    /// Bytes between tensors belong to none.
    #[error("bytes {start}..{end} before tensor {tensor} in {file} belong to no tensor")]
    Hole {
        /// File name.
        file: String,
        /// Tensor behind the hole.
        tensor: String,
        /// First byte of the hole in the data section.
        start: u64,
        /// One past its last byte.
        end: u64,
    },

    /// A tensor that the model needs is missing.
    #[error("tensor {tensor} is missing")]
    MissingTensor {
        /// Canonical name with its suffix.
        tensor: String,
    },
    /// There is no output head and the configuration does not tie it to the embedding.
    #[error("tensor lm_head.weight is missing and tie_word_embeddings is not true")]
    MissingHead,
    /// A tensor that no part of the model uses.
    #[error("unexpected tensor {tensor} in {file}")]
    UnexpectedTensor {
        /// Name in the file.
        tensor: String,
        /// File name.
        file: String,
    },
    /// Two tensors stand for the same weight.
    #[error("tensors {first} in {first_file} and {second} in {second_file} are the same weight")]
    DuplicateTensor {
        /// Name of one.
        first: String,
        /// Its file.
        first_file: String,
        /// Name of the other.
        second: String,
        /// Its file.
        second_file: String,
    },
    /// A tensor's shape contradicts the configuration.
    #[error("tensor {tensor} in {file} has shape {found}, expected {expected}")]
    TensorShape {
        /// Name in the file.
        tensor: String,
        /// File name.
        file: String,
        /// Shape or shapes expected.
        expected: String,
        /// Shape found.
        found: String,
    },
    /// A tensor's element type is not one that its role allows.
    #[error("tensor {tensor} in {file} has dtype {found}, expected {expected}")]
    TensorDtype {
        /// Name in the file.
        tensor: String,
        /// File name.
        file: String,
        /// Types accepted.
        expected: &'static str,
        /// Type found.
        found: &'static str,
    },
    /// Stored shapes of a quantised matrix fit no supported bit width and group size.
    #[error(
        "tensor {tensor} in {file}: {words} words and {groups} groups per row of {cols} inputs \
         fit no supported bits and group size"
    )]
    Packing {
        /// Name of the packed weight in the file.
        tensor: String,
        /// File name.
        file: String,
        /// Inputs per row, from the configuration.
        cols: usize,
        /// `u32` words per row found.
        words: usize,
        /// Scales per row found.
        groups: usize,
    },
    /// The configuration and the stored shapes name different bits or group sizes.
    #[error(
        "tensor {tensor} in {file} is stored with {stored_bits} bits and group size {stored_group_size}, \
         but {field} in config.json says {config}"
    )]
    QuantizationMismatch {
        /// Name in the file.
        tensor: String,
        /// File name.
        file: String,
        /// Bits that the shapes give.
        stored_bits: u32,
        /// Group size that the shapes give.
        stored_group_size: usize,
        /// Field of the configuration.
        field: String,
        /// What it says.
        config: String,
    },
    /// Experts of one projection are stored in different formats.
    #[error("tensor {tensor} is stored as {found}, expert 0 as {expected}")]
    MixedExperts {
        /// Canonical prefix of the tensor.
        tensor: String,
        /// Format of expert 0.
        expected: String,
        /// Format found.
        found: String,
    },
    /// Convolutions of both layouts in one checkpoint.
    #[error("tensors {first} and {second} have different layouts (HF and MLX mixed)")]
    MixedLayouts {
        /// A convolution of one layout.
        first: String,
        /// A convolution of the other.
        second: String,
    },
    /// Nothing tells whether norms are stored with or without the `+ 1`.
    #[error("no convolution and no quantised matrix tells whether norms are in HF or MLX form")]
    UnknownLayout,

    /// The target of a new checkpoint already holds something.
    #[error("{path} exists and is not an empty directory")]
    NotEmpty {
        /// Path given.
        path: String,
    },
    /// A new checkpoint cannot have this shape.
    #[error("{field} is {found}, expected {expected}")]
    Specification {
        /// Field of the specification.
        field: &'static str,
        /// Values accepted.
        expected: String,
        /// Value found.
        found: usize,
    },
}

impl CheckpointError {
    pub(crate) fn io(path: impl Into<String>, source: std::io::Error) -> Self {
        CheckpointError::Io { path: path.into(), source }
    }
}
