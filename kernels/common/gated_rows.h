// The gate and up projections of a feed-forward network, row by row.
#pragma once
#include "common/activation.h"
#include "common/row_products.h"

// gate[r] and up[r] = dot of row r of either matrix with norm(x); arguments as in multiply_staged, of which x is
// STAGED for FG, or as in multiply_rows. One pass where both matrices have one format.
template <int K, int ROWS, int SIMDGROUPS, bool NORM, bool STAGED, typename F, typename T>
METAL_FUNC void gate_and_up(thread float* gate, thread float* up, matrix_rows<F> gate_rows, matrix_rows<F> up_rows,
                            const device T* x, const device float* norm, float eps, staged_x tile, float squares,
                            thread_place at) {
  matrix_rows<F> from[2];
  from[0] = gate_rows;
  from[1] = up_rows;
  float products[2 * ROWS];
  if (STAGED) {
    row_batch<F, K, 2 * ROWS> batch;
    load_batch<F, K, 2 * ROWS, 2>(batch, from, 0, at.lane);
    multiply_staged<F, K, 2 * ROWS, 2, SIMDGROUPS, NORM>(products, batch, from, x, norm, eps, tile, squares, at);
  } else {
    multiply_rows<F, K, 2 * ROWS, 2, SIMDGROUPS, NORM>(products, from, x, norm, eps, tile, at);
  }
  UNROLL for (int r = 0; r < ROWS; r++) {
    gate[r] = products[r];
    up[r] = products[ROWS + r];
  }
}
// Matrices of two formats want x staged in two ways.
template <int K, int ROWS, int SIMDGROUPS, bool NORM, bool STAGED, typename FG, typename FU, typename T>
METAL_FUNC void gate_and_up(thread float* gate, thread float* up, matrix_rows<FG> gate_rows, matrix_rows<FU> up_rows,
                            const device T* x, const device float* norm, float eps, staged_x tile, float squares,
                            thread_place at) {
  if (STAGED) {
    row_batch<FG, K, ROWS> batch;
    load_batch<FG, K, ROWS, 1>(batch, &gate_rows, 0, at.lane);
    multiply_staged<FG, K, ROWS, 1, SIMDGROUPS, NORM>(gate, batch, &gate_rows, x, norm, eps, tile, squares, at);
  } else {
    multiply_rows<FG, K, ROWS, 1, SIMDGROUPS, NORM>(gate, &gate_rows, x, norm, eps, tile, at);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // all have read what the next pass overwrites
  multiply_rows<FU, K, ROWS, 1, SIMDGROUPS, NORM>(up, &up_rows, x, norm, eps, tile, at);
}

// out[row] = silu(gate) * up for the rows that a simdgroup owns.
template <int ROWS, typename T>
METAL_FUNC void store_gated(device T* out, const thread float* gate, const thread float* up, uint first, uint row,
                            uint lane) {
  if (lane == 0) {
    UNROLL for (int r = 0; r < ROWS; r++) {
      if (row + r >= first) out[row + r] = T(silu(gate[r]) * up[r]);
    }
  }
}
