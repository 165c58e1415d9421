// Matrix-vector products: decode, and prefill chunks too short for matrix-matrix products.
#pragma once
#include "common/control.h"
#include "common/row_block.h"

// matvec: out[t] = x[t] W^T, or out[t] += x[t] W^T.
//
// operands     weight  packed matrix [N, K] of format F
//              x       T[rows, K], T = float or bfloat
//              out     float[rows, N]; also read with ACCUMULATE
//              control uint[2]: first position, active rows
// ownership    grid x: SIMDGROUPS * ROWS rows of W; grid y: a row of x. Within, as row_block.h says: a simdgroup
//              owns ROWS outputs, a lane every 32nd packet of their rows.
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
  constexpr int TAKES = SIMDGROUPS * ROWS;
  typedef row_block<F, K, TAKES, 1, SIMDGROUPS> rows;
  typedef row_block_kind<F, K, TAKES, 1, SIMDGROUPS> kind;
  const uint first = group.x * TAKES;
  matrix_rows<F> from[1];
  from[0] = rows_at<F, K>(weight, N, first);
  rows block;
  ask_rows(block, from, N - int(first), at);
  LILY_WAIT();
  const device T* row = x + size_t(token) * K;
  device float* y = out + size_t(token) * N + first;
  float before[kind::HELD];  // asked for early: nothing is left to wait for after the sum
  if (ACCUMULATE) {
    const int held = held_by<TAKES, SIMDGROUPS, kind::OWN>(N - int(first), at).row;
    UNROLL for (int r = 0; r < kind::HELD; r++) before[r] = y[held + r];
  }
  const device float* no_norm = (const device float*)weight;
  const tile_chunks<K, SIMDGROUPS * 32> no_chunks = {};
  float squares = 0.0f;
  stage_block<false>(block, tile, row, no_norm, no_chunks, squares, at);
  float parts[kind::PARTS], products[kind::HELD];
  accumulate_rows<false>(parts, block, row, no_norm, tile, squares, at);
  sum_rows<false>(block, products, parts, tile, 0.0f, 0, at);
  UNROLL for (int r = 0; r < kind::HELD; r++) products[r] = ACCUMULATE ? products[r] + before[r] : products[r];
  store_held<kind::HELD>(y, products, held_by<TAKES, SIMDGROUPS, kind::OWN>(N - int(first), at));
}
