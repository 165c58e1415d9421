//! The run-time by itself: hand-written kernels, one per property.

use lily_emulator::{AlignedBytes, Dispatch, Entry, Fault, KernelCache, Schedule, Toolchain, run};

const RUNTIME: &[&str] = &[
    include_str!("../../../kernels/runtime/host/machine.hpp"),
    include_str!("../../../kernels/runtime/host/pointer.hpp"),
    include_str!("../../../kernels/runtime/host/vector.hpp"),
    include_str!("../../../kernels/runtime/host/math.hpp"),
    include_str!("../../../kernels/runtime/host/simd.hpp"),
    include_str!("../../../kernels/runtime/host/atomic.hpp"),
    include_str!("../../../kernels/runtime/host/matrix.hpp"),
];

fn entry(source: &str, name: &str) -> Entry {
    let cache = KernelCache::new(Toolchain::find().unwrap(), KernelCache::default_folder());
    let mut text = RUNTIME.concat().replace("#pragma once", "");
    text.push_str("namespace metal {\n#line 1 \"test.metal\"\n");
    text.push_str(source);
    text.push_str("}\n");
    cache.entry(&text, name).unwrap_or_else(|error| panic!("{error}"))
}

fn launch(
    entry: &Entry,
    groups: u32,
    threads: u32,
    buffers: &mut [&mut AlignedBytes],
) -> Result<(), Fault> {
    let dispatch = Dispatch { grid: [groups, 1, 1], threads };
    run(entry, &dispatch, buffers, &Schedule { seed: 1, workers: 1 })
}

#[test]
fn a_sum_over_a_threadgroup_is_right() {
    let entry = entry(
        r#"
extern "C" __attribute__((visibility("default"))) void lily_entry_sum(const ::lily::binding* b) {
  ::lily::ptr<const float> x(b[0]);
  ::lily::ptr<float> y(b[1]);
  LILY_THREADGROUP(float, part, [4]);
  const float s = simd_sum(x[tg_pos_<uint>() * 128 + tid_<uint>()]);
  if (lane_<uint>() == 0) part[sg_<uint>()] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid_<uint>() == 0) y[tg_pos_<uint>()] = part[0] + part[1] + part[2] + part[3];
}
"#,
        "sum",
    );
    let x: Vec<f32> = (0..512).map(|i| i as f32).collect();
    let (mut x, mut y) = (AlignedBytes::of_f32(&x), AlignedBytes::zeroed(16));
    launch(&entry, 4, 128, &mut [&mut x, &mut y]).unwrap();
    assert_eq!(y.to_f32(), [8128.0, 24512.0, 40896.0, 57280.0]);
    let fault = launch(&entry, 5, 128, &mut [&mut x, &mut y]).unwrap_err();
    assert!(fault.to_string().contains("buffer 0"), "{fault}");
    eprintln!("{fault}");
}
