// Matrix-vector products: decode, and prefill chunks too short for matrix-matrix products.
#pragma once
#include "common/control.h"
#include "common/row_products.h"

// The rows of a matrix of n rows that a simdgroup of threadgroup `group` owns: those of row .. row + ROWS from
// `first` on.
struct owned_rows {
  uint first;
  uint row;
};
template <int ROWS, int SIMDGROUPS> METAL_FUNC owned_rows owned_by(uint group, uint simdgroup, uint n) {
  owned_rows owned;
  owned.first = (group * SIMDGROUPS + simdgroup) * ROWS;
  owned.row = clamped_row<ROWS>(owned.first, n);
  return owned;
}

template <int ROWS> METAL_FUNC void store_products(device float* out, const thread float* products, owned_rows owned,
                                                   uint lane) {
  if (lane == 0) {
    UNROLL for (int r = 0; r < ROWS; r++) {
      if (owned.row + r >= owned.first) out[owned.row + r] = products[r];
    }
  }
}

// matvec: out[t] = x[t] W^T, or out[t] += x[t] W^T.
//
// operands     weight  packed matrix [N, K] of format F
//              x       T[rows, K], T = float or bfloat
//              out     float[rows, N]; also read with ACCUMULATE
//              control uint[2]: first position, active rows
// ownership    grid x: SIMDGROUPS * ROWS rows of W; grid y: a row of x. A simdgroup owns ROWS outputs, a lane
//              every 32nd packet of their rows.
// threadgroup  the staged row of x: 5 bytes per value, at most 28 KiB
// needs        N >= ROWS; K a multiple of 32 and of the group for quantised W; x 16-byte aligned where K is a
//              multiple of 8
// sums         f32, as row_products.h says; relative error about 1e-6, 1e-5 with a native dot8
// source       the masked nibbles and the staging: lily's own prototype
template <typename F, typename T, int N, int K, int ROWS, int SIMDGROUPS, bool ACCUMULATE, bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void matvec(
    const device uint* weight [[buffer(0)]], const device T* x [[buffer(1)]], device float* out [[buffer(2)]],
    const device uint* control [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float values[tile_of<K>::FLOATS];
  threadgroup float2 sums[tile_of<K>::SUMS];
  LILY_TRIGGER();
  const uint token = ONE ? 0 : group.y;
  if (!ONE) {
    LILY_WAIT();
    if (token >= active_rows<ONE>(control)) return;  // the whole threadgroup
  }
  const staged_x tile = staged_at(values, sums, values);
  const thread_place at = place_of(index, simdgroup, lane);
  const owned_rows owned = owned_by<ROWS, SIMDGROUPS>(group.x, simdgroup, N);
  matrix_rows<F> from[1];
  from[0] = rows_at<F, K>(weight, N, owned.row);
  row_batch<F, K, ROWS> batch;
  load_batch<F, K, ROWS, 1>(batch, from, 0, lane);
  LILY_WAIT();
  device float* y = out + size_t(token) * N + owned.row;
  float before[ROWS];  // asked for early: nothing is left to wait for after the sum
  UNROLL for (int r = 0; r < ROWS; r++) before[r] = ACCUMULATE ? y[r] : 0.0f;
  const device float* no_norm = (const device float*)weight;
  const tile_chunks<K, SIMDGROUPS * 32> no_chunks = {};
  float squares = 0.0f;
  stage_tile<F, K, SIMDGROUPS, false>(tile, x + size_t(token) * K, no_norm, no_chunks, 0, squares, at);
  float products[ROWS];
  multiply_staged<F, K, ROWS, 1, SIMDGROUPS, false>(products, batch, from, x + size_t(token) * K, no_norm, 0.0f, tile,
                                                    squares, at);
  UNROLL for (int r = 0; r < ROWS; r++) products[r] += before[r];
  store_products<ROWS>(out + size_t(token) * N, products, owned, lane);
}
