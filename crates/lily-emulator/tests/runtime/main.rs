//! The run-time by itself: hand-written kernels, one per property.

#[path = "../support/mod.rs"]
mod support;

use std::sync::{LazyLock, Mutex};

use lily_emulator::{
    AlignedBytes, Dispatch, Entry, Fault, KernelCache, Memory, Schedule, Toolchain, host_source_of,
    run,
};

/// The kernels of this test as host C++.
static SOURCE: LazyLock<String> = LazyLock::new(|| {
    let library = format!("#line 1 \"test.metal\"\n{}", include_str!("kernels.metal"));
    host_source_of(&library).unwrap_or_else(|error| panic!("{error}"))
});
/// One test compiles, the others wait for it.
static COMPILING: Mutex<()> = Mutex::new(());

fn entry(name: &str) -> Option<Entry> {
    if !support::has_compiler() {
        return None;
    }
    let _one_at_a_time = COMPILING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let cache = KernelCache::new(Toolchain::find().unwrap(), KernelCache::default_folder());
    Some(cache.entry(&SOURCE, name).unwrap_or_else(|error| panic!("{error}")))
}

fn launch(
    entry: &Entry,
    (groups, threads): (u32, u32),
    buffers: &mut [&mut AlignedBytes],
    seed: u64,
) -> Result<(), Fault> {
    let dispatch = Dispatch { grid: [groups, 1, 1], threads };
    run(entry, &dispatch, buffers, &Schedule { seed, workers: 1 })
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 37 % 64) as f32 / 64.0).collect()
}

fn sum(name: &str, seed: u64) -> Option<Vec<f32>> {
    let entry = entry(name)?;
    let x: Vec<f32> = (0..512).map(|i| i as f32).collect();
    let (mut x, mut y) = (AlignedBytes::of_f32(&x), AlignedBytes::zeroed(16));
    launch(&entry, (4, 128), &mut [&mut x, &mut y], seed).unwrap();
    Some(y.to_f32())
}

#[test]
fn a_sum_over_a_threadgroup_is_right_in_any_order_of_threads() {
    for seed in 0..20 {
        let Some(y) = sum("sum", seed) else { return };
        assert_eq!(y, [8128.0, 24512.0, 40896.0, 57280.0], "seed {seed}");
    }
}

#[test]
fn a_missing_barrier_shows_as_poison_in_the_result() {
    let Some(y) = sum("sum_without_barrier", 1) else { return };
    assert!(y.iter().any(|y| y.is_nan()), "{y:?}");
}

/// What `form` of the kernel `diverge` is reported for.
fn waiting(form: u32) -> Option<String> {
    let entry = entry(&format!("diverge_{form}"))?;
    let mut y = AlignedBytes::zeroed(256);
    match launch(&entry, (1, 64), &mut [&mut y], 1) {
        Err(Fault::Divergent { place, waiting }) => {
            assert_eq!(place.kernel, format!("diverge_{form}"));
            Some(waiting)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_barrier_that_some_threads_skip_is_reported_with_its_line() {
    let Some(text) = waiting(0) else { return };
    assert!(text.contains("32 at threadgroup_barrier test.metal:21 (first: thread 0)"), "{text}");
    assert!(text.contains("32 ended (first: thread 32)"), "{text}");
}

#[test]
fn a_simdgroup_function_that_some_lanes_skip_is_reported() {
    let Some(text) = waiting(1) else { return };
    assert!(text.contains("32 at simd_sum") && text.contains("32 ended"), "{text}");
}

#[test]
fn lanes_in_different_simdgroup_functions_are_reported() {
    let Some(text) = waiting(2) else { return };
    assert!(text.contains("16 at simd_max") && text.contains("16 at simd_min"), "{text}");
}

#[test]
fn threads_that_end_before_a_barrier_are_reported() {
    let Some(text) = waiting(3) else { return };
    assert!(text.contains("32 at threadgroup_barrier") && text.contains("32 ended"), "{text}");
}

/// What `form` of the kernel `stray` is reported for.
fn stray(form: u32) -> Option<Fault> {
    let entry = entry(&format!("stray_{form}"))?;
    let (mut x, mut y) = (AlignedBytes::of_f32(&numbers(32)), AlignedBytes::zeroed(128));
    Some(launch(&entry, (1, 32), &mut [&mut x, &mut y], 1).unwrap_err())
}

fn out_of_bounds(form: u32) -> Option<(Memory, i64, u64, u64)> {
    match stray(form)? {
        Fault::OutOfBounds { memory, offset, size, bytes, .. } => {
            Some((memory, offset, size, bytes))
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_read_behind_a_buffer_is_reported_with_its_place() {
    let Some(found) = out_of_bounds(0) else { return };
    assert_eq!(found, (Memory::Buffer(0), 128, 4, 128));
}

#[test]
fn a_write_in_front_of_a_buffer_is_reported_with_its_place() {
    let Some(found) = out_of_bounds(1) else { return };
    assert_eq!(found, (Memory::Buffer(1), -4, 4, 128));
}

#[test]
fn an_access_behind_a_threadgroup_array_is_reported_with_its_name() {
    let Some(found) = out_of_bounds(2) else { return };
    assert_eq!(found, (Memory::Threadgroup("scratch".to_owned()), 128, 4, 128));
}

#[test]
fn a_misaligned_vector_is_reported() {
    match stray(3) {
        Some(Fault::Misaligned { memory, offset, align, .. }) => {
            assert_eq!((memory, offset, align), (Memory::Buffer(0), 4, 16));
        }
        Some(other) => panic!("{other}"),
        None => (),
    }
}

#[test]
fn the_address_of_an_element_still_knows_its_buffer() {
    let Some((memory, _, size, bytes)) = out_of_bounds(4) else { return };
    assert_eq!((memory, size, bytes), (Memory::Buffer(0), 4, 128));
}

#[test]
fn a_vector_that_only_begins_inside_is_reported() {
    let Some(found) = out_of_bounds(5) else { return };
    assert_eq!(found, (Memory::Buffer(0), 128, 8, 128));
}

#[test]
fn a_null_pointer_is_reported() {
    match stray(6) {
        Some(Fault::UnknownMemory { .. }) | None => (),
        Some(other) => panic!("{other}"),
    }
}

#[test]
fn threadgroup_memory_holds_poison_at_the_start_of_every_threadgroup() {
    let Some(entry) = entry("uninitialised") else { return };
    let mut y = AlignedBytes::zeroed(128);
    for _ in 0..2 {
        launch(&entry, (3, 32), &mut [&mut y], 1).unwrap();
        assert!(y.to_f32().iter().all(|y| y.is_nan()));
    }
}

#[test]
fn threadgroup_memory_beyond_its_limit_is_reported() {
    let Some(entry) = entry("large") else { return };
    let mut y = AlignedBytes::zeroed(128);
    match launch(&entry, (1, 32), &mut [&mut y], 1) {
        Err(Fault::ThreadgroupMemory { name, bytes, .. }) => {
            assert_eq!((&*name, bytes), ("second", 32 * 1024 + 4));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn simdgroup_functions_give_what_their_definition_says() {
    let Some(entry) = entry("lanes") else { return };
    let x = numbers(32);
    let (mut bytes, mut y) = (AlignedBytes::of_f32(&x), AlignedBytes::zeroed(4 * 32 * 14));
    launch(&entry, (1, 32), &mut [&mut bytes, &mut y], 1).unwrap();
    let y = y.to_f32();
    let sum: f32 = x.iter().sum();
    let fold = |f: fn(f32, f32) -> f32| x.iter().copied().reduce(f).unwrap();
    let ballot = (0..32).filter(|&i| x[i] > 0.5).map(|i| 1u32 << i).sum::<u32>();
    for lane in 0..32 {
        let own = |from: usize| x.get(from).copied().unwrap_or(x[lane]);
        let quad = lane / 4 * 4;
        let expected = [
            sum,
            fold(f32::max),
            fold(f32::min),
            x[lane ^ 5],
            own(lane + 3),
            own(lane.wrapping_sub(3)),
            x[31 - lane],
            x[7],
            x[..=lane].iter().sum(),
            x[..lane].iter().sum(),
            x[quad..quad + 4].iter().sum(),
            ballot as f32,
            1.0,
            sum + 32.0 + 2.0 * sum + 496.0,
        ];
        for (row, expected) in expected.into_iter().enumerate() {
            assert_eq!(y[row * 32 + lane], expected, "function {row}, lane {lane}");
        }
    }
}

#[test]
fn matrices_multiply_as_the_plain_product_does() {
    for (name, transposed) in [("float", false), ("half", true), ("bfloat", true)] {
        let Some(entry) = entry(&format!("product_{name}")) else { return };
        // Few bits, so that no type rounds.
        let a: Vec<f32> = (0..64).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
        let b: Vec<f32> = (0..64).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        let (mut left, mut right) = (AlignedBytes::of_f32(&a), AlignedBytes::of_f32(&b));
        let mut y = AlignedBytes::zeroed(256);
        launch(&entry, (1, 32), &mut [&mut left, &mut right, &mut y], 1).unwrap();
        let at = |k: usize, c: usize| if transposed { b[8 * c + k] } else { b[8 * k + c] };
        let plain = |i: usize| (0..8).map(|k| a[i / 8 * 8 + k] * at(k, i % 8)).sum::<f32>();
        assert_eq!(y.to_f32(), (0..64).map(plain).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_lane_holds_the_two_elements_that_it_holds_on_apple() {
    let Some(entry) = entry("layout") else { return };
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let (mut x, mut y) = (AlignedBytes::of_f32(&x), AlignedBytes::zeroed(256));
    launch(&entry, (1, 32), &mut [&mut x, &mut y], 1).unwrap();
    let y = y.to_f32();
    for lane in 0..32 {
        let quad = lane / 4;
        let (row, col) = ((quad & 4) + lane / 2 % 4, (quad & 2) * 2 + lane % 2 * 2);
        let first = (8 * row + col) as f32;
        assert_eq!((y[lane], y[32 + lane]), (first, first + 1.0), "lane {lane}");
    }
}

#[test]
fn bfloat_rounds_to_the_nearest_and_ties_to_even() {
    let Some(entry) = entry("round_bfloat") else { return };
    let special =
        [0.0, -0.0, f32::INFINITY, -f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1.0, -1.5];
    let patterns = (0..4096u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
    let ties = (0..56u32).map(|i| f32::from_bits(0x3f80_0000 + 0x8000 * i));
    let x: Vec<f32> = special.into_iter().chain(patterns).chain(ties).collect();
    let (mut bytes, mut y) = (AlignedBytes::of_f32(&x), AlignedBytes::zeroed(4 * x.len()));
    launch(&entry, (x.len() as u32 / 32, 32), &mut [&mut bytes, &mut y], 1).unwrap();
    for (x, y) in x.iter().zip(y.to_u32()) {
        let (expected, found) = (half::bf16::from_f32(*x), half::bf16::from_bits(y as u16));
        let same = expected.to_bits() == found.to_bits() || (x.is_nan() && found.is_nan());
        assert!(same, "{x:e} became {found}, expected {expected}");
    }
}

#[test]
fn atomics_count_over_threadgroups_and_system_threads() {
    let Some(entry) = entry("count") else { return };
    let (mut count, mut order) = (AlignedBytes::zeroed(8), AlignedBytes::zeroed(4 * 24 * 32));
    let dispatch = Dispatch { grid: [2, 3, 4], threads: 32 };
    let schedule = Schedule { seed: 1, workers: 3 };
    run(&entry, &dispatch, &mut [&mut count, &mut order], &schedule).unwrap();
    assert_eq!(count.to_u32(), [24 * 32, 24 * 32 - 1]);
    let mut tags = order.to_u32();
    tags.sort_unstable();
    assert_eq!(tags, (0..24 * 32).collect::<Vec<_>>(), "every thread of every threadgroup, once");
}

#[test]
fn another_seed_is_another_order_and_the_same_seed_the_same() {
    let Some(entry) = entry("count") else { return };
    let order = |seed| {
        let (mut count, mut order) = (AlignedBytes::zeroed(8), AlignedBytes::zeroed(4 * 4 * 64));
        launch(&entry, (4, 64), &mut [&mut count, &mut order], seed).unwrap();
        order.to_u32()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}
