//! One step of a plan as the driver takes it: a function, a grid, and packed arguments.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use lily_kernels::launch::{Binding, Launch};
use lily_plan::buffer::BufferId;

use crate::ahead::{self, Ahead};
use crate::device::Chip;
use crate::error::{CudaError, driver};
use crate::kernels::Function;
use crate::memory::Address;

/// One kernel argument.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Argument {
    /// Bytes from the start of a plan's buffer.
    Buffer(BufferId, u64),
    /// An address that every sequence shares.
    Address(Address),
    /// A struct by value.
    Value(Vec<u8>),
}

impl Argument {
    /// Size of the kernel's parameter.
    fn bytes(&self) -> usize {
        match self {
            Argument::Buffer(..) | Argument::Address(_) => size_of::<Address>(),
            Argument::Value(bytes) => bytes.len(),
        }
    }
}

/// A step that was checked against the device's limits, its buffers still by index.
#[derive(Clone, Debug)]
pub(crate) struct PreparedLaunch {
    /// Name of the step.
    pub(crate) step: String,
    pub(crate) function: Arc<Function>,
    grid: [u32; 3],
    threads: u32,
    /// Shared memory of a block beyond what the kernel declares, in bytes.
    shared: u32,
    arguments: Vec<Argument>,
    /// Where its blocks leave their records; only of a trace.
    records: Option<Address>,
}

impl PreparedLaunch {
    /// Checks the launch of a step for `rows` token rows.
    pub(crate) fn new(
        step: &str,
        launch: &Launch,
        rows: u32,
        function: Arc<Function>,
        chip: &Chip,
        weight: impl Fn(lily_plan::buffer::WeightId) -> Address,
        records: Option<Address>,
    ) -> Result<Self, CudaError> {
        let grid = launch.grid.map(|extent| extent.groups(rows));
        let arguments = launch.bindings.iter().map(|binding| match binding {
            Binding::Region(region) => Argument::Buffer(region.buffer, region.bytes.start),
            Binding::Weight(id) => Argument::Address(weight(*id)),
            Binding::Params(bytes) => Argument::Value(bytes.clone()),
        });
        let arguments: Vec<Argument> =
            arguments.chain([Argument::Value(ahead::words(&[], records))]).collect();
        let limits = Limits {
            step,
            threads: function.facts.threads.min(chip.threads),
            grid: chip.grid,
            parameters: &function.parameters,
        };
        limits.check(grid, launch.threads, &arguments)?;
        let (step, threads) = (step.to_owned(), launch.threads);
        Ok(PreparedLaunch { step, function, grid, threads, shared: 0, arguments, records })
    }

    /// Lets it ask for these weights, which a later step reads.
    pub(crate) fn ask_ahead(&mut self, weights: &[Ahead]) {
        *self.arguments.last_mut().expect("the last argument is always there") =
            Argument::Value(ahead::words(weights, self.records));
    }

    /// Lets a block take `bytes` of shared memory, so that fewer of them fit on a multiprocessor, where
    /// each multiprocessor is to have one of the grid.
    pub(crate) fn spread(&mut self, bytes: u32, multiprocessors: usize) -> Result<(), CudaError> {
        let blocks = self.grid.iter().map(|&n| n as usize).product();
        if !one_for_each(blocks, multiprocessors) {
            return Ok(());
        }
        self.shared = bytes.saturating_sub(self.function.facts.shared_bytes);
        self.function.allow_shared(self.shared)
    }

    /// The buffers that it reads or writes.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = BufferId> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Buffer(id, _) => Some(*id),
            Argument::Address(_) | Argument::Value(_) => None,
        })
    }

    /// With every buffer at its address, by buffer index.
    pub(crate) fn at(&self, buffers: &[Address]) -> ReadyLaunch {
        let mut words = Words::default();
        for argument in &self.arguments {
            match argument {
                Argument::Buffer(id, offset) => {
                    words.push(&(buffers[id.0 as usize] + offset).to_ne_bytes());
                }
                Argument::Address(address) => words.push(&address.to_ne_bytes()),
                Argument::Value(bytes) => words.push(bytes),
            }
        }
        let function = Arc::clone(&self.function);
        ReadyLaunch { function, grid: self.grid, threads: self.threads, shared: self.shared, words }
    }
}

/// Whether a grid has about one block for each multiprocessor: fewer cannot crowd to any harm, and of more
/// each is to have several.
fn one_for_each(blocks: usize, multiprocessors: usize) -> bool {
    blocks <= multiprocessors && 2 * blocks > multiprocessors
}

/// What a launch of one kernel may have.
struct Limits<'a> {
    step: &'a str,
    threads: u32,
    grid: [u32; 3],
    parameters: &'a [usize],
}

impl Limits<'_> {
    fn check(&self, grid: [u32; 3], threads: u32, arguments: &[Argument]) -> Result<(), CudaError> {
        let refuse = |what, found: u64, expected: String| {
            Err(CudaError::Limit { step: self.step.to_owned(), what, found, expected })
        };
        let axes = ["blocks in x", "blocks in y", "blocks in z"];
        for ((what, found), most) in axes.into_iter().zip(grid).zip(self.grid) {
            if found == 0 || found > most {
                return refuse(what, found.into(), format!("1 to {most}"));
            }
        }
        if threads == 0 || threads > self.threads || !threads.is_multiple_of(32) {
            let expected = format!("a multiple of 32 up to {}", self.threads);
            return refuse("threads per block", threads.into(), expected);
        }
        if arguments.len() != self.parameters.len() {
            let expected = format!("{} as in the kernel", self.parameters.len());
            return refuse("arguments", arguments.len() as u64, expected);
        }
        for (argument, &size) in arguments.iter().zip(self.parameters) {
            if argument.bytes() != size {
                let expected = format!("{size} as in the kernel");
                return refuse("bytes of an argument", argument.bytes() as u64, expected);
            }
        }
        Ok(())
    }
}

/// Arguments one after the other, each at a multiple of 8 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Words {
    fn push(&mut self, bytes: &[u8]) {
        self.starts.push(self.words.len());
        self.words.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        }));
    }

    /// An array of addresses, one per argument. The driver only reads through them.
    fn pointers(&self) -> Vec<*mut c_void> {
        self.starts.iter().map(|&start| self.words[start..].as_ptr().cast_mut().cast()).collect()
    }
}

/// A step with all addresses.
#[derive(Clone, Debug)]
pub(crate) struct ReadyLaunch {
    function: Arc<Function>,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    words: Words,
}

impl ReadyLaunch {
    /// Puts the kernel into a stream. With `early` it may start before the kernel before it has
    /// ended.
    ///
    /// # Safety
    /// The buffers must stay allocated until the stream has passed the kernel, and nothing but the
    /// stream's own work may use them meanwhile.
    pub(crate) unsafe fn launch(&self, stream: &CudaStream, early: bool) -> Result<(), CudaError> {
        let mut pointers = self.words.pointers();
        if !early {
            let [x, y, z] = self.grid;
            // SAFETY: the function is loaded, number and sizes of the arguments were checked against
            // it, and the driver copies them during the call; the rest as the caller promises.
            return unsafe {
                result::launch_kernel(
                    self.function.handle(),
                    (x, y, z),
                    (self.threads, 1, 1),
                    self.shared,
                    stream.cu_stream(),
                    &mut pointers,
                )
            }
            .map_err(driver("cuLaunchKernel"));
        }
        let mut attribute = sys::CUlaunchAttribute_st {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig_st {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        // SAFETY: as above; configuration and attribute live until the call returns.
        let status = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.function.handle(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        status.result().map_err(driver("cuLaunchKernelEx"))
    }

    /// Adds the kernel to a graph, waiting for nothing yet.
    ///
    /// # Safety
    /// `graph` must be a live graph that no other thread uses.
    pub(crate) unsafe fn add_to(&self, graph: sys::CUgraph) -> Result<sys::CUgraphNode, CudaError> {
        let mut pointers = self.words.pointers();
        let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.function.handle(),
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        let mut node = std::ptr::null_mut();
        // SAFETY: the graph is as the caller promises; number and sizes of the arguments were checked
        // against the function, and the driver copies them during the call.
        let status = unsafe {
            sys::cuGraphAddKernelNode_v2(
                &raw mut node,
                graph,
                std::ptr::null(),
                0,
                &raw const parameters,
            )
        };
        status.result().map_err(driver("cuGraphAddKernelNode"))?;
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits<'static> {
        Limits { step: "s", threads: 512, grid: [1000, 10, 10], parameters: &[8, 12] }
    }

    fn arguments() -> Vec<Argument> {
        vec![Argument::Buffer(BufferId(0), 0), Argument::Value(vec![0; 12])]
    }

    #[test]
    fn grids_of_about_a_block_for_each_multiprocessor_are_spread() {
        let spread = [1, 66, 67, 128, 132, 133, 386].map(|blocks| one_for_each(blocks, 132));
        assert_eq!(spread, [false, false, true, true, true, false, false]);
    }

    #[test]
    fn a_launch_within_the_limits_passes() {
        limits().check([1000, 1, 10], 512, &arguments()).unwrap();
    }

    #[test]
    fn a_launch_outside_of_a_limit_is_refused_by_its_name() {
        let cases: [([u32; 3], u32, Vec<Argument>, &str); 7] = [
            ([0, 1, 1], 32, arguments(), "blocks in x"),
            ([1, 11, 1], 32, arguments(), "blocks in y"),
            ([1, 1, 11], 32, arguments(), "blocks in z"),
            ([1, 1, 1], 544, arguments(), "threads per block"),
            ([1, 1, 1], 48, arguments(), "threads per block"),
            ([1, 1, 1], 32, arguments()[..1].to_vec(), "arguments"),
            ([1, 1, 1], 32, vec![Argument::Address(0); 2], "bytes of an argument"),
        ];
        for (grid, threads, arguments, expected) in cases {
            let error = limits().check(grid, threads, &arguments).unwrap_err();
            assert!(matches!(error, CudaError::Limit { what, .. } if what == expected), "{error}");
        }
    }

    #[test]
    fn arguments_lie_where_their_pointers_say() {
        let mut words = Words::default();
        words.push(&7u64.to_ne_bytes());
        words.push(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        words.push(&9u64.to_ne_bytes());
        let pointers = words.pointers();
        // SAFETY: the pointers lead into `words`, which is alive and as long as what was pushed.
        unsafe {
            assert_eq!(*pointers[0].cast::<u64>(), 7);
            let bytes = std::slice::from_raw_parts(pointers[1].cast::<u8>(), 12);
            assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
            assert_eq!(*pointers[2].cast::<u64>(), 9);
        }
    }
}
