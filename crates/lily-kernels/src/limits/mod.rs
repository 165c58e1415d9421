//! What Metal refuses or leaves undefined, refused here first.
//!
//! The Metal API answers most of these with an assertion of its debug layer, and without that layer
//! with silence: a wrong offset or an oversized threadgroup is undefined behaviour. Since the checks
//! are plain arithmetic over a [`Program`], they run in tests on any system, and again with the true
//! figures of a device before it encodes anything.
//!
//! Two facts are not in a program: how much threadgroup memory a kernel declares and how many threads
//! its registers allow. Metal's compiler states them with the pipeline, see [`check_pipeline`].
//! Launches have no dynamic threadgroup memory on Metal, so there are no lengths of it to check.

mod footprint;

use std::collections::HashMap;

use lily_checkpoint::manifest::Manifest;
use lily_plan::buffer::{Region, WeightId};
use lily_plan::plan::Plan;
use lily_plan::valid::ValidPlan;

use crate::launch::{Binding, Extent, Kernel, Launch, Module, Program};

pub use footprint::{Footprint, weight_bytes};

/// Buffer indices of a compute encoder: `0 .. 31`.
pub const BUFFER_SLOTS: usize = 31;
/// Most bytes that an argument by value may have (`setBytes`).
pub const PARAMS_BYTES: usize = 4096;
/// Threads of a simdgroup.
pub const SIMD_WIDTH: u32 = 32;
/// Alignment of a bound offset: the widest type that a kernel loads at once (`float4`, `uint4`).
pub const OFFSET_ALIGN: u64 = 16;
/// Smallest scalar that kernels read through a pointer bound by a region.
const SCALAR_BYTES: u64 = 2;

/// What one device grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one buffer (`maxBufferLength`).
    pub buffer_bytes: u64,
    /// Bytes that may be resident at once (`recommendedMaxWorkingSetSize`).
    pub working_set_bytes: u64,
    /// Threads of one threadgroup (`maxThreadsPerThreadgroup`).
    pub threads: u32,
    /// Threadgroup memory of one threadgroup (`maxThreadgroupMemoryLength`).
    pub threadgroup_bytes: u32,
}

impl Limits {
    /// An Apple GPU with that much memory; everything else is the same on all of them.
    pub const fn apple(buffer_bytes: u64, working_set_bytes: u64) -> Limits {
        Limits { buffer_bytes, working_set_bytes, threads: 1024, threadgroup_bytes: 32 << 10 }
    }
}

/// What Metal's compiler says of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineFacts {
    /// Most threads of a threadgroup; fewer than the device's when registers are short
    /// (`maxTotalThreadsPerThreadgroup`).
    pub threads: u32,
    /// Threadgroup memory that the kernel declares (`staticThreadgroupMemoryLength`).
    pub threadgroup_bytes: u32,
    /// Threads of a simdgroup (`threadExecutionWidth`).
    pub simd_width: u32,
}

/// A launch that Metal would refuse or leave undefined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {step} (kernel {kernel}): {broken}")]
pub struct LimitError {
    /// Name of the step.
    pub step: String,
    /// Host name of the kernel.
    pub kernel: String,
    /// The rule it breaks.
    pub broken: Broken,
}

/// A rule of the Metal API, broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// A program is one launch per step.
    #[error("the program has {launches} launches for {steps} steps")]
    Launches {
        /// Steps of the plan.
        steps: usize,
        /// Launches of the program.
        launches: usize,
    },
    /// Two kernels of one module would have the same host name.
    #[error("kernel with arguments {args:?} has the host name of another kernel")]
    HostName {
        /// Template arguments of the later one.
        args: Vec<String>,
    },
    /// More buffer indices than an encoder has.
    #[error("{count} buffers are bound, an encoder has {BUFFER_SLOTS}")]
    BufferSlots {
        /// Bindings of the launch.
        count: usize,
    },
    /// An argument by value of no bytes, of too many, or of a size that no `repr(C)` struct of 32-bit
    /// numbers has.
    #[error("argument {index} has {bytes} bytes, expected a multiple of 4 up to {PARAMS_BYTES}")]
    Params {
        /// Buffer index.
        index: usize,
        /// Its size.
        bytes: usize,
    },
    /// A threadgroup that is empty, too large, or ends in a partial simdgroup.
    #[error("{threads} threads per threadgroup, expected a multiple of {SIMD_WIDTH} up to {limit}")]
    Threads {
        /// Threads of the launch.
        threads: u32,
        /// Most that are allowed.
        limit: u32,
    },
    /// A grid of no threadgroups, or of more threads than positions can count.
    #[error("grid axis {axis} has {groups:?} threadgroups at {rows} active rows")]
    Grid {
        /// 0 for x, 1 for y, 2 for z.
        axis: usize,
        /// Active rows.
        rows: u32,
        /// Threadgroups; `None` when the number overflows.
        groups: Option<u32>,
    },
    /// A binding of no bytes, outside its buffer, or that cuts a number in two.
    #[error("binding {index}: bytes {start}..{end} of buffer {buffer} of {size} bytes")]
    Range {
        /// Buffer index.
        index: usize,
        /// Name of the plan's buffer.
        buffer: String,
        /// First byte.
        start: u64,
        /// End.
        end: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// A binding that names no buffer or weight of the plan.
    #[error("binding {index} names nothing in the plan")]
    Dangling {
        /// Buffer index.
        index: usize,
    },
    /// An offset at which a vector load would be misaligned.
    #[error("binding {index}: offset {offset} in {buffer} is no multiple of {OFFSET_ALIGN}")]
    Offset {
        /// Buffer index.
        index: usize,
        /// Name of the plan's buffer.
        buffer: String,
        /// Offset in bytes.
        offset: u64,
    },
    /// The manifest lacks a weight that is bound.
    #[error("binding {index}: weight {name} is not in the checkpoint")]
    MissingWeight {
        /// Buffer index.
        index: usize,
        /// Canonical name.
        name: String,
    },
    /// A buffer larger than the device can make.
    #[error("{name} needs a buffer of {bytes:?} bytes, the device makes at most {limit}")]
    BufferBytes {
        /// What it would hold.
        name: String,
        /// Its size; `None` when it overflows.
        bytes: Option<u64>,
        /// Most that are allowed.
        limit: u64,
    },
    /// More threadgroup memory than a threadgroup has.
    #[error("{bytes} bytes of threadgroup memory, the device has {limit}")]
    ThreadgroupBytes {
        /// Bytes that the kernel declares.
        bytes: u32,
        /// Most that are allowed.
        limit: u32,
    },
    /// A machine whose simdgroups are not what every kernel is written for.
    #[error("simdgroups of {found} threads, the kernels need {SIMD_WIDTH}")]
    SimdWidth {
        /// What the pipeline reports.
        found: u32,
    },
}

/// Checks every launch of a program against the rules of Metal and the figures of one device.
///
/// # Errors
/// The first broken rule, with the step and the kernel.
pub fn check(
    program: &Program,
    plan: &ValidPlan,
    manifest: &Manifest,
    limits: &Limits,
) -> Result<(), LimitError> {
    let (launches, steps) = (program.launches.len(), plan.plan().steps.len());
    if launches != steps {
        let broken = Broken::Launches { steps, launches };
        return Err(LimitError { step: String::new(), kernel: String::new(), broken });
    }
    let mut names: HashMap<(Module, String), &Kernel> = HashMap::new();
    for (launch, step) in program.launches.iter().zip(&plan.plan().steps) {
        let kernel = launch.kernel.host_name();
        let known = names.entry((launch.kernel.module, kernel.clone())).or_insert(&launch.kernel);
        let named = match **known == launch.kernel {
            true => Ok(()),
            false => Err(Broken::HostName { args: launch.kernel.args.clone() }),
        };
        let subject = Subject { plan: plan.plan(), manifest, limits };
        named.and_then(|()| subject.launch(launch)).map_err(|broken| LimitError {
            step: step.name.clone(),
            kernel,
            broken,
        })?;
    }
    arena(plan, limits)
}

/// Checks a launch against what the compiler says of its pipeline.
///
/// # Errors
/// The first broken rule.
pub fn check_pipeline(
    launch: &Launch,
    facts: &PipelineFacts,
    limits: &Limits,
) -> Result<(), Broken> {
    if facts.simd_width != SIMD_WIDTH {
        return Err(Broken::SimdWidth { found: facts.simd_width });
    }
    if facts.threadgroup_bytes > limits.threadgroup_bytes {
        let (bytes, limit) = (facts.threadgroup_bytes, limits.threadgroup_bytes);
        return Err(Broken::ThreadgroupBytes { bytes, limit });
    }
    threads(launch.threads, facts.threads.min(limits.threads))
}

/// Scratch of a run is one buffer, because its parts lie beside and over each other.
fn arena(plan: &ValidPlan, limits: &Limits) -> Result<(), LimitError> {
    let bytes = plan.arena_bytes();
    if bytes <= limits.buffer_bytes {
        return Ok(());
    }
    let (name, limit) = ("scratch memory".to_owned(), limits.buffer_bytes);
    let broken = Broken::BufferBytes { name, bytes: Some(bytes), limit };
    Err(LimitError { step: String::new(), kernel: String::new(), broken })
}

fn threads(threads: u32, limit: u32) -> Result<(), Broken> {
    if threads == 0 || !threads.is_multiple_of(SIMD_WIDTH) || threads > limit {
        return Err(Broken::Threads { threads, limit });
    }
    Ok(())
}

struct Subject<'a> {
    plan: &'a Plan,
    manifest: &'a Manifest,
    limits: &'a Limits,
}

impl Subject<'_> {
    fn launch(&self, launch: &Launch) -> Result<(), Broken> {
        threads(launch.threads, self.limits.threads)?;
        self.grid(launch)?;
        let count = launch.bindings.len();
        if count > BUFFER_SLOTS {
            return Err(Broken::BufferSlots { count });
        }
        for (index, binding) in launch.bindings.iter().enumerate() {
            match binding {
                Binding::Region(region) => self.region(index, region)?,
                Binding::Weight(id) => self.weight(index, *id)?,
                Binding::Params(bytes) => params(index, bytes.len())?,
            }
        }
        Ok(())
    }

    /// A run may have any number of active rows up to the plan's.
    fn grid(&self, launch: &Launch) -> Result<(), Broken> {
        let most = u32::try_from(self.plan.rows).unwrap_or(u32::MAX);
        for (axis, &extent) in launch.grid.iter().enumerate() {
            for rows in [1, most] {
                let groups = groups(extent, rows);
                // Positions of threads in the grid are 32-bit numbers.
                let per_group = if axis == 0 { launch.threads } else { 1 };
                if !groups.is_some_and(|n| n > 0 && n.checked_mul(per_group).is_some()) {
                    return Err(Broken::Grid { axis, rows, groups });
                }
            }
        }
        Ok(())
    }

    fn region(&self, index: usize, region: &Region) -> Result<(), Broken> {
        let Some(buffer) = self.plan.buffers.get(region.buffer.0 as usize) else {
            return Err(Broken::Dangling { index });
        };
        let (start, end, size) = (region.bytes.start, region.bytes.end, buffer.bytes());
        let whole = start.is_multiple_of(SCALAR_BYTES) && end.is_multiple_of(SCALAR_BYTES);
        if start >= end || end > size || !whole {
            let buffer = buffer.name.clone();
            return Err(Broken::Range { index, buffer, start, end, size });
        }
        if !start.is_multiple_of(OFFSET_ALIGN) {
            return Err(Broken::Offset { index, buffer: buffer.name.clone(), offset: start });
        }
        buffer_bytes(&buffer.name, Some(size), self.limits)
    }

    fn weight(&self, index: usize, id: WeightId) -> Result<(), Broken> {
        let Some(decl) = self.plan.weights.get(id.0 as usize) else {
            return Err(Broken::Dangling { index });
        };
        let Some(info) = self.manifest.get(&decl.name) else {
            return Err(Broken::MissingWeight { index, name: decl.name.clone() });
        };
        buffer_bytes(&decl.name, weight_bytes(&info.shape), self.limits)
    }
}

/// [`Extent::groups`], with `None` instead of an overflow or a division by zero.
fn groups(extent: Extent, rows: u32) -> Option<u32> {
    match extent {
        Extent::Fixed(n) => Some(n),
        Extent::Rows { units_per_row, per_group, extra } => {
            if per_group == 0 {
                return None;
            }
            rows.checked_mul(units_per_row)?.div_ceil(per_group).checked_add(extra)
        }
    }
}

fn params(index: usize, bytes: usize) -> Result<(), Broken> {
    match bytes {
        1..=PARAMS_BYTES if bytes.is_multiple_of(4) => Ok(()),
        _ => Err(Broken::Params { index, bytes }),
    }
}

fn buffer_bytes(name: &str, bytes: Option<u64>, limits: &Limits) -> Result<(), Broken> {
    match bytes {
        Some(bytes) if bytes <= limits.buffer_bytes => Ok(()),
        _ => {
            let (name, limit) = (name.to_owned(), limits.buffer_bytes);
            Err(Broken::BufferBytes { name, bytes, limit })
        }
    }
}
