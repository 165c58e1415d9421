// The output gate of attention as a step of its own.
#pragma once
#include "common/activation.h"
#include "common/control.h"
#include "common/vector.h"

// x[t, h] *= sigmoid(gate[t, h]), the gate being the second half of each head of q_gate
//
// x        T [rows, N_HEADS, HEAD_DIM], T = float or bfloat, read and written
// q_gate   f32 [rows, N_HEADS, 2 * HEAD_DIM]
// control  control block
//
// Thread: four elements, grid (ceil(rows * N_HEADS * HEAD_DIM / 4 / THREADS)). Threadgroup memory: none.
// Requires HEAD_DIM % 4 == 0.
template <typename T, int N_HEADS, int HEAD_DIM, int THREADS, bool ONE>
[[kernel, max_total_threads_per_threadgroup(THREADS)]] void output_gate(
    device T* x [[buffer(0)]],
    const device float* q_gate [[buffer(1)]],
    const device uint* control [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  LILY_TRIGGER();
  LILY_WAIT();
  const size_t at = size_t(group) * THREADS + tid;
  const size_t head = at / (HEAD_DIM / 4), c = at % (HEAD_DIM / 4);
  if (head >= size_t(active_rows<ONE>(control)) * N_HEADS) return;
  const float4 gate = load4(q_gate + (head * 2 + 1) * HEAD_DIM + 4 * c);
  store4(x + 4 * at, load4((const device T*)x + 4 * at) * sigmoid(gate));
}
