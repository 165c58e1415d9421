// Joins the splits of attention_split.
#pragma once
#include "common/activation.h"
#include "common/vector.h"

// out[h] = sum_i e^(largest_i - largest) partial[i, h] / sum_i e^(largest_i - largest) sum_i, times sigmoid(gate[h]) if
// GATED
//
// partial  f32 [N_SPLITS, N_HEADS, HEAD_DIM]: finite, also where there is nothing
// stats    f32 [N_SPLITS, N_HEADS, 2]: largest score and sum of a split; the sum is 0 where there is nothing
// q_gate   f32 [N_HEADS, 2 * HEAD_DIM]: the gate is the second half of a head; not read unless GATED
// out      f32 [N_HEADS, HEAD_DIM]
//
// Threadgroup: 64 elements of one head, grid (N_HEADS, HEAD_DIM / 64), 256 threads. Thread: four elements of every
// 16th split. Threadgroup memory: N_SPLITS * 4 + 4160 bytes.
// Requires HEAD_DIM % 64 == 0.
// Order of the sums: a thread's splits in order, then the 16 threads in order.
template <int N_HEADS, int HEAD_DIM, int N_SPLITS, bool GATED>
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_merge(
    const device float* partial [[buffer(0)]],
    const device float2* stats [[buffer(1)]],
    const device float* q_gate [[buffer(2)]],
    device float* out [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int PER_THREAD = (N_SPLITS + 255) / 256, SHARE = (N_SPLITS + 15) / 16;
  threadgroup float factors[N_SPLITS];
  threadgroup float4 parts[256];
  threadgroup float largests[8];
  threadgroup float sums[8];
  LILY_TRIGGER();
  LILY_WAIT();
  const uint head = group.x, column = group.y * 64 + tid % 16 * 4;
  // All that is needed is asked for at once: nothing is left to wait for once the factors are known.
  float4 pieces[SHARE];
  UNROLL for (int i = 0; i < SHARE; i++) {
    const uint split = min(i * 16 + tid / 16, uint(N_SPLITS - 1));
    pieces[i] = load4(partial + (split * N_HEADS + head) * HEAD_DIM + column);
  }
  float4 gate = float4(0.0f);
  if (GATED && tid < 16) gate = load4(q_gate + (head * 2 + 1) * HEAD_DIM + column);
  float2 stat[PER_THREAD];
  float largest = -1.0e30f;
  UNROLL for (int i = 0; i < PER_THREAD; i++) {
    const uint split = i * 256 + tid;
    stat[i] = split < uint(N_SPLITS) ? stats[split * N_HEADS + head] : float2(0.0f, 0.0f);
    if (stat[i].y > 0.0f) largest = max(largest, stat[i].x);
  }
  largest = simd_max(largest);
  if (lane == 0) largests[sg] = largest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  UNROLL for (int i = 0; i < 8; i++) largest = max(largest, largests[i]);
  float sum = 0.0f;
  UNROLL for (int i = 0; i < PER_THREAD; i++) {
    const uint split = i * 256 + tid;
    const float factor = stat[i].y > 0.0f ? exp(stat[i].x - largest) : 0.0f;
    if (split < uint(N_SPLITS)) factors[split] = factor;
    sum += factor * stat[i].y;
  }
  sum = simd_sum(sum);
  if (lane == 0) sums[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float4 part = float4(0.0f);
  UNROLL for (int i = 0; i < SHARE; i++) {
    const uint split = i * 16 + tid / 16;
    if (split < uint(N_SPLITS)) part += pieces[i] * factors[split];
  }
  parts[tid] = part;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 16) {
    float total = 0.0f;
    UNROLL for (int i = 0; i < 8; i++) total += sums[i];
    float4 v = float4(0.0f);
    UNROLL for (int i = 0; i < 16; i++) v += parts[i * 16 + tid];
    v = v * (1.0f / total);
    if (GATED) v = v * sigmoid(gate);
    store4(out + head * HEAD_DIM + column, v);
  }
}
