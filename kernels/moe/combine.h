// The weighted sum of the experts' outputs.
#pragma once
#include "common/activation.h"
#include "common/control.h"
#include "common/vector.h"

// x[t] += sum_j weights[t, j] * expert_out[t * TOP_K + j] + sigmoid(shared_gate[t]) * shared_out[t]
//
// expert_out   f32 [T * TOP_K, DIM], by slot
// weights      f32 [T, TOP_K]
// shared_out   f32 [T, DIM]
// shared_gate  f32 [T, 1], logit
// x            f32 [T, DIM], read and written
// control      control block
//
// Thread: four elements of one row; 128 threads in a threadgroup, grid (ceil(DIM / 512), T).
// Threadgroup memory: none. Requires DIM % 4 == 0.
// Order of the sum: slots ascending, then the shared expert, then x.
template <int DIM, int TOP_K, bool ONE>
[[kernel, max_total_threads_per_threadgroup(128)]] void moe_combine(
    const device float* expert_out [[buffer(0)]],
    const device float* weights [[buffer(1)]],
    const device float* shared_out [[buffer(2)]],
    const device float* shared_gate [[buffer(3)]],
    device float* x [[buffer(4)]],
    const device uint* control [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  LILY_WAIT();
  const uint row = group.y, at = (group.x * 128 + tid) * 4;
  if (row >= active_rows<ONE>(control) || at >= uint(DIM)) return;
  const device float* outs = expert_out + size_t(row) * TOP_K * DIM + at;
  float4 sum = float4(0.0f);
  UNROLL for (int j = 0; j < TOP_K; j++) sum += weights[size_t(row) * TOP_K + j] * load4(outs + j * DIM);
  sum += sigmoid(shared_gate[row]) * load4(shared_out + size_t(row) * DIM + at);
  store4(x + size_t(row) * DIM + at, load4(x + size_t(row) * DIM + at) + sum);
}
