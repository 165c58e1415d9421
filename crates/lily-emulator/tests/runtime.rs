//! The run-time by itself: hand-written kernels, one per property.

use lily_emulator::{
    AlignedBytes, Dispatch, Entry, Fault, KernelCache, Schedule, Toolchain, host_source_of, run,
};

fn entry(kernel: &str, name: &str) -> Entry {
    let cache = KernelCache::new(Toolchain::find().unwrap(), KernelCache::default_folder());
    let source = format!(
        "#include <metal_stdlib>\nusing namespace metal;\n#line 1 \"test.metal\"\n{kernel}\n\
         template [[host_name(\"{name}\")]] [[kernel]] decltype({name}<32>) {name}<32>;\n"
    );
    let host = host_source_of(&source).unwrap_or_else(|error| panic!("{error}"));
    cache.entry(&host, name).unwrap_or_else(|error| panic!("{error}"))
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
        r"template <int LANES>
[[kernel]] void sum(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                    uint tg [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
                    uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[4];
  const float s = simd_sum(x[tg * 4 * LANES + tid]);
  if (lane == 0) part[sg] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) y[tg] = part[0] + part[1] + part[2] + part[3];
}",
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
