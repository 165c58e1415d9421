//! `lily doctor`: what this machine is, and whether every kernel computes on it what the processor
//! computes.

mod kernels;
mod model;
mod published;
mod rates;

use std::fmt::Write as _;

use anyhow::Result;
use lily_device::{Device, DeviceFacts};
use serde_json::{Value, json};

use self::kernels::Verdict;
use super::output::{bytes, print, print_pretty};
use crate::args::DoctorArgs;
use crate::device::{self, Chosen};
use crate::model as checkpoints;

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let Chosen { device, memory_limit } = device::choose(&args.engine)?;
    let facts = device.facts();
    let source = model::Source::of(args)?;
    let checkpoint = source.checkpoint();

    let cpu = device::processor(&args.engine);
    let kernels = if facts.kind == "cpu" {
        Vec::new()
    } else {
        kernels::check(checkpoint, &cpu, device.as_ref())?
    };
    let rates = rates::measure(device.as_ref(), checkpoint, &facts)?;
    let published = match args.model.dir() {
        Some(_) if published::is_published(checkpoint) => {
            Some(published::compare(args, checkpoint, device.as_ref())?)
        }
        _ => None,
    };
    let report = Report {
        facts,
        cpu: cpu.facts(),
        memory: memory_limit,
        checked_on: source.description(),
        kernels,
        rates,
        published,
    };
    match args.json {
        true => print_pretty(&report.json())?,
        false => print(&report.text())?,
    }
    if report.failed() { Err(anyhow::anyhow!("some checks failed")) } else { Ok(()) }
}

/// Everything that was found.
struct Report {
    facts: DeviceFacts,
    cpu: DeviceFacts,
    memory: Option<u64>,
    checked_on: String,
    kernels: Vec<Verdict>,
    rates: rates::Rates,
    published: Option<published::Agreement>,
}

impl Report {
    fn failed(&self) -> bool {
        self.kernels.iter().any(|verdict| !verdict.passed())
            || self.published.as_ref().is_some_and(|agreement| !agreement.passed())
    }

    /// Fusions whose operation failed: without them the plan uses other kernels.
    fn fusions_to_avoid(&self) -> Vec<&'static str> {
        let failed = self.kernels.iter().filter(|verdict| !verdict.passed());
        let mut fusions: Vec<_> =
            failed.filter_map(|verdict| kernels::fusion_of(verdict.op)).collect();
        fusions.sort_unstable();
        fusions.dedup();
        fusions
    }

    fn advice(&self) -> String {
        let failed = self.kernels.iter().filter(|verdict| !verdict.passed()).count();
        if failed == 0 {
            return "nothing to do".to_owned();
        }
        let avoid = self.fusions_to_avoid();
        let unfused = self
            .kernels
            .iter()
            .any(|verdict| !verdict.passed() && kernels::fusion_of(verdict.op).is_none());
        if unfused || avoid.is_empty() {
            return "use --device cpu, and report the failed kernels".to_owned();
        }
        let kept: Vec<_> =
            lily_model::Fusions::names().into_iter().filter(|name| !avoid.contains(name)).collect();
        format!("use --fuse {} (or --device cpu), and report the failed kernels", kept.join(","))
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            writeln!(out, "{name:<12}{value}").expect("a string takes all");
        };
        line("lily", env!("CARGO_PKG_VERSION").to_owned());
        line("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
        let of = |f: &DeviceFacts| format!("{} {} ({} units)", f.kind, f.name, f.parallelism);
        line("device", of(&self.facts));
        line("processor", of(&self.cpu));
        if let Some(memory) = self.memory {
            line("memory", format!("{} may be used", bytes(memory)));
        }
        line("checked on", self.checked_on.clone());
        match &self.kernels[..] {
            [] => line("kernels", "none: the processor is the reference itself".to_owned()),
            kernels => {
                let bad = kernels.iter().filter(|verdict| !verdict.passed()).count();
                line(
                    "kernels",
                    format!("{} compared with the processor, {bad} failed", kernels.len()),
                );
                for verdict in kernels {
                    line("", verdict.text());
                }
            }
        }
        line(
            "reads",
            format!("{:.1} GB/s of weights in one matrix-vector product", self.rates.read),
        );
        line(
            "products",
            format!("{:.3} TFLOP/s in products of {} rows", self.rates.tflops, self.rates.rows),
        );
        if let Some(agreement) = &self.published {
            line("published", agreement.text());
        }
        line("advice", self.advice());
        out
    }

    fn json(&self) -> Value {
        let facts =
            |f: &DeviceFacts| json!({"kind": f.kind, "name": f.name, "parallelism": f.parallelism});
        json!({
            "lily": env!("CARGO_PKG_VERSION"),
            "system": {"os": std::env::consts::OS, "arch": std::env::consts::ARCH},
            "device": facts(&self.facts),
            "processor": facts(&self.cpu),
            "memory_limit": self.memory,
            "checked_on": self.checked_on,
            "kernels": self.kernels.iter().map(Verdict::json).collect::<Vec<_>>(),
            "read_gb_per_s": self.rates.read,
            "product_tflop_per_s": self.rates.tflops,
            "product_rows": self.rates.rows,
            "published": self.published.as_ref().map(published::Agreement::json),
            "passed": !self.failed(),
            "advice": self.advice(),
        })
    }
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
