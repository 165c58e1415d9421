//! What a device replays: one launch per step of a plan.

use lily_plan::buffer::{Region, WeightId};

/// A source library that is compiled as a whole; the text is `kernels/<folder>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Module {
    /// `kernels/embed`: rows of the embedding.
    Embed,
    /// `kernels/norm`: norms and element-wise steps.
    Norm,
    /// `kernels/linear`: matrix-vector and matrix-matrix products.
    Linear,
    /// `kernels/attention`: softmax attention.
    Attention,
    /// `kernels/gated_delta`: Gated DeltaNet.
    GatedDelta,
    /// `kernels/moe`: routing and experts.
    Moe,
    /// `kernels/sample`: the choice of a token.
    Sample,
    /// `kernels/tensor`: products on the tensor units of newer Apple GPUs; compiled apart, because it
    /// needs headers that older systems lack.
    Tensor,
}

impl Module {
    /// All of them, in the order of their declaration.
    pub const ALL: [Module; 8] = [
        Module::Embed,
        Module::Norm,
        Module::Linear,
        Module::Attention,
        Module::GatedDelta,
        Module::Moe,
        Module::Sample,
        Module::Tensor,
    ];

    /// The folder under `kernels/`, and the name of its `.metal` file.
    pub fn folder(self) -> &'static str {
        match self {
            Module::Embed => "embed",
            Module::Norm => "norm",
            Module::Linear => "linear",
            Module::Attention => "attention",
            Module::GatedDelta => "gated_delta",
            Module::Moe => "moe",
            Module::Sample => "sample",
            Module::Tensor => "tensor",
        }
    }
}

/// One kernel with all its constants: an instantiation of a template of its module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kernel {
    /// Where the template lies.
    pub module: Module,
    /// Name of the template in the source.
    pub template: &'static str,
    /// Template arguments as they stand in the source: numbers, `true`/`false`, type names.
    pub args: Vec<String>,
}

impl Kernel {
    /// The host name of the instantiation: the template's name and the arguments, with everything
    /// that is no letter or digit replaced by `_`.
    pub fn host_name(&self) -> String {
        let mut name = self.template.to_owned();
        for arg in &self.args {
            name.push('_');
            name.extend(arg.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
        }
        name
    }

    /// The explicit instantiation that goes after the module's source.
    pub fn instantiation(&self) -> String {
        let (name, template, args) = (self.host_name(), self.template, self.args.join(", "));
        format!(
            "template [[host_name(\"{name}\")]] [[kernel]] decltype({template}<{args}>) {template}<{args}>;"
        )
    }
}

/// Threadgroups along one axis of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Always this many.
    Fixed(u32),
    /// `ceil(active rows * units_per_row / per_group)`, and the same with the plan's rows where a
    /// grid has to be fixed in advance: groups beyond the active rows return at once.
    Rows {
        /// Units of work per token row: 1, or the slots of a row.
        units_per_row: u32,
        /// Units that one threadgroup takes.
        per_group: u32,
        /// Threadgroups on top, for work that is cut at borders known only on the device.
        extra: u32,
    },
}

impl Extent {
    /// Threadgroups for that many rows.
    pub fn groups(self, rows: u32) -> u32 {
        match self {
            Extent::Fixed(n) => n,
            Extent::Rows { units_per_row, per_group, extra } => {
                (rows * units_per_row).div_ceil(per_group) + extra
            }
        }
    }
}

/// What one buffer index is bound to.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// Bytes of a plan's buffer.
    Region(Region),
    /// A whole weight, as packed by `lily_checkpoint::packed` (matrices) or as `f32` (vectors and
    /// convolutions, row-major).
    Weight(WeightId),
    /// A `constant T&` argument by value: the bytes of a struct of [`crate::params`].
    Params(Vec<u8>),
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// What runs.
    pub kernel: Kernel,
    /// Threadgroups in x, y, z.
    pub grid: [Extent; 3],
    /// Threads per threadgroup, all in x: a multiple of 32, at most 1024.
    pub threads: u32,
    /// By buffer index, without gaps.
    pub bindings: Vec<Binding>,
}

/// A plan's launches: one per step, in the order of the plan's steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// By step index.
    pub launches: Vec<Launch>,
}

impl Program {
    /// The distinct kernels of one module, sorted.
    pub fn kernels(&self, module: Module) -> Vec<&Kernel> {
        let of_module = self.launches.iter().map(|l| &l.kernel).filter(|k| k.module == module);
        let mut kernels: Vec<_> = of_module.collect();
        kernels.sort_unstable();
        kernels.dedup();
        kernels
    }
}
