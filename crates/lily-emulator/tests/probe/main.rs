//! Every step of every plan of the goldens on the emulator, against the CPU device.
//!
//! Buffers start out random; a step gets what the CPU left behind, so that indices and offsets are
//! those of a real run. A kernel is probed once per instantiation, grid and position.
//!
//! `LILY_PROBE=linear,moe cargo test -p lily-emulator --test probe -- --nocapture` probes only steps
//! whose operation, template, folder or name contains one of the words.

mod check;
#[allow(dead_code, reason = "shared with the planted faults")]
mod plans;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write as _;

use lily_cpu::{CpuDevice, CpuOptions};
use lily_device::{Device, LoadedModel, NoProgress, PlanId};
use lily_emulator::{EmulatorDevice, EmulatorError, EmulatorModel, EmulatorOptions};
use lily_kernels::launch::{Binding, Kernel, Launch};
use lily_kernels::lower::Tuning;
use lily_plan::buffer::Elem;
use lily_plan::valid::ValidPlan;

use check::{Outcome, compare, written};
use plans::{Scenario, random_buffers};
use support::{Golden, goldens};

/// What two launches share when they do the same work.
type Key = (Kernel, [u32; 3], u32, Option<usize>);

/// What came out, by operation.
#[derive(Default)]
struct Report {
    probed: HashSet<Key>,
    templates: BTreeSet<&'static str>,
    worst: BTreeMap<&'static str, (usize, Outcome, String)>,
    missing: BTreeSet<String>,
    failures: BTreeSet<String>,
}

#[test]
fn every_kernel_gives_what_the_cpu_gives() {
    let Some(goldens) = goldens() else { return };
    let mut report = Report::default();
    for golden in &goldens {
        report.golden(golden);
    }
    report.print();
    let Report { failures, missing, templates, .. } = &report;
    assert!(failures.is_empty(), "{} failures, all of them above", failures.len());
    assert!(missing.is_empty() || !plans::COMPLETE, "operations without a kernel: {missing:?}");
    let all = words("LILY_PROBE").is_empty() && words("LILY_PROBE_GOLDEN").is_empty();
    assert!(templates.contains("gated_delta_chunks") || !all, "no scan went by chunks");
}

/// Whether `LILY_PROBE` asks for a step.
fn wanted(words: &[String], step: &lily_plan::plan::Step, launch: &Launch) -> bool {
    let kind = step.op.signature().kind;
    let module = format!("{:?}", launch.kernel.module).to_lowercase();
    let names = [kind, launch.kernel.template, &step.name, &module];
    words.is_empty() || words.iter().any(|word| names.iter().any(|name| name.contains(&**word)))
}

fn words(variable: &str) -> Vec<String> {
    let value = std::env::var(variable).unwrap_or_default();
    value.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

impl Report {
    fn golden(&mut self, golden: &Golden) {
        let only = words("LILY_PROBE_GOLDEN");
        if !only.is_empty() && !only.iter().any(|word| golden.name.contains(&**word)) {
            return;
        }
        for kv in [Elem::F32, Elem::Bf16] {
            self.variants(golden, kv, &Tuning::default(), None);
        }
        // What Metal's choices leave out.
        self.variants(golden, Elem::F32, &Tuning::nvidia(), Some("gated_delta_chunks"));
    }

    fn variants(&mut self, golden: &Golden, kv: Elem, tuning: &Tuning, only: Option<&str>) {
        let mut cpu = CpuDevice::new(CpuOptions { threads: Some(1), isa: None })
            .load(&golden.checkpoint, &NoProgress)
            .unwrap();
        let tuning = tuning.clone();
        let options = EmulatorOptions { tuning, ..EmulatorOptions::default() };
        let device = EmulatorDevice::new(options).unwrap();
        let mut emulator = device.load_model(&golden.checkpoint, &NoProgress).unwrap();
        let words = words("LILY_PROBE");
        for variant in plans::variants(kv) {
            let plan = variant.plan(&golden.checkpoint);
            let on_cpu = cpu.prepare(plan.clone()).unwrap();
            let steps = plan.plan().steps.clone();
            let is_new =
                |launch: &Launch, s: &Scenario| !self.probed.contains(&key(launch, s, &plan));
            let (on_emulator, reasons) = emulator.prepare_steps(plan.clone(), &|index, launch| {
                wanted(&words, &steps[index], launch)
                    && only.is_none_or(|template| template == launch.kernel.template)
                    && variant.scenarios().iter().any(|s| is_new(launch, s))
            });
            for reason in reasons {
                match reason {
                    EmulatorError::Lower(missing) => {
                        self.missing.insert(shorten(&missing.to_string()));
                    }
                    broken => {
                        self.failures.insert(broken.to_string());
                    }
                }
            }
            for scenario in variant.scenarios() {
                let context = format!("{}, {variant}, {scenario}", golden.name);
                let ids = (on_cpu, on_emulator);
                self.scenario(&context, (&*cpu, &emulator), ids, &plan, &scenario);
            }
        }
    }

    fn scenario(
        &mut self,
        context: &str,
        (cpu, emulator): (&dyn LoadedModel, &EmulatorModel),
        (on_cpu, on_emulator): (PlanId, PlanId),
        plan: &ValidPlan,
        scenario: &Scenario,
    ) {
        let mut buffers = random_buffers(plan.plan(), scenario);
        for &index in plan.stages().iter().flatten() {
            let step = &plan.plan().steps[index];
            let mut ours = buffers.clone();
            cpu.probe(on_cpu, index, &mut buffers).unwrap();
            let Some(launch) = emulator.launch(on_emulator, index) else { continue };
            if !self.probed.insert(key(launch, scenario, plan)) {
                continue;
            }
            self.templates.insert(launch.kernel.template);
            let what = format!("{} ({}), {context}", step.name, launch.kernel.host_name());
            if let Err(error) = emulator.probe(on_emulator, index, &mut ours) {
                self.failures.insert(format!("{what}: {error}"));
                continue;
            }
            let signature = step.op.signature();
            for part in written(plan.plan(), &signature, scenario.rows) {
                let outcome = compare(&part, &buffers, &ours);
                if let Some(problem) = outcome.problem(&part) {
                    self.failures.insert(format!("{what}: {problem}"));
                }
                let entry = self.worst.entry(signature.kind);
                let entry = entry.or_insert_with(|| (0, Outcome::default(), String::new()));
                entry.0 += 1;
                if outcome.error >= entry.1.error {
                    entry.1 = outcome;
                    entry.2 = format!("{} of {what}", part.name);
                }
            }
        }
    }

    fn print(&self) {
        let mut out = std::io::stderr().lock();
        for (kind, (n, outcome, what)) in &self.worst {
            let error = outcome.error;
            drop(writeln!(out, "{kind:22} {n:4} compared, largest error {error:.1e}: {what}"));
        }
        for missing in &self.missing {
            drop(writeln!(out, "missing: {missing}"));
        }
        for failure in &self.failures {
            drop(writeln!(out, "FAILED {failure}"));
        }
    }
}

/// The reason without the name of the step, of which there is one per layer.
fn shorten(message: &str) -> String {
    message.split_once(": ").map_or(message, |(_, reason)| reason).to_owned()
}

fn key(launch: &Launch, scenario: &Scenario, plan: &ValidPlan) -> Key {
    let control = plan.plan().ports.control;
    let has_position = launch
        .bindings
        .iter()
        .any(|binding| matches!(binding, Binding::Region(region) if region.buffer == control));
    let grid = launch.grid.map(|extent| extent.groups(scenario.rows as u32));
    let rows = scenario.rows as u32;
    (launch.kernel.clone(), grid, rows, has_position.then_some(scenario.position))
}
