//! Kernels of a model: compiled, loaded, and known by what the driver says about them.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys::CUfunction_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaFunction, sys};
use cudarc::nvrtc::Ptx;
use lily_kernels::launch::{Kernel, Program};
use lily_kernels::lower::Tuning;
use lily_kernels::{sources, translate};

use crate::compile::{Compiler, Resources, Unit};
use crate::error::{CudaError, driver};
use crate::options::KernelCache;

/// A loaded kernel.
#[derive(Debug)]
pub(crate) struct Function {
    function: CudaFunction,
    /// Whether it waits for earlier steps by itself, so that it may start before they have ended.
    pub(crate) waits: bool,
    /// Sizes of its parameters in bytes.
    pub(crate) parameters: Vec<usize>,
    pub(crate) facts: KernelFacts,
}

/// What the compiler made of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Host name of the instantiation.
    pub name: String,
    /// What the assembler reports.
    pub resources: Resources,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
    /// Most threads per block.
    pub threads: u32,
    /// Whether it may start before the steps before it have ended.
    pub waits: bool,
}

impl Function {
    pub(crate) fn handle(&self) -> sys::CUfunction {
        self.function.cu_function()
    }

    /// Asks for so many percent of a multiprocessor's memory as shared memory.
    fn prefer_shared(&self, percent: u8) -> Result<(), CudaError> {
        let carveout = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let set = self.function.set_attribute(carveout, percent.into());
        set.map_err(driver("cuFuncSetAttribute"))
    }

    /// Admits launches with so many bytes of shared memory beyond what the kernel declares.
    pub(crate) fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let set = self.function.set_attribute(most, bytes.cast_signed());
        set.map_err(driver("cuFuncSetAttribute"))
    }

    fn new(
        function: CudaFunction,
        name: String,
        waits: bool,
        resources: Resources,
    ) -> Result<Self, CudaError> {
        let get = |attribute| {
            let value = function.get_attribute(attribute).map_err(driver("cuFuncGetAttribute"));
            value.map(|value| value.max(0) as u32)
        };
        let facts = KernelFacts {
            name,
            resources,
            shared_bytes: get(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            threads: get(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            waits,
        };
        let parameters = parameters(function.cu_function())?;
        Ok(Function { function, waits, parameters, facts })
    }
}

/// Sizes of a kernel's parameters, which the driver reads from its image.
fn parameters(function: sys::CUfunction) -> Result<Vec<usize>, CudaError> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0usize, 0usize);
        // SAFETY: the function's module is loaded; the call writes two `size_t`s.
        let status = unsafe {
            sys::cuFuncGetParamInfo(function, sizes.len(), &raw mut offset, &raw mut size)
        };
        match status {
            sys::CUresult::CUDA_SUCCESS => sizes.push(size),
            // The index after the last.
            sys::CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(sizes),
            other => other.result().map_err(driver("cuFuncGetParamInfo"))?,
        }
    }
}

/// All kernels loaded so far; plans share them.
#[derive(Debug)]
pub(crate) struct KernelStore {
    context: Arc<CudaContext>,
    compiler: Compiler,
    functions: HashMap<Kernel, Arc<Function>>,
}

impl KernelStore {
    pub(crate) fn new(context: Arc<CudaContext>, compiler: Compiler) -> Self {
        KernelStore { context, compiler, functions: HashMap::new() }
    }

    /// Compiles and loads what a program needs and is not there yet. `carveout`: percent of a
    /// multiprocessor's memory that these kernels want as shared memory.
    pub(crate) fn load(
        &mut self,
        program: &Program,
        carveout: Option<u8>,
    ) -> Result<(), CudaError> {
        let missing = program.launches.iter().map(|launch| &launch.kernel);
        let mut missing: Vec<&Kernel> =
            missing.filter(|kernel| !self.functions.contains_key(*kernel)).collect();
        missing.sort_unstable();
        missing.dedup();
        let units = missing.iter().map(|kernel| unit(kernel)).collect::<Result<Vec<_>, _>>()?;
        let compiled = self.compiler.compile_all(&units)?;
        for (kernel, compiled) in missing.into_iter().zip(compiled) {
            let name = kernel.host_name();
            let module = self.context.load_module(Ptx::from_binary(compiled.cubin));
            let module = module.map_err(driver("cuModuleLoadData"))?;
            let function = module.load_function(&name).map_err(driver("cuModuleGetFunction"))?;
            let function = Function::new(function, name, compiled.waits, compiled.resources)?;
            self.functions.insert(kernel.clone(), Arc::new(function));
        }
        // Also of those that were there: another plan may have loaded them without.
        let Some(percent) = carveout else { return Ok(()) };
        for launch in &program.launches {
            self.get(&launch.kernel).prefer_shared(percent)?;
        }
        Ok(())
    }

    /// A loaded kernel.
    pub(crate) fn get(&self, kernel: &Kernel) -> Arc<Function> {
        let function = self.functions.get(kernel);
        Arc::clone(function.unwrap_or_else(|| panic!("{} is not loaded", kernel.host_name())))
    }

    /// Facts of all kernels, by name.
    pub(crate) fn facts(&self) -> Vec<KernelFacts> {
        let mut facts: Vec<_> = self.functions.values().map(|f| f.facts.clone()).collect();
        facts.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        facts
    }
}

/// Names that are defined in the kernels of a tuning, with or without [`crate::CudaOptions::trace`].
pub(crate) fn defines(tuning: &Tuning, trace: bool) -> Vec<&'static str> {
    tuning.defines().iter().copied().chain(trace.then_some("LILY_TRACE")).collect()
}

/// Compiles kernels of this tuning for a target such as `sm_90a`, without a device and without a cache:
/// what each takes of a multiprocessor, in their order. With `trace` as [`crate::CudaOptions::trace`]
/// has them.
///
/// # Errors
/// [`CudaError::NoCompiler`], [`CudaError::Source`] or [`CudaError::Compile`].
pub fn compile_kernels(
    kernels: &[&Kernel],
    tuning: &Tuning,
    arch: &str,
    trace: bool,
) -> Result<Vec<Resources>, CudaError> {
    let units = kernels.iter().map(|kernel| unit(kernel)).collect::<Result<Vec<_>, _>>()?;
    let compiler = Compiler::new(arch, &KernelCache::Off, &defines(tuning, trace))?;
    let compiled = compiler.compile_all(&units)?;
    Ok(compiled.into_iter().map(|compiled| compiled.resources).collect())
}

/// The CUDA source of one kernel.
fn unit(kernel: &Kernel) -> Result<Unit, CudaError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| CudaError::Source {
        kernel: kernel.host_name(),
        source,
    };
    let metal = sources::library(kernel.module, &[kernel]).map_err(|e| failed(e.into()))?;
    let translated = translate::cuda(&metal).map_err(|e| failed(e.into()))?;
    let mut source = sources::flatten("runtime/cuda.cuh").map_err(|e| failed(e.into()))?;
    source.push_str(&translated.code);
    Ok(Unit { module: kernel.module.folder(), source })
}
