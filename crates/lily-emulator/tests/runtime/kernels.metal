// One kernel per property of the run-time. N is 32 throughout, unless a kernel says otherwise.
#include <metal_stdlib>
using namespace metal;

// y[tg] = sum of a threadgroup's 128 values; without BARRIER, lanes read what nobody may have written.
template <int N, bool BARRIER> [[kernel]] void sum(
    const device float* x [[buffer(0)]], device float* y [[buffer(1)]], uint tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float part[4];
  const float s = simd_sum(x[tg * 4 * N + tid]);
  if (lane == 0) part[sg] = s;
  if (BARRIER) threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) y[tg] = part[0] + part[1] + part[2] + part[3];
}

// FORM 0: half of the threads skip a barrier; 1: half of the lanes skip simd_sum; 2: the halves of a
// simdgroup call different functions; 3: half of the threads end before a barrier.
template <int N, int FORM> [[kernel]] void diverge(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
  float v = float(tid);
  if (FORM == 0 && tid < N) threadgroup_barrier(mem_flags::mem_threadgroup);
  if (FORM == 1 && tid % 2 == 0) v = simd_sum(v);
  if (FORM == 2) {
    if (tid % 2 == 0) v = simd_max(v);
    else v = simd_min(v);
  }
  if (FORM == 3) {
    if (tid < N) return;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  y[tid] = v;
}

METAL_FUNC float third(const device float* p) { return p[2]; }

// FORM 0: reads behind a buffer; 1: writes in front of one; 2: behind a threadgroup array; 3: misaligned
// vector; 4: behind a buffer, through the address of an element; 5: a vector that only begins inside;
// 6: a null pointer.
template <int N, int FORM> [[kernel]] void stray(
    const device float* x [[buffer(0)]], device float* y [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup float scratch[N];
  scratch[tid] = 0.0f;
  if (FORM == 0) y[tid] = x[tid + 1];
  if (FORM == 1) y[int(tid) - 1] = 0.0f;
  if (FORM == 2) scratch[tid + 1] = 1.0f;
  if (FORM == 3) y[tid] = ((const device float4*)(x + 1))->x;
  if (FORM == 4) y[tid] = third(&x[tid]);
  if (FORM == 5) y[tid] = (*(const device float2*)(x + tid / 2 * 2 + 2)).x;
  if (FORM == 6) {
    const device float* nothing = nullptr;
    y[tid] = *nothing;
  }
}

// y[tid] = what a threadgroup array holds that nobody wrote.
template <int N> [[kernel]] void uninitialised(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup float scratch[N];
  y[tid] = scratch[tid];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  scratch[tid] = 1.0f;
}

// More threadgroup memory than there is.
template <int N> [[kernel]] void large(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup float first[N * 128];
  threadgroup float second[N * 128 + 1];
  first[tid] = 1.0f;
  second[tid] = 2.0f;
  y[tid] = first[tid] + second[tid];
}

// Row r of y holds the results of function r.
template <int N> [[kernel]] void lanes(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                       uint lane [[thread_index_in_simdgroup]]) {
  const float v = x[lane];
  y[lane] = simd_sum(v);
  y[N + lane] = simd_max(v);
  y[2 * N + lane] = simd_min(v);
  y[3 * N + lane] = simd_shuffle_xor(v, 5);
  y[4 * N + lane] = simd_shuffle_down(v, 3);
  y[5 * N + lane] = simd_shuffle_up(v, 3);
  y[6 * N + lane] = simd_shuffle(v, ushort(31 - lane));
  y[7 * N + lane] = simd_broadcast(v, 7);
  y[8 * N + lane] = simd_prefix_inclusive_sum(v);
  y[9 * N + lane] = simd_prefix_exclusive_sum(v);
  y[10 * N + lane] = quad_sum(v);
  y[11 * N + lane] = float(uint(ulong(simd_ballot(v > 0.5f))));
  y[12 * N + lane] = simd_any(lane == 3) && !simd_all(lane == 3) ? 1.0f : 0.0f;
  const float4 sums = simd_sum(float4(v, 1.0f, 2.0f * v, float(lane)));
  y[13 * N + lane] = sums.x + sums.y + sums.z + sums.w;
}

// y = a b for 8x8 matrices, TRANSPOSED: y = a bᵀ; the operands are rounded to T.
template <typename T, bool TRANSPOSED> [[kernel]] void product(
    const device float* a [[buffer(0)]], const device float* b [[buffer(1)]], device float* y [[buffer(2)]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T left[64];
  threadgroup T right[64];
  for (uint i = lane; i < 64; i += 32) {
    left[i] = T(a[i]);
    right[i] = T(b[i]);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_matrix<T, 8, 8> l, r;
  simdgroup_matrix<float, 8, 8> c = make_filled_simdgroup_matrix<float, 8>(0.0f);
  simdgroup_load(l, left, 8);
  simdgroup_load(r, right, 8, ulong2(0), TRANSPOSED);
  simdgroup_multiply_accumulate(c, l, r, c);
  simdgroup_store(c, y, 8);
}

// Which element a lane holds: y[lane] = first, y[32 + lane] = second.
template <int N> [[kernel]] void layout(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                        uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<float, 8, 8> m;
  simdgroup_load(m, x, 8);
  y[lane] = m.thread_elements().x;
  y[N + lane] = m.thread_elements().y;
}

// y = bits of x rounded to bfloat16.
template <int N> [[kernel]] void round_bfloat(const device float* x [[buffer(0)]], device uint* y [[buffer(1)]],
                                              uint tg [[threadgroup_position_in_grid]],
                                              uint tid [[thread_index_in_threadgroup]]) {
  const uint i = tg * N + tid;
  y[i] = uint(as_type<ushort>(bfloat(x[i])));
}

// count[0] += 1 per thread; count[1] = the largest tag; order[i] = tag of the i-th thread to come.
template <int N> [[kernel]] void count(device atomic_uint* count [[buffer(0)]], device uint* order [[buffer(1)]],
                                       uint3 tg [[threadgroup_position_in_grid]], uint3 tgs [[threadgroups_per_grid]],
                                       uint tid [[thread_index_in_threadgroup]]) {
  const uint tag = ((tg.z * tgs.y + tg.y) * tgs.x + tg.x) * N + tid;
  order[atomic_fetch_add_explicit(&count[0], 1u, memory_order_relaxed)] = tag;
  atomic_fetch_max_explicit(count + 1, tag, memory_order_relaxed);
}

template [[host_name("sum")]] [[kernel]] decltype(sum<32, true>) sum<32, true>;
template [[host_name("sum_without_barrier")]] [[kernel]] decltype(sum<32, false>) sum<32, false>;
template [[host_name("diverge_0")]] [[kernel]] decltype(diverge<32, 0>) diverge<32, 0>;
template [[host_name("diverge_1")]] [[kernel]] decltype(diverge<32, 1>) diverge<32, 1>;
template [[host_name("diverge_2")]] [[kernel]] decltype(diverge<32, 2>) diverge<32, 2>;
template [[host_name("diverge_3")]] [[kernel]] decltype(diverge<32, 3>) diverge<32, 3>;
template [[host_name("stray_0")]] [[kernel]] decltype(stray<32, 0>) stray<32, 0>;
template [[host_name("stray_1")]] [[kernel]] decltype(stray<32, 1>) stray<32, 1>;
template [[host_name("stray_2")]] [[kernel]] decltype(stray<32, 2>) stray<32, 2>;
template [[host_name("stray_3")]] [[kernel]] decltype(stray<32, 3>) stray<32, 3>;
template [[host_name("stray_4")]] [[kernel]] decltype(stray<32, 4>) stray<32, 4>;
template [[host_name("stray_5")]] [[kernel]] decltype(stray<32, 5>) stray<32, 5>;
template [[host_name("stray_6")]] [[kernel]] decltype(stray<32, 6>) stray<32, 6>;
template [[host_name("uninitialised")]] [[kernel]] decltype(uninitialised<32>) uninitialised<32>;
template [[host_name("large")]] [[kernel]] decltype(large<32>) large<32>;
template [[host_name("lanes")]] [[kernel]] decltype(lanes<32>) lanes<32>;
template [[host_name("product_float")]] [[kernel]] decltype(product<float, false>) product<float, false>;
template [[host_name("product_half")]] [[kernel]] decltype(product<half, true>) product<half, true>;
template [[host_name("product_bfloat")]] [[kernel]] decltype(product<bfloat, true>) product<bfloat, true>;
template [[host_name("layout")]] [[kernel]] decltype(layout<32>) layout<32>;
template [[host_name("round_bfloat")]] [[kernel]] decltype(round_bfloat<32>) round_bfloat<32>;
template [[host_name("count")]] [[kernel]] decltype(count<32>) count<32>;
