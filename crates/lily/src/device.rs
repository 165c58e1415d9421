//! From flags to the machine that runs the model.

use anyhow::{Context, Result};
use lily_cpu::{CpuDevice, CpuOptions, Isa};
use lily_cuda::{CudaDevice, CudaError, CudaOptions};
use lily_device::{Device, DeviceFacts};
use lily_metal::{MetalError, MetalOptions};

use crate::args::{DeviceKind, EngineArgs, PlanningArgs};
use crate::commands::counted;
use crate::failure::usage;

/// A machine, and the memory that a model may take there (`None`: what the system has).
pub(crate) struct Chosen {
    pub(crate) device: Box<dyn Device>,
    pub(crate) memory_limit: Option<u64>,
}

/// The machine that the flags ask for, or the best one there is.
pub(crate) fn choose(args: &EngineArgs) -> Result<Chosen> {
    only_for_cuda(&args.planning)?;
    match args.planning.device {
        DeviceKind::Cpu => cpu(args),
        DeviceKind::Cuda => Ok(cuda(&args.planning)?.context("the CUDA device cannot be used")?),
        DeviceKind::Metal => Ok(metal().context("the Metal device cannot be used")?),
        DeviceKind::Auto => auto(args),
    }
}

/// Switches of a device that is not asked for would be taken without effect.
fn only_for_cuda(args: &PlanningArgs) -> Result<()> {
    if args.cuda.is_empty() || args.device == DeviceKind::Cuda {
        return Ok(());
    }
    Err(usage("--cuda is for --device cuda"))
}

fn auto(args: &EngineArgs) -> Result<Chosen> {
    match metal() {
        Ok(chosen) => return Ok(chosen),
        Err(MetalError::NotMacOs) => {}
        Err(error) => eprintln!("warning: the Metal device is not used: {error}"),
    }
    match cuda(&args.planning)? {
        Ok(chosen) => return Ok(chosen),
        // Most machines have no GPU of this kind: nothing to tell.
        Err(CudaError::NoDriver | CudaError::NoDevice { .. }) => {}
        Err(error) => eprintln!("warning: the CUDA device is not used: {error}"),
    }
    cpu(args)
}

/// A kind of GPU, and the device or why it cannot be used.
pub(crate) struct Gpu {
    pub(crate) kind: DeviceKind,
    pub(crate) name: &'static str,
    pub(crate) found: Result<Chosen>,
    /// This machine has none of the kind, which is nothing that could be repaired.
    pub(crate) absent: bool,
}

/// Tries every kind of GPU, in the order in which `auto` prefers them.
pub(crate) fn gpus(args: &EngineArgs) -> Result<[Gpu; 2]> {
    let (metal, cuda) = (metal(), cuda(&args.planning)?);
    let no_metal = matches!(metal, Err(MetalError::NotMacOs));
    let no_cuda = matches!(cuda, Err(CudaError::NoDriver | CudaError::NoDevice { .. }));
    let gpu = |kind, name, found, absent| Gpu { kind, name, found, absent };
    Ok([
        gpu(DeviceKind::Metal, "metal", metal.map_err(Into::into), no_metal),
        gpu(DeviceKind::Cuda, "cuda", cuda.map_err(Into::into), no_cuda),
    ])
}

/// What plans need to know of the machine that the flags name. None is opened: `auto` is the
/// processor, so that the same flags give the same plan everywhere.
pub(crate) fn planned(args: &PlanningArgs) -> Result<DeviceFacts> {
    only_for_cuda(args)?;
    let name = || "not opened".to_owned();
    Ok(match args.device {
        DeviceKind::Auto | DeviceKind::Cpu => {
            CpuDevice::new(CpuOptions { threads: Some(1), isa: None }).facts()
        }
        DeviceKind::Cuda => cuda_options(args)?.facts(name(), 0),
        DeviceKind::Metal => lily_metal::facts(name()),
    })
}

/// A device in a line: `cpu AVX2, 2 threads`.
pub(crate) fn describe(facts: &DeviceFacts) -> String {
    let units = match facts.kind {
        "cpu" => "thread",
        "cuda" => "multiprocessor",
        // Metal does not tell how many it has.
        _ => return format!("{} {}", facts.kind, facts.name),
    };
    let units = counted(facts.parallelism as u64, units);
    format!("{} {}, {units}", facts.kind, facts.name)
}

/// The processor, which other devices are compared with.
pub(crate) fn processor(args: &EngineArgs) -> Result<CpuDevice> {
    with_threads(args, None)
}

/// The processor without vector instructions, which its own kernels are compared with.
pub(crate) fn portable(args: &EngineArgs) -> Result<CpuDevice> {
    with_threads(args, Some(Isa::Portable))
}

/// All the threads that were asked for, or none: the device itself takes what is sensible.
fn with_threads(args: &EngineArgs, isa: Option<Isa>) -> Result<CpuDevice> {
    let device = CpuDevice::new(CpuOptions { threads: args.threads, isa });
    let most = device.facts().parallelism;
    match args.threads {
        Some(asked) if asked > most => Err(usage(format!(
            "--threads {asked}: at most {most} threads are of use on this machine"
        ))),
        _ => Ok(device),
    }
}

fn cpu(args: &EngineArgs) -> Result<Chosen> {
    Ok(Chosen { device: Box::new(processor(args)?), memory_limit: None })
}

fn cuda_options(args: &PlanningArgs) -> Result<CudaOptions> {
    args.cuda.parse::<CudaOptions>().map_err(|e| usage(format!("--cuda: {e}")))
}

/// The outer error is a wrong flag.
fn cuda(args: &PlanningArgs) -> Result<Result<Chosen, CudaError>> {
    let options = cuda_options(args)?;
    let open = || {
        let device = CudaDevice::new(options)?;
        let (free, _) = device.memory()?;
        Ok(Chosen { device: Box::new(device), memory_limit: Some(free) })
    };
    Ok(open())
}

fn metal() -> Result<Chosen, MetalError> {
    let gpu = lily_metal::open(MetalOptions::from_env()?)?;
    Ok(Chosen { device: gpu.device, memory_limit: Some(gpu.working_set_bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_plan::buffer::Elem;

    #[test]
    fn a_device_is_described_in_units_of_its_own_kind() {
        let facts = |kind, name: &str, parallelism| DeviceFacts {
            kind,
            name: name.to_owned(),
            parallelism,
            activations: Elem::F32,
            prefill_chunk: 512,
            token_slot: false,
        };
        assert_eq!(describe(&facts("cpu", "AVX2", 1)), "cpu AVX2, 1 thread");
        let h200 = describe(&facts("cuda", "NVIDIA H200", 132));
        assert_eq!(h200, "cuda NVIDIA H200, 132 multiprocessors");
        assert_eq!(describe(&facts("metal", "Apple M5", 1)), "metal Apple M5");
    }
}
