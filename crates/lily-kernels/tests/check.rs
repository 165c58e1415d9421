//! The dialect check: every kernel that a plan needs, and faults that it has to find.

mod common;

use std::collections::BTreeMap;

use lily_kernels::check::{self, BindingError, CheckError, Clang};
use lily_kernels::launch::{Binding, Kernel, Launch, Module};
use lily_kernels::lower::Tuning;
use lily_kernels::sources;
use lily_kernels::translate::{BufferKind, Entry, EntryBuffer, Problem};
use lily_plan::op::Op;

/// Clang, unless it is missing and need not be there.
fn clang() -> Option<Clang> {
    match Clang::find() {
        Ok(clang) => Some(clang),
        Err(error) => {
            let required = std::env::var("LILY_REQUIRE_CLANG").is_ok_and(|v| v == "1");
            assert!(!required, "{error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// A kernel with the given body, behind some other code.
fn kernel(before: &str, body: &str) -> String {
    format!(
        "#include <metal_stdlib>\nusing namespace metal;\n{before}\n#line 1 \"kernels/k.metal\"\n\
         template <typename T>\n\
         [[kernel, max_total_threads_per_threadgroup(32)]] void k(\n\
         const device T* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_index_in_threadgroup]]) {{\n{body}\n}}\n\
         template [[host_name(\"k_1\")]] [[kernel]] decltype(k<float>) k<float>;\n"
    )
}

#[track_caller]
fn accepted(before: &str, body: &str) {
    let Some(clang) = clang() else { return };
    if let Err(error) = clang.check(&kernel(before, body)) {
        panic!("{error}");
    }
}

/// The compiler's messages; the fault is on line 5.
#[track_caller]
fn rejected(before: &str, body: &str) {
    let Some(clang) = clang() else { return };
    match clang.check(&kernel(before, body)) {
        Err(CheckError::Rejected { log }) => {
            assert!(log.contains("kernels/k.metal:5:"), "another line:\n{log}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("accepted: {body}"),
    }
}

#[track_caller]
fn refused(before: &str, body: &str, expected: Problem) {
    let Some(clang) = clang() else { return };
    match clang.check(&kernel(before, body)) {
        Err(CheckError::Translate(error)) => assert_eq!(error.problem, expected),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("accepted: {body}"),
    }
}

#[test]
fn correct_kernels_are_accepted() {
    accepted("", "y[i] = x[i];");
    accepted(
        "",
        "threadgroup float t[32][2]; t[i][0] = x[i]; threadgroup float* p = t[i]; y[i] = *p;",
    );
    accepted("", "float4 v = float4(x[i]); y[i] = dot(v.xyzw, float4(v.xy, 1.0f, 2.0f));");
    accepted("", "thread float a[2]; thread float* p = a; p[0] = 1; y[i] = p[0];");
    accepted("float first(const device float* p) { return p[0]; }", "y[i] = first(x);");
    accepted("", "bfloat b = bfloat(x[i]); half h = half(float(b)); y[i] = float(h);");
    accepted(
        "struct Tile { float v[4]; thread float& at(int j) thread { return v[j]; } };",
        "Tile t; t.at(0) = x[i]; y[i] = t.at(0);",
    );
}

#[test]
fn a_pointer_to_another_address_space_is_found() {
    rejected("", "threadgroup float t[32]; device float* p = (device float*)t; y[i] = p[0];");
    rejected("", "threadgroup float t[32]; device float* p = t; y[i] = p[0];");
    rejected("", "threadgroup float t[32]; thread float* p = &t[0]; y[i] = p[0];");
    rejected(
        "float first(const device float* p) { return p[0]; }",
        "threadgroup float t[32]; y[i] = first(t);",
    );
}

#[test]
fn an_implicit_conversion_between_16_bit_floats_is_found() {
    rejected("", "bfloat b = bfloat(x[i]); half h = b; y[i] = float(h);");
    rejected("", "bfloat b = bfloat(x[i]); y[i] = simd_sum(b);");
}

#[test]
fn a_write_through_a_pointer_to_const_is_found() {
    rejected("", "x[i] = 1.0f; y[i] = 0.0f;");
}

#[test]
fn a_name_that_metal_does_not_know_is_found() {
    rejected("", "y[i] = simd_summ(x[i]);");
}

#[test]
fn threadgroup_memory_beyond_32_kib_is_found() {
    let Some(clang) = clang() else { return };
    accepted("", "threadgroup float4 a[1024]; threadgroup float b[4096]; y[i] = b[i] + a[i].x;");
    let body = "threadgroup float4 a[1024]; threadgroup float b[4096]; threadgroup uint c; y[i] = b[i] + a[i].x + c;";
    match clang.check(&kernel("", body)) {
        Err(CheckError::Rejected { log }) => assert!(log.contains("threadgroup memory"), "{log}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pointer_without_an_address_space_is_refused() {
    refused("", "float a[4]; float* p = a; y[i] = p[0];", Problem::BarePointer("float".into()));
    refused("", "for (auto& v : a) v = 0;", Problem::BarePointer("auto".into()));
    let before = "struct S { uint n; };\nvoid f(const S& s) {}";
    refused(before, "", Problem::BarePointer("S".into()));
}

#[test]
fn a_method_that_does_not_say_where_its_object_lies_is_refused() {
    let before = "struct Tile { float v[4]; float at(int j) const { return v[j]; } };";
    refused(before, "Tile t; y[i] = t.at(0);", Problem::MethodWithoutThread);
}

#[test]
fn every_kernel_of_the_reference_plans_is_accepted() {
    let (Some(clang), Some(shared)) = (clang(), common::shared()) else { return };
    // With the twins for tensor units, which leave no product of bfloat to the others.
    let tensor_units = Tuning { tensor_units: true, ..Tuning::default() };
    let mut launches = common::launches(&shared);
    launches.extend(common::launches_for(&common::checkpoints(&shared), &tensor_units));
    let kernels = by_module(launches);
    assert!(kernels.contains_key(&Module::Tensor));
    assert_accepted(&clang, kernels);
    // And with NVIDIA's choices: among them the scan by chunks, which Metal's leave out, and the forms of
    // rows and of clusters, of which those of the large shape are more.
    let checkpoints = [vec![shared.join("qwen36")], common::checkpoints(&shared)].concat();
    let launches = common::launches_for(&checkpoints, &Tuning::nvidia());
    assert!(launches.iter().any(|launch| launch.kernel.template == "gated_delta_chunks"));
    assert_accepted(&clang.with_native_forms(), by_module(launches));
}

fn by_module(launches: Vec<Launch>) -> BTreeMap<Module, Vec<Kernel>> {
    let mut kernels: BTreeMap<Module, Vec<Kernel>> = BTreeMap::new();
    for launch in launches {
        let kernels = kernels.entry(launch.kernel.module).or_default();
        if !kernels.contains(&launch.kernel) {
            kernels.push(launch.kernel);
        }
    }
    kernels
}

fn assert_accepted(clang: &Clang, kernels: BTreeMap<Module, Vec<Kernel>>) {
    for (module, kernels) in kernels {
        let library = sources::library(module, &kernels.iter().collect::<Vec<_>>()).unwrap();
        if let Err(error) = clang.check(&library) {
            panic!("{module:?}: {error}");
        }
    }
}

#[test]
fn an_operand_of_tensor_units_in_another_address_space_is_found() {
    let (Some(clang), Some(shared)) = (clang(), common::shared()) else { return };
    let tensor_units = Tuning { tensor_units: true, ..Tuning::default() };
    let launches = common::launches_for(&common::checkpoints(&shared), &tensor_units);
    let kernel = launches.iter().find(|l| l.kernel.template == "tensor_matmul").unwrap();
    let library = sources::library(Module::Tensor, &[&kernel.kernel]).unwrap();
    for (right, wrong) in [
        ("tensor<threadgroup bfloat", "tensor<device bfloat"),
        ("staged_rows b = rows_from<B, COLUMNS>(wb)", "threadgroup bfloat* b = wb"),
        ("execution_simdgroup>", "2>"),
    ] {
        assert!(library.contains(right), "{right}");
        match clang.check(&library.replace(right, wrong)) {
            Err(CheckError::Rejected { log }) => {
                assert!(log.contains("kernels/tensor/block.h:"), "{wrong}:\n{log}");
            }
            other => panic!("{wrong}: {other:?}"),
        }
    }
}

#[test]
fn digits_in_another_address_space_are_found() {
    let (Some(clang), Some(shared)) = (clang(), common::shared()) else { return };
    let launches = common::launches_for(&[shared.join("qwen36")], &Tuning::nvidia());
    let kernel = launches.iter().find(|l| l.kernel.template == "stacked_matvec").unwrap();
    let library = sources::library(Module::Linear, &[&kernel.kernel]).unwrap();
    let (right, wrong) = ("const threadgroup uint* from = busy", "const device uint* from = busy");
    assert!(library.contains(right));
    match clang.with_native_forms().check(&library.replace(right, wrong)) {
        Err(CheckError::Rejected { log }) => assert!(log.contains("common/digits.h:"), "{log}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_launch_of_the_reference_plans_binds_what_its_kernel_takes() {
    let Some(shared) = common::shared() else { return };
    for checkpoint in common::checkpoints(&shared) {
        let with = |tuning| common::plans_for(&checkpoint, &tuning);
        let plans = [with(Tuning::default()), with(Tuning::nvidia())];
        for (plan, program) in plans.into_iter().flatten() {
            let entries = common::entries(&program);
            for (step, launch) in plan.plan().steps.iter().zip(&program.launches) {
                let name = launch.kernel.host_name();
                if let Err(error) = check::bindings(&step.op, launch, &entries[&name]) {
                    panic!("{}: {name}: {error}", step.name);
                }
            }
        }
    }
}

/// A step that reads, writes and takes a value; its launch, and the entry of its kernel.
fn launch_and_entry(shared: &std::path::Path) -> (Op, Launch, Entry) {
    let checkpoint = common::checkpoints(shared).remove(0);
    let kind = |launch: &Launch| launch.kernel.template == "rope_append";
    let (plan, program, at) = (common::plans(&checkpoint).into_iter())
        .find_map(|(plan, program)| {
            let at = program.launches.iter().position(kind)?;
            Some((plan, program, at))
        })
        .expect("a plan with a rope_append of its own");
    let entries = common::entries(&program);
    let launch = program.launches[at].clone();
    let entry = entries[&launch.kernel.host_name()].clone();
    (plan.plan().steps[at].op.clone(), launch, entry)
}

#[test]
fn bindings_that_do_not_fit_are_found() {
    let Some(shared) = common::shared() else { return };
    let (op, launch, entry) = launch_and_entry(&shared);
    let found = |change: &dyn Fn(&mut Launch, &mut Entry)| {
        let (mut launch, mut entry) = (launch.clone(), entry.clone());
        change(&mut launch, &mut entry);
        check::bindings(&op, &launch, &entry).err()
    };
    assert_eq!(found(&|_, _| {}), None);

    let error = found(&|launch, _| drop(launch.bindings.pop()));
    assert!(matches!(error, Some(BindingError::Count { .. })), "{error:?}");

    let value = entry.buffers.iter().position(|b| b.kind == BufferKind::Value).unwrap();
    let error = found(&|launch, _| launch.bindings[value] = Binding::Params(vec![0; 3]));
    assert!(matches!(error, Some(BindingError::Size { found: 3, .. })), "{error:?}");
    let error = found(&|launch, _| launch.bindings.swap(value, (value + 1) % entry.buffers.len()));
    assert!(matches!(error, Some(BindingError::Kind { .. })), "{error:?}");

    let read = BufferKind::Pointer { writable: false };
    let write = BufferKind::Pointer { writable: true };
    let error = found(&|_, entry| entry.buffers.iter_mut().for_each(|b| flip(b, read, write)));
    assert!(matches!(error, Some(BindingError::Writes { .. })), "{error:?}");
    let error = found(&|_, entry| entry.buffers.iter_mut().for_each(|b| flip(b, write, read)));
    assert!(matches!(error, Some(BindingError::NotWritten { .. })), "{error:?}");
}

fn flip(buffer: &mut EntryBuffer, from: BufferKind, to: BufferKind) {
    if buffer.kind == from {
        buffer.kind = to;
    }
}
