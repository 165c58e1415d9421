//! From kernels to compiled entries: translate, look up, compile what is missing in batches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_kernels::launch::{Kernel, Module};
use lily_kernels::{sources, translate};

use crate::cache::{Entry, KernelCache};
use crate::error::EmulatorError;

/// Kernels per object: enough to share the reading of a module's source, few enough to spread over
/// processors.
const BATCH: usize = 12;

/// The host C++ of some kernels of a module, run-time included.
///
/// # Errors
/// Sources cannot be put together or not be translated.
pub fn host_source(module: Module, kernels: &[&Kernel]) -> Result<String, EmulatorError> {
    host_source_of(&sources::library(module, kernels)?)
}

/// The host C++ of a library of Metal kernels, run-time included.
///
/// # Errors
/// The library cannot be translated.
pub fn host_source_of(library: &str) -> Result<String, EmulatorError> {
    let runtime = sources::flatten("runtime/host.hpp")?;
    Ok(format!("{runtime}\n{}", translate::host(library)?.code))
}

/// A replacement in a module's source before it is translated: how tests plant faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// What the source says.
    pub from: String,
    /// What stands there instead.
    pub to: String,
}

/// Compiled kernels by what they are.
#[derive(Debug)]
pub(crate) struct Kernels {
    cache: KernelCache,
    edits: Vec<Edit>,
    entries: HashMap<Kernel, Entry>,
}

impl Kernels {
    pub(crate) fn new(cache: KernelCache, edits: Vec<Edit>) -> Self {
        Kernels { cache, edits, entries: HashMap::new() }
    }

    fn source(&self, module: Module, kernels: &[&Kernel]) -> Result<String, EmulatorError> {
        let mut library = sources::library(module, kernels)?;
        for Edit { from, to } in &self.edits {
            library = library.replace(from, to);
        }
        host_source_of(&library)
    }

    /// The entry of a kernel, if it was required before and compiles.
    pub(crate) fn entry(&self, kernel: &Kernel) -> Option<Entry> {
        self.entries.get(kernel).cloned()
    }

    /// Finds or compiles these kernels. What fails is returned; everything else is there afterwards.
    pub(crate) fn require<'a>(
        &mut self,
        kernels: impl Iterator<Item = &'a Kernel>,
    ) -> Vec<EmulatorError> {
        let mut errors = Vec::new();
        let mut missing: BTreeMap<Module, Vec<(u64, &Kernel)>> = BTreeMap::new();
        for kernel in kernels.collect::<BTreeSet<_>>() {
            if self.entries.contains_key(kernel) {
                continue;
            }
            let key = match self.source(kernel.module, &[kernel]) {
                Ok(source) => self.cache.key(&source),
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            match self.cache.find(key, &kernel.host_name()) {
                Some(entry) => drop(self.entries.insert(kernel.clone(), entry)),
                None => missing.entry(kernel.module).or_default().push((key, kernel)),
            }
        }
        let batches: Vec<_> = missing.values().flat_map(|kernels| kernels.chunks(BATCH)).collect();
        errors.extend(self.compile(&batches));
        for &(key, kernel) in batches.into_iter().flatten() {
            if let Some(entry) = self.cache.find(key, &kernel.host_name()) {
                self.entries.insert(kernel.clone(), entry);
            }
        }
        errors
    }

    /// Compiles batches side by side.
    fn compile(&self, batches: &[&[(u64, &Kernel)]]) -> Vec<EmulatorError> {
        let workers =
            std::thread::available_parallelism().map_or(1, usize::from).min(batches.len());
        let next = AtomicUsize::new(0);
        let errors = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.compile_batch(batch) {
                            errors.lock().expect("no worker panics").push(error);
                        }
                    }
                });
            }
        });
        errors.into_inner().expect("no worker panics")
    }

    fn compile_batch(&self, batch: &[(u64, &Kernel)]) -> Result<(), EmulatorError> {
        let kernels: Vec<&Kernel> = batch.iter().map(|&(_, kernel)| kernel).collect();
        let source = self.source(kernels[0].module, &kernels)?;
        let keys: Vec<u64> = batch.iter().map(|&(key, _)| key).collect();
        Ok(self.cache.compile(&source, &keys)?)
    }
}
