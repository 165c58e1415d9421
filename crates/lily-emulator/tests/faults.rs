//! Faults planted in the real kernels: each is caught, by the run-time or by the CPU's result.

#[path = "probe/check.rs"]
#[allow(dead_code, reason = "shared with the probe")]
mod check;
#[path = "probe/plans.rs"]
#[allow(dead_code, reason = "shared with the probe")]
mod plans;
mod support;

use lily_cpu::{CpuDevice, CpuOptions};
use lily_device::{Device, LoadedModel, NoProgress};
use lily_emulator::{Edit, EmulatorDevice, EmulatorOptions};
use lily_kernels::sources;
use lily_plan::buffer::Elem;
use lily_plan::plan::Phase;

/// A change to a kernel's source.
struct Planted {
    template: &'static str,
    from: &'static str,
    to: &'static str,
    phase: Phase,
    rows: usize,
}

/// What the first faulty step of a plan is caught for; `None` when nothing is noticed, and where
/// this machine cannot run the test.
fn caught(fault: &Planted) -> Option<String> {
    let goldens = support::goldens()?;
    let golden = &goldens[0];
    let variant = plans::variants(Elem::F32).into_iter().find(|v| v.is(fault.phase, fault.rows))?;
    let plan = variant.plan(&golden.checkpoint);
    let mut cpu = CpuDevice::new(CpuOptions { threads: Some(1), isa: None })
        .load(&golden.checkpoint, &NoProgress)
        .unwrap();
    let edit = Edit { from: fault.from.to_owned(), to: fault.to.to_owned() };
    let edits = if fault.from.is_empty() { Vec::new() } else { vec![edit] };
    let options = EmulatorOptions { edits, ..EmulatorOptions::default() };
    let device = EmulatorDevice::new(options).unwrap();
    let mut emulator = device.load_model(&golden.checkpoint, &NoProgress).unwrap();
    let on_cpu = cpu.prepare(plan.clone()).unwrap();
    let chosen = std::cell::OnceCell::new();
    let (on_emulator, reasons) = emulator.prepare_steps(plan.clone(), &|index, launch| {
        launch.kernel.template == fault.template && *chosen.get_or_init(|| index) == index
    });
    assert!(reasons.is_empty(), "{reasons:?}");
    let index = *chosen.get().expect("the plan has such a step");
    let module = emulator.launch(on_emulator, index).unwrap().kernel.module;
    let source = sources::module(module).unwrap();
    assert!(source.contains(fault.from), "the source no longer says {:?}", fault.from);

    let scenario = &variant.scenarios()[0];
    let mut buffers = plans::random_buffers(plan.plan(), scenario);
    for &step in plan.stages().iter().flatten() {
        let mut ours = buffers.clone();
        cpu.probe(on_cpu, step, &mut buffers).unwrap();
        if step != index {
            continue;
        }
        if let Err(error) = emulator.probe(on_emulator, index, &mut ours) {
            return Some(error.to_string());
        }
        let signature = plan.plan().steps[index].op.signature();
        let parts = check::written(plan.plan(), &signature, scenario.rows);
        let problem = |part| check::compare(part, &buffers, &ours).problem(part);
        return parts.iter().find_map(problem);
    }
    unreachable!("the step is in a stage");
}

fn assert_caught(fault: &Planted, because: &str) {
    if support::goldens().is_none() {
        return;
    }
    let found = caught(fault).unwrap_or_else(|| panic!("nothing noticed in {}", fault.template));
    assert!(found.contains(because), "{found}");
}

#[test]
fn a_barrier_deleted_from_a_reduction_is_caught() {
    let fault = Planted {
        template: "argmax_parts",
        from: "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  best.key = lane < 8",
        to: "  best.key = lane < 8",
        phase: Phase::Decode,
        rows: 1,
    };
    assert_caught(&fault, "expected");
}

#[test]
fn a_barrier_deleted_before_a_product_of_tiles_is_caught() {
    let fault = Planted {
        template: "matmul",
        from: "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    if (k < LAST)",
        to: "    if (k < LAST)",
        phase: Phase::Prefill,
        rows: 33,
    };
    assert_caught(&fault, "expected");
}

#[test]
fn a_barrier_deleted_before_tiles_are_overwritten_is_caught() {
    let fault = Planted {
        template: "matmul",
        from: "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    store_x(xr",
        to: "    store_x(xr",
        phase: Phase::Prefill,
        rows: 33,
    };
    assert_caught(&fault, "expected");
}

#[test]
fn a_barrier_that_one_simdgroup_skips_is_caught() {
    let fault = Planted {
        template: "argmax_parts",
        from: "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  best.key = lane < 8",
        to: "  if (sg != 7) threadgroup_barrier(mem_flags::mem_threadgroup);\n  best.key = lane < 8",
        phase: Phase::Decode,
        rows: 1,
    };
    assert_caught(&fault, "not all threads reach the same barrier");
}

#[test]
fn a_loop_that_runs_once_too_often_is_caught() {
    let fault = Planted {
        template: "argmax_parts",
        from: "i < end; i += 256) keep_larger(best, candidate_key(logits",
        to: "i <= end; i += 256) keep_larger(best, candidate_key(logits",
        phase: Phase::Decode,
        rows: 1,
    };
    assert_caught(&fault, "of buffer 0, which has");
}

#[test]
fn a_write_one_element_too_far_is_caught() {
    let fault = Planted {
        template: "group_by_expert",
        from: "offsets[N_EXPERTS] = slots",
        to: "offsets[N_EXPERTS + 1] = slots",
        phase: Phase::Prefill,
        rows: 33,
    };
    assert_caught(&fault, "of buffer 1, which has");
}

#[test]
fn an_index_that_is_off_by_one_inside_a_buffer_is_caught() {
    let fault = Planted {
        template: "conv",
        from: "if (t >= 0) state[(position + uint(t)) % WIDTH",
        to: "if (t >= 0) state[(position + uint(t) + 1) % WIDTH",
        phase: Phase::Prefill,
        rows: 33,
    };
    assert_caught(&fault, "state[");
}

#[test]
fn swapped_buffers_are_caught() {
    let fault = Planted {
        template: "rms_norm",
        from: "    const device float* x [[buffer(0)]],\n    const device float* weight [[buffer(1)]],",
        to: "    const device float* x [[buffer(1)]],\n    const device float* weight [[buffer(0)]],",
        phase: Phase::Prefill,
        rows: 33,
    };
    assert_caught(&fault, "of buffer 1, which has");
}

#[test]
fn results_that_are_not_written_are_caught() {
    let fault = Planted {
        template: "rms_norm",
        from: "if (at < uint(VECTORS)) store4(out",
        to: "if (at + 1 < uint(VECTORS)) store4(out",
        phase: Phase::Prefill,
        rows: 33,
    };
    assert_caught(&fault, "is NaN, expected");
}

#[test]
fn a_kernel_without_a_fault_passes() {
    for (template, phase, rows) in [
        ("argmax_parts", Phase::Decode, 1),
        ("matmul", Phase::Prefill, 33),
        ("group_by_expert", Phase::Prefill, 33),
        ("conv", Phase::Prefill, 33),
        ("rms_norm", Phase::Prefill, 33),
    ] {
        let fault = Planted { template, from: "", to: "", phase, rows };
        assert_eq!(caught(&fault), None, "{template}");
    }
}
