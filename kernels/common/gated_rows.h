// The gate and up projections of a feed-forward network: TAKES rows of both matrices by a threadgroup.
#pragma once
#include "common/activation.h"
#include "common/row_block.h"

template <bool ONE> struct one_format {};

// The block that both matrices are where they have one format. With two, x has to be staged in two ways: one after the
// other, and the block says no more than who owns which rows.
template <typename FG, typename FU, int K, int TAKES, int SIMDGROUPS> struct gated_kind {
  enum : int {
    OWN = is_same_v<FG, FU> && row_block_kind<FG, K, TAKES, 2, SIMDGROUPS>::OWN,
    HELD = OWN ? 1 : TAKES / SIMDGROUPS
  };
  typedef row_block<FG, K, TAKES, 2, SIMDGROUPS, OWN> block;
  typedef one_format<is_same_v<FG, FU>> formats;
};

// gate[i] and up[i] = dots of held row i of either matrix with norm(x). The rows begin at row 0 of the block, `left` are
// there. STAGED: x is staged for the block, with this thread's sum of squares. Else all is done here, LILY_WAIT too.
template <bool STAGED, bool NORM, typename F, int K, int TAKES, int SIMDGROUPS, int OWN, typename T>
METAL_FUNC void gate_and_up(thread float* gate, thread float* up, thread row_block<F, K, TAKES, 2, SIMDGROUPS, OWN>& block,
                            matrix_rows<F> gate_rows, matrix_rows<F> up_rows, int left, const device T* x,
                            const device float* norm, float eps, staged_x tile, float squares, thread_place at,
                            one_format<true>) {
  typedef row_block_kind<F, K, TAKES, 2, SIMDGROUPS> kind;
  matrix_rows<F> from[2];
  from[0] = gate_rows;
  from[1] = up_rows;
  ask_rows(block, from, left, at);
  if (!STAGED) {
    tile_chunks<K, SIMDGROUPS * 32> norm_chunks;
    if (NORM) load_chunks(norm_chunks, norm, 0, at.index);
    LILY_WAIT();
    stage_block<NORM>(block, tile, x, norm, norm_chunks, squares, at);
  }
  float parts[kind::PARTS], products[2 * kind::HELD];
  accumulate_rows<NORM>(parts, block, x, norm, tile, squares, at);
  sum_rows<NORM>(block, products, parts, tile, eps, 0, at);
  UNROLL for (int i = 0; i < kind::HELD; i++) {
    gate[i] = products[i];
    up[i] = products[kind::HELD + i];
  }
}
// Matrices of two formats.
template <bool STAGED, bool NORM, typename FG, typename FU, int K, int TAKES, int SIMDGROUPS, typename T>
METAL_FUNC void gate_and_up(thread float* gate, thread float* up, thread row_block<FG, K, TAKES, 2, SIMDGROUPS, 0>& block,
                            matrix_rows<FG> gate_rows, matrix_rows<FU> up_rows, int left, const device T* x,
                            const device float* norm, float eps, staged_x tile, float squares, thread_place at,
                            one_format<false>) {
  constexpr int ROWS = TAKES / SIMDGROUPS;
  const int row = first_taken<ROWS>(left, at);
  matrix_rows<FG> g = row_after<K>(gate_rows, row);
  matrix_rows<FU> u = row_after<K>(up_rows, row);
  if (STAGED) {
    row_batch<FG, K, ROWS> batch;
    load_batch<FG, K, ROWS, 1>(batch, &g, 0, at.lane);
    multiply_staged<FG, K, ROWS, 1, SIMDGROUPS, NORM>(gate, batch, &g, x, norm, eps, tile, squares, at);
  } else {
    multiply_rows<FG, K, ROWS, 1, SIMDGROUPS, NORM>(gate, &g, x, norm, eps, tile, at);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // all have read what the next pass overwrites
  multiply_rows<FU, K, ROWS, 1, SIMDGROUPS, NORM>(up, &u, x, norm, eps, tile, at);
}

// out[row] = silu(gate) * up for the rows held; out is that of row 0 of the block.
template <int HELD, typename O>
METAL_FUNC void store_gated(device O* out, const thread float* gate, const thread float* up, held_rows held) {
  float products[HELD];
  UNROLL for (int i = 0; i < HELD; i++) products[i] = silu(gate[i]) * up[i];
  store_held<HELD>(out, products, held);
}
