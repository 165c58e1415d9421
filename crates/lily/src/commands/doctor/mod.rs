//! `lily doctor`: what this machine is, and whether every kernel computes on it what plainer code
//! computes: for a GPU the processor, for the processor code without vector instructions.

mod kernels;
mod model;
mod published;
mod rates;
mod report;

use anyhow::Result;
use lily_cpu::CpuDevice;
use lily_device::{Device, DeviceFacts};

use self::model::Source;
use self::report::{Device as Found, Measured, Report};
use super::output::{print, print_pretty};
use crate::args::{DeviceKind, DoctorArgs};
use crate::device::{self, Chosen, Gpu, describe};
use crate::failure::one_line;
use crate::model as checkpoints;

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let cpu = device::processor(&args.engine)?;
    let wanted = args.engine.planning.device;
    let (subject, others) = choose(wanted, &cpu, device::gpus(&args.engine)?);
    let processor = cpu.facts();
    let device = match subject {
        Ok(Chosen { device, memory_limit: memory }) => {
            let measured = measure(args, &cpu, device.as_ref())?;
            Found::Used { facts: device.facts(), memory, measured }
        }
        // The facts are all that can be had, and they say what is missing.
        Err((kind, why)) => Found::Missing { kind, why },
    };
    let report = Report { device, processor, others };
    match args.json {
        true => print_pretty(&report.json())?,
        false => print(&report.text())?,
    }
    if report.failed() { Err(anyhow::anyhow!("some checks failed")) } else { Ok(()) }
}

/// The machine asked for, or its kind and why it cannot be used; and what became of the others.
fn choose(
    wanted: DeviceKind,
    cpu: &CpuDevice,
    gpus: [Gpu; 2],
) -> (Result<Chosen, (&'static str, String)>, Vec<report::Other>) {
    let mut subject = None;
    let mut others = Vec::new();
    for Gpu { kind, name, found, absent } in gpus {
        let asked = wanted == kind;
        let kind = name;
        match found {
            Ok(chosen) if asked || (wanted == DeviceKind::Auto && subject.is_none()) => {
                subject = Some(Ok(chosen));
            }
            Ok(chosen) => {
                let why = format!("{} is there", describe(&chosen.device.facts()));
                others.push(report::Other { kind, why, repairable: false });
            }
            Err(error) if asked => subject = Some(Err((kind, one_line(&error)))),
            Err(error) => {
                let why = one_line(&error);
                others.push(report::Other { kind, why, repairable: !absent });
            }
        }
    }
    let cpu = || Ok(Chosen { device: Box::new(cpu.clone()), memory_limit: None });
    (subject.unwrap_or_else(cpu), others)
}

/// Runs the checks. One that cannot be carried out has failed; the others go on.
fn measure(args: &DoctorArgs, cpu: &CpuDevice, device: &dyn Device) -> Result<Measured> {
    let facts = device.facts();
    let source = Source::of(args)?;
    let checkpoint = source.checkpoint();
    let compare = |reference: &dyn Device| {
        kernels::check(checkpoint, reference, device).map_err(|error| one_line(&error))
    };
    let portable = device::portable(&args.engine)?;
    let (reference, kernels) = match facts.kind {
        "cpu" if facts.name == portable.facts().name => (report::NONE, Ok(Vec::new())),
        "cpu" => (report::PORTABLE, compare(&portable)),
        _ => (report::PROCESSOR, compare(cpu)),
    };
    let rates = rates::measure(device, checkpoint, &facts).map_err(|error| one_line(&error));
    let published = match args.model.dir() {
        Some(_) if published::is_published(checkpoint) => {
            let agreement = published::compare(args, checkpoint, device);
            Some(agreement.map_err(|error| one_line(&error)))
        }
        _ => None,
    };
    Ok(Measured { checked_on: source.description(), reference, kernels, rates, published })
}

/// Opens the checkpoint that the flags name; a `.lily` file is compared with its checksums.
fn named(args: &DoctorArgs) -> Result<lily_checkpoint::Checkpoint> {
    let checkpoint = checkpoints::open(&args.model)?;
    if let Some(path) = args.model.dir() {
        // Loading does not compare weights with checksums; damaged ones would fail every later check.
        super::pack::verify(&checkpoint, path)?;
    }
    Ok(checkpoint)
}

/// A device as JSON.
fn facts(f: &DeviceFacts) -> serde_json::Value {
    serde_json::json!({"kind": f.kind, "name": f.name, "parallelism": f.parallelism})
}
