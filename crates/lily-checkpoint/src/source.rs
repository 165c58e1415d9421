//! Where the files of a checkpoint come from: a directory or memory.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::CheckpointError;
use crate::pack::{self, PackFile};

/// A flat set of named files.
#[derive(Debug)]
pub(crate) enum Source {
    Directory(PathBuf),
    Memory(Vec<(&'static str, &'static [u8])>),
    Pack(PackFile),
    Starts(Vec<FileStart>),
}

/// A file of which only the start is at hand, as before a download.
#[derive(Clone, Debug)]
pub struct FileStart {
    /// File name.
    pub name: String,
    /// The first bytes, or all of them.
    pub start: Vec<u8>,
    /// Bytes of the whole file.
    pub len: u64,
}

/// One open file.
#[derive(Debug)]
pub(crate) struct Blob {
    name: String,
    len: u64,
    data: Data,
}

#[derive(Debug)]
enum Data {
    File(File),
    /// From a byte of a larger file on.
    Part(Arc<File>, u64),
    Memory(&'static [u8]),
    /// Only the first bytes: those behind them cannot be read.
    Start(Vec<u8>),
}

/// What a path may name, in messages.
const CHECKPOINT: &str = "a directory or a .lily file";

/// The first 8 bytes of a file, or as many as it has.
fn start_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(8).read_to_end(&mut start)?;
    Ok(start)
}

/// Whether a name ends so, in whatever case.
fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// Whether `name` stays inside the directory.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(std::path::Component::Normal(part)) if part == name)
        && components.next().is_none()
        && !name.contains('\0')
}

impl Source {
    /// A directory, or a `.lily` file.
    pub(crate) fn at(path: &Path) -> Result<Self, CheckpointError> {
        let shown = || path.display().to_string();
        let facts = std::fs::metadata(path).map_err(|e| CheckpointError::io(shown(), e))?;
        if facts.is_dir() {
            return Ok(Source::Directory(path.to_owned()));
        }
        let other = |found, expected| {
            Err(CheckpointError::NotACheckpoint { path: shown(), found, expected })
        };
        if !facts.is_file() {
            return other("not a regular file", CHECKPOINT);
        }
        let start = start_of(path).map_err(|e| CheckpointError::io(shown(), e))?;
        if start.starts_with(b"GGUF") || has_extension(path, "gguf") {
            return Err(CheckpointError::Gguf { file: shown() });
        }
        if path.extension().is_some_and(|e| e == pack::EXTENSION) {
            return Ok(Source::Pack(PackFile::open(path)?));
        }
        if start == *pack::MAGIC {
            return other("a .lily file under another name", "a name that ends in .lily");
        }
        if has_extension(path, "safetensors") {
            return other("one safetensors file", "the directory that holds it");
        }
        other("a file of another kind", CHECKPOINT)
    }

    /// The whole of a `.lily` file as one blob.
    pub(crate) fn whole(pack: &PackFile) -> Blob {
        let data = Data::Part(Arc::clone(pack.file()), 0);
        Blob { name: pack.name().to_owned(), len: pack.mapping().bytes().len() as u64, data }
    }

    /// For messages.
    pub(crate) fn display(&self) -> String {
        match self {
            Source::Directory(path) => path.display().to_string(),
            Source::Memory(_) => "the embedded files".to_owned(),
            Source::Starts(_) => "the files to come".to_owned(),
            Source::Pack(pack) => pack.name().to_owned(),
        }
    }

    /// Names of all files, sorted.
    pub(crate) fn list(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = Vec::new();
        match self {
            Source::Memory(files) => names.extend(files.iter().map(|(name, _)| (*name).to_owned())),
            Source::Starts(files) => names.extend(files.iter().map(|file| file.name.clone())),
            Source::Pack(pack) => names.extend(pack.files().iter().map(|file| file.name.clone())),
            Source::Directory(path) => {
                let failed = |source| CheckpointError::io(path.display().to_string(), source);
                for entry in std::fs::read_dir(path).map_err(failed)? {
                    // A name that is not UTF-8 is none of ours.
                    if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                        names.push(name);
                    }
                }
            }
        }
        names.sort();
        Ok(names)
    }

    /// The first GGUF file by name, for models that come as nothing else.
    pub(crate) fn gguf(&self) -> Result<Option<String>, CheckpointError> {
        Ok(self.list()?.into_iter().find(|name| has_extension(Path::new(name), "gguf")))
    }

    /// Opens a regular file; `None` where it is missing.
    pub(crate) fn open(&self, name: &str) -> Result<Option<Blob>, CheckpointError> {
        let failed = |source| CheckpointError::io(name, source);
        match self {
            Source::Memory(files) => {
                Ok(files.iter().find(|(n, _)| *n == name).map(|(_, bytes)| Blob {
                    name: name.to_owned(),
                    len: bytes.len() as u64,
                    data: Data::Memory(bytes),
                }))
            }
            Source::Starts(files) => Ok(files.iter().find(|f| f.name == name).map(|file| Blob {
                name: name.to_owned(),
                len: file.len,
                data: Data::Start(file.start.clone()),
            })),
            Source::Pack(pack) => {
                let Some(entry) = pack.files().iter().find(|file| file.name == name) else {
                    return Ok(None);
                };
                let data = Data::Part(Arc::clone(pack.file()), entry.offset);
                Ok(Some(Blob { name: name.to_owned(), len: entry.bytes, data }))
            }
            Source::Directory(path) => {
                let path = path.join(name);
                // Asked before opening: opening a pipe would wait for its writer.
                match std::fs::metadata(&path) {
                    Ok(metadata) if metadata.is_file() => {}
                    Ok(_) => return Err(CheckpointError::NotAFile { file: name.to_owned() }),
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(failed(error)),
                }
                let file = File::open(&path).map_err(failed)?;
                let len = file.metadata().map_err(failed)?.len();
                Ok(Some(Blob { name: name.to_owned(), len, data: Data::File(file) }))
            }
        }
    }

    /// Reads a whole file; `None` where it is missing.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(blob) = self.open(name)? else { return Ok(None) };
        if blob.len > limit {
            let file = name.to_owned();
            return Err(CheckpointError::FileTooLarge { file, limit, found: blob.len });
        }
        let mut bytes = vec![0; blob.len as usize];
        blob.read_at(0, &mut bytes)?;
        if let Source::Pack(pack) = self
            && let Some(entry) = pack.files().iter().find(|file| file.name == name)
        {
            pack.verify(name, &bytes, entry.crc32).map_err(|error| pack.error(error))?;
        }
        Ok(Some(bytes))
    }
}

impl Blob {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` from byte `offset` on. Needs no alignment of either side.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let result = match &self.data {
            Data::File(file) => file.read_exact_at(out, offset),
            Data::Part(file, start) => file.read_exact_at(out, start.saturating_add(offset)),
            Data::Memory(bytes) => copy_part(bytes, offset, out),
            Data::Start(bytes) => copy_part(bytes, offset, out),
        };
        result.map_err(|source| CheckpointError::io(&*self.name, source))
    }
}

fn copy_part(bytes: &[u8], offset: u64, out: &mut [u8]) -> std::io::Result<()> {
    usize::try_from(offset)
        .ok()
        .and_then(|start| bytes.get(start..)?.get(..out.len()))
        .map(|found| out.copy_from_slice(found))
        .ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_stay_inside() {
        assert!(is_plain_name("model-00001-of-00004.safetensors"));
        for name in ["", ".", "..", "/etc/passwd", "a/b", "../a", "a/", "./a", "a\0b"] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_read_beyond_the_end_is_an_error() {
        let source = Source::Memory(vec![("a", b"abc")]);
        let blob = source.open("a").unwrap().unwrap();
        let mut out = [0; 2];
        blob.read_at(1, &mut out).unwrap();
        assert_eq!(&out, b"bc");
        assert!(blob.read_at(2, &mut out).is_err());
        assert!(blob.read_at(u64::MAX, &mut out).is_err());
        assert!(source.open("b").unwrap().is_none());
    }

    #[test]
    fn a_folder_in_place_of_a_file_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("config.json")).unwrap();
        let source = Source::at(dir.path()).unwrap();
        let error = source.read("config.json", 10).unwrap_err();
        assert!(matches!(error, CheckpointError::NotAFile { file } if file == "config.json"));
    }

    #[test]
    fn an_oversized_file_is_refused_before_it_is_read() {
        let source = Source::Memory(vec![("config.json", b"{      }")]);
        let error = source.read("config.json", 7).unwrap_err();
        assert!(matches!(error, CheckpointError::FileTooLarge { limit: 7, found: 8, .. }));
    }
}
