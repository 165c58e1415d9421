//! The compiled kernels of a model.

use std::collections::HashMap;

use lily_kernels::launch::{Kernel, Module, Program};
use lily_kernels::limits::{LimitError, Limits, check_pipeline};
use lily_plan::plan::Plan;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLDevice;

use crate::MetalError;
use crate::compile::{self, Pipeline};

/// Pipelines by kernel; plans share them.
#[derive(Debug)]
pub(crate) struct KernelStore {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    pipelines: HashMap<Kernel, Pipeline>,
}

impl KernelStore {
    /// No kernels yet.
    pub(crate) fn new(device: Retained<ProtocolObject<dyn MTLDevice>>) -> Self {
        KernelStore { device, pipelines: HashMap::new() }
    }

    /// Compiles what a program needs and is not there yet, and checks every launch against what the
    /// compiler says.
    pub(crate) fn load(
        &mut self,
        program: &Program,
        plan: &Plan,
        limits: &Limits,
    ) -> Result<(), MetalError> {
        let missing = |module| {
            let kernels = program.kernels(module).into_iter();
            kernels.filter(|kernel| !self.pipelines.contains_key(kernel)).collect::<Vec<_>>()
        };
        let modules = Module::ALL.map(|module| (module, missing(module)));
        let modules: Vec<_> = modules.into_iter().filter(|(_, list)| !list.is_empty()).collect();
        let compiled = compile::pipelines(&self.device, &modules)?;
        self.pipelines.extend(compiled);
        for (launch, step) in program.launches.iter().zip(&plan.steps) {
            let facts = self.get(&launch.kernel).facts;
            check_pipeline(launch, &facts, limits).map_err(|broken| LimitError {
                step: step.name.clone(),
                kernel: launch.kernel.host_name(),
                broken,
            })?;
        }
        Ok(())
    }

    /// A kernel that a loaded program names.
    pub(crate) fn get(&self, kernel: &Kernel) -> &Pipeline {
        self.pipelines.get(kernel).unwrap_or_else(|| panic!("{} is not loaded", kernel.host_name()))
    }
}
