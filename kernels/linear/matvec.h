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

// products[r] = dot(row + r of the matrix, norm(x)), the same in every lane.
template <typename F, int K, int ROWS, int SIMDGROUPS, bool NORM, typename T>
METAL_FUNC owned_rows matvec_products(thread float* products, const device uint* weight, uint n, uint group,
                                      const device T* x, const device float* norm, float eps, staged_x tile,
                                      thread_place at) {
  owned_rows owned;
  owned.first = (group * SIMDGROUPS + at.simdgroup) * ROWS;
  owned.row = clamped_row<ROWS>(owned.first, n);
  matrix_rows<F> from[1];
  from[0] = rows_at<F, K>(weight, n, owned.row);
  multiply_rows<F, K, ROWS, 1, SIMDGROUPS, NORM, false>(products, from, x, norm, eps, tile, 0.0f, at);
  return owned;
}

template <int ROWS, bool ACCUMULATE>
METAL_FUNC void store_products(device float* out, const thread float* products, owned_rows owned, uint lane) {
  if (lane == 0) {
    UNROLL for (int r = 0; r < ROWS; r++) {
      const uint row = owned.row + r;
      if (row >= owned.first) out[row] = ACCUMULATE ? out[row] + products[r] : products[r];
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
  float products[ROWS];
  const owned_rows owned = matvec_products<F, K, ROWS, SIMDGROUPS, false>(
      products, weight, N, group.x, x + size_t(token) * K, (const device float*)weight, 0.0f,
      staged_at(values, sums, values), place_of(index, simdgroup, lane));
  store_products<ROWS, ACCUMULATE>(out + size_t(token) * N, products, owned, lane);
}
