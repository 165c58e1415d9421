//! Opening a `.lily` file.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::{
    ALIGN, FileEntry, HEADER, Header, MAGIC, MAX_HEADER_BYTES, PREFIX_BYTES, PackError,
    StoredFormat, VERSION, WeightEntry,
};
use crate::config::ModelConfig;
use crate::error::CheckpointError;
use crate::expected::{Expected, ExpectedKind, HEAD, expected_weights};
use crate::layout::{Layout, Location, Span};
use crate::manifest::{Dtype, Manifest, MatrixFormat, MatrixShape, WeightInfo, WeightShape};
use crate::map::Mapping;
use crate::packed::PackedMatrix;
use crate::quantization::{BITS, GROUP_SIZES};

/// An open `.lily` file whose header was checked.
#[derive(Debug)]
pub(crate) struct PackFile {
    name: String,
    file: Arc<File>,
    mapping: Arc<Mapping>,
    header: Header,
    header_end: u64,
}

impl PackFile {
    pub(crate) fn open(path: &Path) -> Result<PackFile, CheckpointError> {
        let name = path.display().to_string();
        let failed = |source| CheckpointError::io(name.clone(), source);
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let (header, header_end) =
            read_header(&file, len).map_err(|error| error.into_checkpoint(&name))?;
        let mapping = Arc::new(Mapping::of(&file).map_err(failed)?);
        // Another program may have changed it since its length was asked for.
        check_places(&header, header_end, mapping.bytes().len() as u64)
            .map_err(|source| pack_error(&name, source))?;
        Ok(PackFile { name, file: Arc::new(file), mapping, header, header_end })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
    pub(crate) fn files(&self) -> &[FileEntry] {
        &self.header.files
    }
    pub(crate) fn weight(&self, name: &str) -> Option<&WeightEntry> {
        self.header.weights.iter().find(|weight| weight.name == name)
    }
    pub(crate) fn error(&self, source: PackError) -> CheckpointError {
        pack_error(&self.name, source)
    }

    /// Compares a side file's or weight's bytes with its checksum.
    pub(crate) fn verify(&self, what: &str, bytes: &[u8], crc32: u32) -> Result<(), PackError> {
        match crc32fast::hash(bytes) {
            found if found == crc32 => Ok(()),
            found => Err(PackError::Checksum { what: what.to_owned(), expected: crc32, found }),
        }
    }

    /// Compares every side file and weight with its checksum, and what lies between them with zero.
    /// The header was compared when the file was opened.
    pub(crate) fn verify_all(
        &self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), CheckpointError> {
        let bytes = self.mapping.bytes();
        let total = bytes.len() as u64;
        let (mut after, mut end) = (HEADER, self.header_end);
        for Place { name, offset, bytes: size, crc32 } in places(&self.header) {
            padding(bytes, after, end, offset).map_err(|e| self.error(e))?;
            (after, end) = (name, offset + size);
            let entry = &bytes[offset as usize..end as usize];
            self.verify(name, entry, crc32).map_err(|e| self.error(e))?;
            progress(end, total);
        }
        padding(bytes, after, end, total).map_err(|e| self.error(e))?;
        progress(total, total);
        Ok(())
    }

    /// Matches the entries with the weights that the configuration calls for.
    pub(crate) fn layout(&self, config: &ModelConfig) -> Result<Layout, CheckpointError> {
        let mut left: HashMap<&str, &WeightEntry> =
            self.header.weights.iter().map(|weight| (weight.name.as_str(), weight)).collect();
        let tied = !left.contains_key(HEAD);
        if tied && !config.tie_word_embeddings {
            return Err(CheckpointError::MissingHead);
        }
        let (mut weights, mut locations) = (Vec::new(), Vec::new());
        for expected in expected_weights(config) {
            if expected.name == HEAD && tied {
                continue;
            }
            let Some(entry) = left.remove(&*expected.name) else {
                return Err(CheckpointError::MissingTensor { tensor: expected.name });
            };
            let (shape, location) = place(&expected, entry).map_err(|e| self.error(e))?;
            weights.push(WeightInfo { name: expected.name, shape });
            locations.push(location);
        }
        if let Some(tensor) = left.keys().min() {
            let tensor = (*tensor).to_owned();
            return Err(CheckpointError::UnexpectedTensor { tensor, file: self.name.clone() });
        }
        Ok(Layout { manifest: Manifest::new(weights), locations, tied, warnings: Vec::new() })
    }
}

fn pack_error(file: &str, source: PackError) -> CheckpointError {
    CheckpointError::Pack { file: file.to_owned(), source }
}

/// A failed read, or a broken rule.
enum Failure {
    Io(std::io::Error),
    Pack(PackError),
}

impl Failure {
    fn into_checkpoint(self, file: &str) -> CheckpointError {
        match self {
            Failure::Io(source) => CheckpointError::io(file, source),
            Failure::Pack(source) => pack_error(file, source),
        }
    }
}

/// The header, and the byte behind it.
fn read_header(file: &File, len: u64) -> Result<(Header, u64), Failure> {
    let truncated = |end| Failure::Pack(PackError::Truncated { what: HEADER.to_owned(), end, len });
    if len == 0 {
        return Err(Failure::Pack(PackError::Empty));
    }
    let mut prefix = [0; PREFIX_BYTES as usize];
    let read = prefix.len().min(usize::try_from(len).unwrap_or(usize::MAX));
    file.read_exact_at(&mut prefix[..read], 0).map_err(Failure::Io)?;
    let named = read.min(MAGIC.len());
    if prefix[..named] != MAGIC[..named] {
        return Err(Failure::Pack(PackError::Magic));
    }
    if len < PREFIX_BYTES {
        return Err(truncated(PREFIX_BYTES));
    }
    let word = |at: usize| u32::from_le_bytes(prefix[at..at + 4].try_into().expect("4 bytes"));
    let (version, crc32) = (word(8), word(12));
    if version != VERSION {
        return Err(Failure::Pack(PackError::Version { found: version }));
    }
    let bytes = u64::from_le_bytes(prefix[16..].try_into().expect("8 bytes"));
    let end = bytes.saturating_add(PREFIX_BYTES);
    if end > len {
        return Err(truncated(end));
    }
    if bytes > MAX_HEADER_BYTES {
        let reason = format!("{bytes} bytes, more than the limit of {MAX_HEADER_BYTES}");
        return Err(Failure::Pack(PackError::Header { reason }));
    }
    let mut json = vec![0; bytes as usize];
    file.read_exact_at(&mut json, PREFIX_BYTES).map_err(Failure::Io)?;
    let found = crc32fast::hash(&json);
    if found != crc32 {
        let what = HEADER.to_owned();
        return Err(Failure::Pack(PackError::Checksum { what, expected: crc32, found }));
    }
    let header = serde_json::from_slice(&json)
        .map_err(|error| Failure::Pack(PackError::Header { reason: error.to_string() }))?;
    Ok((header, end))
}

/// Where an entry lies, and what its bytes are.
#[derive(Clone, Copy)]
struct Place<'a> {
    name: &'a str,
    offset: u64,
    bytes: u64,
    crc32: u32,
}

/// All entries in the order of the file.
fn places(header: &Header) -> Vec<Place<'_>> {
    let files = header.files.iter().map(|f| (&f.name, f.offset, f.bytes, f.crc32));
    let weights = header.weights.iter().map(|w| (&w.name, w.offset, w.bytes, w.crc32));
    let mut places: Vec<_> = files
        .chain(weights)
        .map(|(name, offset, bytes, crc32)| Place { name, offset, bytes, crc32 })
        .collect();
    places.sort_by_key(|place| place.offset);
    places
}

/// Bytes `start..end`, which belong to no entry, are zero.
fn padding(file: &[u8], after: &str, start: u64, end: u64) -> Result<(), PackError> {
    let bytes = &file[start as usize..end as usize];
    match bytes.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(i) => {
            let (after, at) = (after.to_owned(), start + i as u64);
            Err(PackError::Padding { after, at, found: bytes[i] })
        }
    }
}

/// Every entry lies on a page, inside the file, apart from the others, under a name of its own; the
/// file ends with the page of the last one.
fn check_places(header: &Header, header_end: u64, len: u64) -> Result<(), PackError> {
    let (mut last, mut free) = (HEADER, header_end);
    let mut names = std::collections::HashSet::new();
    for Place { name, offset, bytes, .. } in places(header) {
        let entry = |what, expected: String, found: String| PackError::Entry {
            entry: name.to_owned(),
            what,
            expected,
            found,
        };
        if !names.insert(name) {
            return Err(entry("name", "distinct names".to_owned(), "twice".to_owned()));
        }
        if !offset.is_multiple_of(ALIGN) {
            return Err(entry("offset", format!("a multiple of {ALIGN}"), offset.to_string()));
        }
        if offset < free {
            return Err(entry("offset", format!("at least {free}"), offset.to_string()));
        }
        free = offset.saturating_add(bytes);
        if free > len {
            return Err(PackError::Truncated { what: name.to_owned(), end: free, len });
        }
        last = name;
    }
    // No overflow: `free` is at most the length of a file.
    let end = free.next_multiple_of(ALIGN);
    match len.cmp(&end) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(PackError::TrailingBytes { end, len }),
        Ordering::Less => {
            Err(PackError::Truncated { what: format!("the padding behind {last}"), end, len })
        }
    }
}

/// Shape and place of one weight; its size must be what its shape and format make it.
fn place(expected: &Expected, entry: &WeightEntry) -> Result<(WeightShape, Location), PackError> {
    let fault = |what, wanted: String, found: String| PackError::Entry {
        entry: entry.name.clone(),
        what,
        expected: wanted,
        found,
    };
    let span = Span { file: 0, offset: entry.offset };
    let dtype = Dtype::F32;
    let (shape, location, bytes) = match (expected.kind, entry.format.matrix()) {
        (ExpectedKind::Vector { len, .. }, None) => {
            let location = Location::Vector { span, plus_one: false };
            (WeightShape::Vector { len, dtype }, location, Some(4 * len as u64))
        }
        (ExpectedKind::Conv { channels, width }, None) => {
            let bytes = 4 * (channels * width) as u64;
            (WeightShape::Conv { channels, width, dtype }, Location::Conv { span }, Some(bytes))
        }
        (ExpectedKind::Matrix { n_experts, rows, cols }, Some(format)) => {
            check_format(cols, format)
                .map_err(|(what, wanted, found)| fault(what, wanted, found))?;
            let shape = MatrixShape { n_experts: n_experts.unwrap_or(1), rows, cols, format };
            let packed = PackedMatrix::of(&shape);
            let location = Location::Packed { span };
            (WeightShape::Matrix(shape), location, packed.map(|packed| packed.bytes))
        }
        (kind, _) => {
            let wanted = match kind {
                ExpectedKind::Matrix { .. } => "a matrix",
                _ => "plain values",
            };
            let found = match entry.format {
                StoredFormat::Values => "plain values",
                _ => "a matrix",
            };
            return Err(fault("format", wanted.to_owned(), found.to_owned()));
        }
    };
    match bytes {
        Some(bytes) if bytes == entry.bytes => Ok((shape, location)),
        Some(bytes) => Err(fault("bytes", bytes.to_string(), entry.bytes.to_string())),
        None => Err(fault("bytes", "a size that fits".to_owned(), "an overflow".to_owned())),
    }
}

fn check_format(cols: usize, format: MatrixFormat) -> Result<(), (&'static str, String, String)> {
    let MatrixFormat::Affine { bits, group_size, .. } = format else { return Ok(()) };
    if !BITS.contains(&bits) {
        return Err(("bits", format!("one of {BITS:?}"), bits.to_string()));
    }
    if !GROUP_SIZES.contains(&group_size) || !cols.is_multiple_of(group_size) {
        let wanted = format!("one of {GROUP_SIZES:?} that divides {cols}");
        return Err(("group_size", wanted, group_size.to_string()));
    }
    Ok(())
}
