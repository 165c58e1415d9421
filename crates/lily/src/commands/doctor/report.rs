//! What the doctor found, for people and for programs.

use std::fmt::Write as _;

use lily_device::DeviceFacts;
use serde_json::{Value, json};

use super::kernels::{Verdict, fusion_of};
use super::{facts, published, rates};
use crate::commands::output::bytes;
use crate::device::describe;

/// What the kernels of a GPU are compared with.
pub(super) const PROCESSOR: &str = "the processor";
/// What the kernels of the processor are compared with.
pub(super) const PORTABLE: &str = "portable code";
/// What portable code is compared with.
pub(super) const NONE: &str = "nothing";

/// Everything that was found.
pub(super) struct Report {
    pub(super) device: Device,
    pub(super) processor: DeviceFacts,
    pub(super) others: Vec<Other>,
}

/// The device to be checked.
pub(super) enum Device {
    Used { facts: DeviceFacts, memory: Option<u64>, measured: Measured },
    Missing { kind: &'static str, why: String },
}

/// A device that is not checked.
pub(super) struct Other {
    pub(super) kind: &'static str,
    pub(super) why: String,
    /// The machine may have such a device that something keeps from being used.
    pub(super) repairable: bool,
}

/// What the checks gave, or why they could not be carried out.
pub(super) struct Measured {
    pub(super) checked_on: String,
    pub(super) reference: &'static str,
    pub(super) kernels: Result<Vec<Verdict>, String>,
    pub(super) rates: Result<rates::Rates, String>,
    pub(super) published: Option<Result<published::Agreement, String>>,
}

impl Measured {
    fn failed_kernels(&self) -> impl Iterator<Item = &Verdict> {
        self.kernels.iter().flatten().filter(|verdict| !verdict.passed())
    }

    fn failed(&self) -> bool {
        let disagrees = |agreement: &Result<published::Agreement, String>| {
            !agreement.as_ref().is_ok_and(published::Agreement::passed)
        };
        self.kernels.is_err()
            || self.rates.is_err()
            || self.failed_kernels().next().is_some()
            || self.published.as_ref().is_some_and(disagrees)
    }

    /// What to do when a check failed.
    fn advice(&self, on_processor: bool) -> String {
        // Fusions whose operation failed: without them the plan uses other kernels.
        let mut avoid: Vec<_> =
            self.failed_kernels().filter_map(|verdict| fusion_of(verdict.op)).collect();
        avoid.sort_unstable();
        avoid.dedup();
        let unfused = self.failed_kernels().any(|verdict| fusion_of(verdict.op).is_none());
        if unfused || avoid.is_empty() {
            let elsewhere = if on_processor { "" } else { "use --device cpu, and " };
            return format!("{elsewhere}report the checks that failed");
        }
        let kept: Vec<_> =
            lily_model::Fusions::names().into_iter().filter(|name| !avoid.contains(name)).collect();
        let otherwise = if on_processor { "" } else { " (or --device cpu)" };
        format!("use --fuse {}{otherwise}, and report the failed kernels", kept.join(","))
    }
}

impl Report {
    pub(super) fn failed(&self) -> bool {
        self.measured().is_none_or(Measured::failed)
    }

    fn measured(&self) -> Option<&Measured> {
        match &self.device {
            Device::Used { measured, .. } => Some(measured),
            Device::Missing { .. } => None,
        }
    }

    fn advice(&self) -> String {
        let (facts, measured) = match &self.device {
            Device::Used { facts, measured, .. } => (facts, measured),
            Device::Missing { kind, .. } => {
                return format!("leave --device {kind} out, or provide what it lacks");
            }
        };
        if measured.failed() {
            return measured.advice(facts.kind == "cpu");
        }
        if let Some(Other { kind, why, .. }) = self.others.iter().find(|other| other.repairable) {
            return format!("to use {kind}, repair this: {why}");
        }
        let checked = match measured.reference {
            NONE => "no kernel was checked",
            _ => "every check passed",
        };
        format!("nothing to do: {checked}")
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            writeln!(out, "{name:<12}{value}").expect("a string takes all");
        };
        line("lily", env!("CARGO_PKG_VERSION").to_owned());
        line("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
        match &self.device {
            Device::Used { facts, .. } => line("device", describe(facts)),
            Device::Missing { kind, why } => {
                line("device", format!("FAILED: {kind} cannot be used: {why}"));
            }
        }
        for Other { kind, why, .. } in &self.others {
            line(kind, format!("not used: {why}"));
        }
        line("processor", describe(&self.processor));
        if let Device::Used { memory: Some(memory), .. } = self.device {
            line("memory", format!("{} may be used", bytes(memory)));
        }
        if let Some(measured) = self.measured() {
            measured.lines(&mut line);
        }
        line("advice", self.advice());
        out
    }

    pub(super) fn json(&self) -> Value {
        let (device, memory) = match &self.device {
            Device::Used { facts: found, memory, .. } => (facts(found), *memory),
            Device::Missing { kind, why } => (json!({"kind": kind, "error": why}), None),
        };
        let others = self.others.iter();
        let others = others.map(|other| json!({"kind": other.kind, "not_used": other.why}));
        let measured = self.measured();
        let rates = measured.and_then(|m| m.rates.as_ref().ok());
        let kernels = measured.and_then(|m| m.kernels.as_ref().ok()).into_iter().flatten();
        let published = measured.and_then(|m| m.published.as_ref()?.as_ref().ok());
        json!({
            "lily": env!("CARGO_PKG_VERSION"),
            "system": {"os": std::env::consts::OS, "arch": std::env::consts::ARCH},
            "device": device,
            "other_devices": others.collect::<Vec<_>>(),
            "processor": facts(&self.processor),
            "memory_limit": memory,
            "checked_on": measured.map(|m| &m.checked_on),
            "compared_with": measured.map(|m| m.reference).filter(|&reference| reference != NONE),
            "kernels": kernels.map(Verdict::json).collect::<Vec<_>>(),
            "read_gb_per_s": rates.map(|rates| rates.read),
            "product_tflop_per_s": rates.map(|rates| rates.tflops),
            "product_rows": rates.map(|rates| rates.rows),
            "published": published.map(published::Agreement::json),
            "errors": measured.map(Measured::errors).unwrap_or_default(),
            "passed": !self.failed(),
            "advice": self.advice(),
        })
    }
}

impl Measured {
    fn lines(&self, line: &mut impl FnMut(&str, String)) {
        line("checked on", self.checked_on.clone());
        match &self.kernels {
            Err(error) => line("kernels", format!("FAILED: {error}")),
            Ok(_) if self.reference == NONE => {
                let why = "portable code is what others are compared with";
                line("kernels", format!("not checked: {why}"));
            }
            Ok(kernels) => {
                let (all, bad) = (kernels.len(), self.failed_kernels().count());
                line("kernels", format!("{all} compared with {}, {bad} failed", self.reference));
                for verdict in kernels {
                    line("", verdict.text());
                }
            }
        }
        match &self.rates {
            Err(error) => line("speed", format!("FAILED: {error}")),
            Ok(rates::Rates { read, tflops, rows }) => {
                line("reads", format!("{read:.1} GB/s of weights in one matrix-vector product"));
                line("products", format!("{tflops:.3} TFLOP/s in products of {rows} rows"));
            }
        }
        match &self.published {
            Some(Ok(agreement)) => line("published", agreement.text()),
            Some(Err(error)) => line("published", format!("FAILED: {error}")),
            None => {}
        }
    }

    /// Why checks could not be carried out, by check.
    fn errors(&self) -> serde_json::Map<String, Value> {
        let published = self.published.as_ref().and_then(|checked| checked.as_ref().err());
        [("kernels", self.kernels.as_ref().err()), ("rates", self.rates.as_ref().err())]
            .into_iter()
            .chain([("published", published)])
            .filter_map(|(check, error)| Some((check.to_owned(), json!(error?))))
            .collect()
    }
}
