// Root mean square norms.
#pragma once
#include "common/activation.h"
#include "common/control.h"
#include "common/vector.h"

// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight
//
// x        f32 [T, DIM]
// weight   f32 [DIM]
// out      O [T, DIM], O = float or bfloat
// control  control block
//
// Threadgroup: one row, grid (T). Thread: every THREADS-th group of four elements, held in registers.
// Threadgroup memory: 128 bytes.
// Requires DIM % 4 == 0, THREADS a multiple of 32.
// Order of the sum: within a thread, within a simdgroup, over the simdgroups; it depends on DIM and THREADS alone.
template <int DIM, int THREADS, bool ONE, typename O>
[[kernel, max_total_threads_per_threadgroup(THREADS)]] void rms_norm(
    const device float* x [[buffer(0)]],
    const device float* weight [[buffer(1)]],
    device O* out [[buffer(2)]],
    const device uint* control [[buffer(3)]],
    constant NormParams& p [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int VECTORS = DIM / 4;
  constexpr int PER_THREAD = (VECTORS + THREADS - 1) / THREADS;
  threadgroup float parts[32];

  LILY_WAIT();
  if (row >= active_rows<ONE>(control)) return;
  const device float4* xs = (const device float4*)(x + size_t(row) * DIM);
  float4 values[PER_THREAD];
  float sum = 0.0f;
  UNROLL for (int i = 0; i < PER_THREAD; i++) {
    const uint at = i * THREADS + tid;
    values[i] = at < uint(VECTORS) ? xs[at] : float4(0.0f);
    sum += dot(values[i], values[i]);
  }
  sum = simd_sum(sum);
  if (lane == 0) parts[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float total = simd_sum(lane < uint(THREADS / 32) ? parts[lane] : 0.0f);
  const float scale = 1.0f / precise::sqrt(total / float(DIM) + p.eps);

  const device float4* ws = (const device float4*)weight;
  UNROLL for (int i = 0; i < PER_THREAD; i++) {
    const uint at = i * THREADS + tid;
    if (at < uint(VECTORS)) store4(out + size_t(row) * DIM + at * 4, values[i] * scale * ws[at]);
  }
}

// out[t, h] = x[t, h] / sqrt(mean(x[t, h]^2) + eps) * weight * act(gate[t, h]), act = SiLU or sigmoid
//
// x        f32 [T, HEADS, DIM]; may be the same memory as out
// gate     f32 [T, HEADS, DIM]
// weight   f32 [DIM]
// out      O [T, HEADS, DIM], O = float or bfloat
// control  control block
//
// Simdgroup: one head of one row; SIMDGROUPS of them in a threadgroup, grid (ceil(T * HEADS / SIMDGROUPS)).
// Lane: every 32nd group of four elements. Threadgroup memory: none.
// Requires DIM % 4 == 0.
// Order of the sum: within a lane, then over the simdgroup.
template <int HEADS, int DIM, int SIMDGROUPS, bool SIGMOID, bool ONE, typename O>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void gated_rms_norm(
    const device float* x [[buffer(0)]],
    const device float* gate [[buffer(1)]],
    const device float* weight [[buffer(2)]],
    device O* out [[buffer(3)]],
    const device uint* control [[buffer(4)]],
    constant NormParams& p [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int VECTORS = DIM / 4;
  constexpr int PER_LANE = (VECTORS + 31) / 32;

  LILY_WAIT();
  const uint head = group * SIMDGROUPS + sg;
  if (head >= active_rows<ONE>(control) * HEADS) return;
  const device float4* xs = (const device float4*)(x + size_t(head) * DIM);
  const device float4* gates = (const device float4*)(gate + size_t(head) * DIM);
  const device float4* ws = (const device float4*)weight;
  float4 values[PER_LANE];
  float sum = 0.0f;
  UNROLL for (int i = 0; i < PER_LANE; i++) {
    const uint at = i * 32 + lane;
    values[i] = at < uint(VECTORS) ? xs[at] : float4(0.0f);
    sum += dot(values[i], values[i]);
  }
  const float scale = 1.0f / precise::sqrt(simd_sum(sum) / float(DIM) + p.eps);
  UNROLL for (int i = 0; i < PER_LANE; i++) {
    const uint at = i * 32 + lane;
    if (at >= uint(VECTORS)) continue;
    const float4 act = SIGMOID ? sigmoid(gates[at]) : silu(gates[at]);
    store4(out + size_t(head) * DIM + at * 4, values[i] * scale * ws[at] * act);
  }
}
