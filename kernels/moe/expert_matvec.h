// Expert matrices for few slots: one matrix-vector product per slot.
#pragma once
#include "common/gated_rows.h"

// The expert whose slots include `position` of the order by expert: the last one that starts at or before it.
// EXPERTS where there is no such slot. All lanes of a simdgroup get it.
template <int EXPERTS> METAL_FUNC uint expert_at(const device uint* offsets, uint position, uint lane) {
  uint started = 0;
  for (uint base = 0; base <= uint(EXPERTS); base += 32) {
    const uint i = base + lane;
    if (i <= uint(EXPERTS) && offsets[i] <= position) started++;
  }
  return simd_sum(started) - 1;
}

// expert_matvec: out[slot] = x[slot or its token] W[expert]^T.
//
// operands     weight  packed matrices [EXPERTS][N, K] of format F
//              x       T[rows, K], with PER_SLOT T[rows * TOP_K, K]; T = float or bfloat
//              offsets uint[EXPERTS + 1]: start of each expert's slots in `order`, ends at the active slots
//              order   uint[rows * TOP_K]: slots by expert
//              out     float[rows * TOP_K, N], by slot
// ownership    grid x: SIMDGROUPS * ROWS rows of the expert's matrix; grid y: a position of `order`. Else as
//              matvec.
// threadgroup, needs, sums: as matvec
// source       lily's own; gathering by a sorted order is MLX's and vLLM's idea
template <typename F, typename T, int EXPERTS, int TOP_K, int N, int K, bool PER_SLOT, int ROWS, int SIMDGROUPS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void expert_matvec(
    const device uint* weight [[buffer(0)]], const device T* x [[buffer(1)]], const device uint* offsets [[buffer(2)]],
    const device uint* order [[buffer(3)]], device float* out [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float values[tile_of<K>::FLOATS];
  threadgroup float2 sums[tile_of<K>::SUMS];
  LILY_TRIGGER();
  LILY_WAIT();
  const uint expert = expert_at<EXPERTS>(offsets, group.y, lane);
  if (expert >= uint(EXPERTS)) return;  // no such slot: the whole threadgroup
  const uint slot = order[group.y];
  const uint first = (group.x * SIMDGROUPS + simdgroup) * ROWS;
  const uint row = clamped_row<ROWS>(first, N);
  matrix_rows<F> from[1];
  from[0] = rows_at<F, K>(weight, size_t(EXPERTS) * N, size_t(expert) * N + row);
  float products[ROWS];
  multiply_rows<F, K, ROWS, 1, SIMDGROUPS, false>(
      products, from, x + size_t(PER_SLOT ? slot : slot / TOP_K) * K, (const device float*)weight, 0.0f,
      staged_at(values, sums, values), place_of(index, simdgroup, lane));
  if (lane == 0) {
    UNROLL for (int r = 0; r < ROWS; r++) {
      if (row + r >= first) out[size_t(slot) * N + row + r] = products[r];
    }
  }
}

// expert_gated_matvec: out[slot] = silu(x Wg[expert]^T) * (x Wu[expert]^T), x the row of the slot's token.
//
// operands     gate, up packed matrices [EXPERTS][N, K] of formats FG, FU
//              x        T[rows, K], T = float or bfloat
//              offsets, order: as expert_matvec
//              out      U[rows * TOP_K, N], by slot; U = float or bfloat
// ownership    as expert_matvec, of both matrices
// threadgroup, needs, sums: as matvec
// source       as expert_matvec
template <typename FG, typename FU, typename T, typename U, int EXPERTS, int TOP_K, int N, int K, int ROWS,
          int SIMDGROUPS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void expert_gated_matvec(
    const device uint* gate [[buffer(0)]], const device uint* up [[buffer(1)]], const device T* x [[buffer(2)]],
    const device uint* offsets [[buffer(3)]], const device uint* order [[buffer(4)]], device U* out [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float values[tile_of<K>::FLOATS];
  threadgroup float2 sums[tile_of<K>::SUMS];
  LILY_TRIGGER();
  LILY_WAIT();
  const uint expert = expert_at<EXPERTS>(offsets, group.y, lane);
  if (expert >= uint(EXPERTS)) return;  // no such slot: the whole threadgroup
  const uint slot = order[group.y];
  constexpr int TAKES = SIMDGROUPS * ROWS;
  typedef gated_kind<FG, FU, K, TAKES, SIMDGROUPS> kind;
  const thread_place at = place_of(index, simdgroup, lane);
  const uint first = group.x * TAKES;
  const int left = N - int(first);
  const size_t all_rows = size_t(EXPERTS) * N, expert_row = size_t(expert) * N + first;
  float g[kind::HELD];
  float u[kind::HELD];
  typename kind::block block;
  gate_and_up<false, false>(g, u, block, rows_at<FG, K>(gate, all_rows, expert_row),
                            rows_at<FU, K>(up, all_rows, expert_row), left, x + size_t(slot / TOP_K) * K,
                            (const device float*)gate, 0.0f, staged_at(values, sums, values), 0.0f, at,
                            typename kind::formats());
  store_gated<kind::HELD>(out + size_t(slot) * N + first, g, u, held_by<TAKES, SIMDGROUPS, kind::OWN>(left, at));
}
