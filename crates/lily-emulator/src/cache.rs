//! Compiled kernels, on disk and loaded.
//!
//! A kernel's key is a hash of everything that decides about it: its translated source, the
//! run-time and the compiler's options. A small file of that name says which object holds it, so
//! that kernels are compiled in batches and found one by one, by any process.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::abi::{EntryFn, MachineNewFn, RunFn};
use crate::toolchain::{CompileError, Toolchain};

/// A loaded shared object. Never unloaded: entries are plain function pointers.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) path: PathBuf,
    pub(crate) machine_new: MachineNewFn,
    pub(crate) run: RunFn,
    library: libloading::Library,
}

/// One kernel, ready to run.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its host name.
    pub name: String,
    pub(crate) object: Arc<Object>,
    pub(crate) function: EntryFn,
    /// Neighbouring threadgroups that run together.
    pub(crate) cluster: u32,
}

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub struct KernelCache {
    toolchain: Toolchain,
    folder: PathBuf,
}

/// Objects loaded by this process, by path.
static LOADED: OnceLock<Mutex<HashMap<PathBuf, Arc<Object>>>> = OnceLock::new();
/// Distinguishes this process's temporary files.
static TEMPORARY: AtomicU64 = AtomicU64::new(0);

impl KernelCache {
    /// Objects in that folder, made when first needed.
    pub fn new(toolchain: Toolchain, folder: PathBuf) -> Self {
        KernelCache { toolchain, folder }
    }

    /// Next to the running program's own objects: `target/debug/emulator` for a test.
    pub fn default_folder() -> PathBuf {
        let program = std::env::current_exe().unwrap_or_default();
        let folder = program.parent().unwrap_or(Path::new("."));
        let folder =
            if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
        folder.join("emulator")
    }

    /// The key of a kernel that this translated source defines.
    pub fn key(&self, source: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.toolchain.identity(), source).hash(&mut hasher);
        hasher.finish()
    }

    /// A kernel compiled earlier.
    pub fn find(&self, key: u64, name: &str) -> Option<Entry> {
        let object = std::fs::read_to_string(self.index(key)).ok()?;
        self.load(&self.folder.join(object), name).ok()
    }

    /// Compiles one source that defines the kernels of all these keys.
    ///
    /// # Errors
    /// Compiler or files fail.
    pub fn compile(&self, source: &str, keys: &[u64]) -> Result<(), CompileError> {
        let io = |source| CompileError::Io { folder: self.folder.clone(), source };
        std::fs::create_dir_all(&self.folder).map_err(io)?;
        let name = format!("{:016x}", self.key(source));
        // Other processes may be at the same work: whoever ends first wins, both are right.
        let mine = format!("{}-{}", std::process::id(), TEMPORARY.fetch_add(1, Ordering::Relaxed));
        let cpp = self.folder.join(format!("{name}.{mine}.cpp"));
        let so = self.folder.join(format!("{name}.{mine}.so"));
        std::fs::write(&cpp, source).map_err(io)?;
        let object = format!("{name}.so");
        self.toolchain.compile(&cpp, &so)?;
        std::fs::rename(&cpp, self.folder.join(format!("{name}.cpp"))).map_err(io)?;
        std::fs::rename(&so, self.folder.join(&object)).map_err(io)?;
        for &key in keys {
            let index = self.index(key);
            let written = index.with_extension(&mine);
            std::fs::write(&written, &object).map_err(io)?;
            std::fs::rename(&written, &index).map_err(io)?;
        }
        Ok(())
    }

    /// Compiles a source and takes one kernel from it.
    ///
    /// # Errors
    /// Compiler or files fail, or the source has no such kernel.
    pub fn entry(&self, source: &str, name: &str) -> Result<Entry, CompileError> {
        let key = self.key(source);
        if let Some(entry) = self.find(key, name) {
            return Ok(entry);
        }
        self.compile(source, &[key])?;
        self.load(&self.folder.join(format!("{key:016x}.so")), name)
    }

    fn index(&self, key: u64) -> PathBuf {
        self.folder.join(format!("{key:016x}.index"))
    }

    fn load(&self, path: &Path, name: &str) -> Result<Entry, CompileError> {
        let error = |source| CompileError::Load { object: path.to_owned(), source };
        let loaded = LOADED.get_or_init(Mutex::default);
        let mut loaded = loaded.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let object = match loaded.get(path) {
            Some(object) => Arc::clone(object),
            None => {
                let object = Arc::new(Object::open(path).map_err(error)?);
                loaded.insert(path.to_owned(), Arc::clone(&object));
                object
            }
        };
        let symbol = format!("lily_entry_{name}");
        // SAFETY: the run-time's entries have this type, and the object is never unloaded.
        let function =
            *unsafe { object.library.get::<EntryFn>(symbol.as_bytes()) }.map_err(error)?;
        let symbol = format!("lily_cluster_{name}");
        // SAFETY: where there is such a symbol, it is a number of this type.
        let cluster = unsafe { object.library.get::<*const u32>(symbol.as_bytes()) };
        // SAFETY: as above; the object is never unloaded.
        let cluster = cluster.map_or(1, |cluster| unsafe { **cluster });
        Ok(Entry { name: name.to_owned(), object, function, cluster })
    }
}

impl Object {
    fn open(path: &Path) -> Result<Object, libloading::Error> {
        // SAFETY: the object was compiled from our own sources and has no initialisers.
        let library = unsafe { libloading::Library::new(path) }?;
        // SAFETY: the run-time defines these functions with exactly these types, and the library is
        // kept beside them.
        let (machine_new, run) = unsafe {
            (
                *library.get::<MachineNewFn>(b"lily_machine_new")?,
                *library.get::<RunFn>(b"lily_run")?,
            )
        };
        Ok(Object { path: path.to_owned(), machine_new, run, library })
    }
}
