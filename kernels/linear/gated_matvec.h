// The gated half of a feed-forward network in one step.
#pragma once
#include "common/control.h"
#include "common/gated_rows.h"
#include "params.h"

// gated_matvec: out[t] = silu(h Wg^T) * (h Wu^T), h = norm(x[t]); norm as in stacked_matvec.
//
// operands     gate, up packed matrices [N, K] of formats FG, FU
//              x        T[rows, K], T = float or bfloat
//              norm     float[K]; not read without NORM
//              out      U[rows, N], U = float or bfloat
//              control  uint[2]: first position, active rows
// ownership    grid x: SIMDGROUPS * ROWS rows of both matrices; grid y: a row of x. A simdgroup owns ROWS
//              outputs, a lane every 32nd packet of their rows.
// threadgroup  as stacked_matvec
// needs        as matvec
// sums         as matvec, for each product
// source       lily's own prototype
template <typename FG, typename FU, typename T, typename U, int N, int K, int ROWS, int SIMDGROUPS, bool NORM,
          bool ONE>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void gated_matvec(
    const device uint* gate [[buffer(0)]], const device uint* up [[buffer(1)]], const device T* x [[buffer(2)]],
    const device float* norm [[buffer(3)]], device U* out [[buffer(4)]], constant NormParams& params [[buffer(5)]],
    const device uint* control [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float values[tile_of<K>::FLOATS];
  threadgroup float2 sums[tile_of<K>::SUMS];
  threadgroup float squares[SIMDGROUPS];
  LILY_TRIGGER();
  const uint token = ONE ? 0 : group.y;
  if (!ONE) {
    LILY_WAIT();
    if (token >= active_rows<ONE>(control)) return;  // the whole threadgroup
  }
  constexpr int TAKES = SIMDGROUPS * ROWS;
  typedef gated_kind<FG, FU, K, TAKES, SIMDGROUPS> kind;
  const thread_place at = place_of(index, simdgroup, lane);
  const uint first = group.x * TAKES;
  const int left = N - int(first);
  float g[kind::HELD];
  float u[kind::HELD];
  typename kind::block block;
  gate_and_up<false, NORM>(g, u, block, rows_at<FG, K>(gate, N, first), rows_at<FU, K>(up, N, first), left,
                           x + size_t(token) * K, norm, params.eps, staged_at(values, sums, squares), 0.0f, at,
                           typename kind::formats());
  store_gated<kind::HELD>(out + size_t(token) * N + first, g, u, held_by<TAKES, SIMDGROUPS, kind::OWN>(left, at));
}
