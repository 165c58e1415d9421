// Steps that treat every element alike, and the copy of one row.
#pragma once
#include "common/activation.h"
#include "common/control.h"
#include "common/vector.h"

// out = silu(gate) * up
//
// gate, up  f32 [T, PER_ROW]
// out       O [T, PER_ROW], O = float or bfloat
// control   control block
//
// PER_ROW: elements per token row, of all its slots. Thread: four elements; 256 threads in a threadgroup,
// grid (ceil(T * PER_ROW / 1024)). Threadgroup memory: none. Requires PER_ROW % 4 == 0.
template <int PER_ROW, bool ONE, typename O>
[[kernel, max_total_threads_per_threadgroup(256)]] void swiglu(
    const device float* gate [[buffer(0)]],
    const device float* up [[buffer(1)]],
    device O* out [[buffer(2)]],
    const device uint* control [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  LILY_WAIT();
  const size_t at = (size_t(group) * 256 + tid) * 4;
  if (at >= size_t(active_rows<ONE>(control)) * PER_ROW) return;
  store4(out + at, silu(load4(gate + at)) * load4(up + at));
}

// x += y
//
// x, y     f32 [T, PER_ROW]
// control  control block
//
// Thread: four elements; 256 threads in a threadgroup, grid (ceil(T * PER_ROW / 1024)).
// Threadgroup memory: none. Requires PER_ROW % 4 == 0.
template <int PER_ROW, bool ONE>
[[kernel, max_total_threads_per_threadgroup(256)]] void add(
    device float* x [[buffer(0)]],
    const device float* y [[buffer(1)]],
    const device uint* control [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  LILY_WAIT();
  const size_t at = (size_t(group) * 256 + tid) * 4;
  if (at >= size_t(active_rows<ONE>(control)) * PER_ROW) return;
  store4(x + at, load4(x + at) + load4(y + at));
}

// out[0] = x[active rows - 1]
//
// x        f32 [T, DIM]
// out      f32 [1, DIM]
// control  control block
//
// Thread: one element; 256 threads in a threadgroup, grid (ceil(DIM / 256)). Threadgroup memory: none.
template <int DIM, bool ONE>
[[kernel, max_total_threads_per_threadgroup(256)]] void last_row(
    const device float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    const device uint* control [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  LILY_WAIT();
  const uint at = group * 256 + tid;
  if (at < uint(DIM)) out[at] = x[size_t(active_rows<ONE>(control) - 1) * DIM + at];
}
