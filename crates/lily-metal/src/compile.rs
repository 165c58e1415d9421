//! From kernel sources to libraries and pipelines.

use std::sync::{Mutex, PoisonError};

use lily_kernels::launch::{Kernel, Module};
use lily_kernels::limits::PipelineFacts;
use lily_kernels::sources;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDevice,
    MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode, MTLPipelineOption,
};

use crate::MetalError;

/// A compiled kernel.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub(crate) state: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    pub(crate) facts: PipelineFacts,
}

type Device = ProtocolObject<dyn MTLDevice>;
type Library = Retained<ProtocolObject<dyn MTLLibrary>>;

/// Compiles kernels, modules and pipelines in parallel. All kernels of a module are one library.
pub(crate) fn pipelines(
    device: &Device,
    modules: &[(Module, Vec<&Kernel>)],
) -> Result<Vec<(Kernel, Pipeline)>, MetalError> {
    let libraries = in_parallel(modules, |(module, kernels)| {
        let source = sources::library(*module, kernels)?;
        Ok((library(device, *module, &source)?, kernels))
    })?;
    let of_library = |(library, kernels): &(Library, &Vec<&Kernel>)| {
        let named = kernels.iter().map(|&kernel| (library.clone(), kernel.clone()));
        named.collect::<Vec<_>>()
    };
    let kernels: Vec<(Library, Kernel)> = libraries.iter().flat_map(of_library).collect();
    in_parallel(&kernels, |(library, kernel)| {
        Ok((kernel.clone(), pipeline(device, library, &kernel.host_name())?))
    })
}

/// Runs `work` over all items on several threads; results in the order of the items, or the first
/// error in that order.
fn in_parallel<'a, T: Sync, R: Send>(
    items: &'a [T],
    work: impl Fn(&'a T) -> Result<R, MetalError> + Sync,
) -> Result<Vec<R>, MetalError> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = Mutex::new(items.iter().enumerate());
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = take() {
                    let result = autoreleasepool(|_| work(item));
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Compiles one source.
///
/// The language version is always set: its default depends on the SDK that the program was linked
/// with. Math is strict, because masks and checks need infinities and NaN; kernels call fast functions
/// by name.
fn library(device: &Device, module: Module, source: &str) -> Result<Library, MetalError> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(match module {
        Module::Tensor => MTLLanguageVersion::Version4_0,
        _ => MTLLanguageVersion::Version3_2,
    });
    options.setMathMode(MTLMathMode::Safe);
    options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    let source = NSString::from_str(source);
    device.newLibraryWithSource_options_error(&source, Some(&options)).map_err(|error| {
        MetalError::Compile { module, log: error.localizedDescription().to_string() }
    })
}

fn pipeline(
    device: &Device,
    library: &ProtocolObject<dyn MTLLibrary>,
    name: &str,
) -> Result<Pipeline, MetalError> {
    let failed = |message: String| MetalError::Pipeline { kernel: name.to_owned(), message };
    let function = library
        .newFunctionWithName(&NSString::from_str(name))
        .ok_or_else(|| failed("the library has no such function".to_owned()))?;
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setComputeFunction(Some(&function));
    descriptor.setLabel(Some(&NSString::from_str(name)));
    // SAFETY: `lily_kernels::limits` refuses launches whose threadgroups are not whole simdgroups.
    unsafe { descriptor.setThreadGroupSizeIsMultipleOfThreadExecutionWidth(true) };
    let state = device
        .newComputePipelineStateWithDescriptor_options_reflection_error(
            &descriptor,
            MTLPipelineOption::None,
            None,
        )
        .map_err(|error| failed(error.localizedDescription().to_string()))?;
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let facts = PipelineFacts {
        threads: narrow(state.maxTotalThreadsPerThreadgroup()),
        threadgroup_bytes: narrow(state.staticThreadgroupMemoryLength()),
        simd_width: narrow(state.threadExecutionWidth()),
    };
    Ok(Pipeline { state, facts })
}
