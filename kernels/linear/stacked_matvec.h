// Several projections of one input in one step.
#pragma once
#include "linear/matvec.h"
#include "params.h"

// Threadgroups that a part of n rows takes.
template <int N, int ROWS, int SIMDGROUPS> struct part_of {
  enum : uint { GROUPS = (uint(N) + ROWS * SIMDGROUPS - 1) / (ROWS * SIMDGROUPS) };
};

// The rows of threadgroup `group` of a part of n rows for the row x of activations: out = norm(x) W^T. With TURNS > 1 it
// takes as many shares of them, every `groups`th: x is staged once.
// How this is written decides how NVRTC schedules it: with the loop over the turns or the choice of out below put in
// other words, an H200 gives the same results at 919 to 933 tokens/s in place of 942.
template <typename F, int K, int ROWS, int SIMDGROUPS, bool NORM, int TURNS>
METAL_FUNC void multiply_part(device float* out, const device uint* weight, uint n, uint group, const device float* x,
                              const device float* norm, float eps, staged_x tile, thread_place at) {
  constexpr int TAKES = SIMDGROUPS * ROWS;
  static_assert(TURNS == 1 || tile_of<K>::VALUES == K, "what is staged serves all turns");
  typedef row_block_kind<F, K, TAKES, 1, SIMDGROUPS> kind;
  const uint shares = (n + TAKES - 1) / TAKES, groups = (shares + TURNS - 1) / TURNS;
  matrix_rows<F> from[1];
  from[0] = rows_at<F, K>(weight, n, group * TAKES);
  row_block<F, K, TAKES, 1, SIMDGROUPS> block;
  ask_rows(block, from, int(n - group * TAKES), at);
  tile_chunks<K, SIMDGROUPS * 32> norm_chunks;
  if (NORM) load_chunks(norm_chunks, norm, 0, at.index);
  LILY_WAIT();
  float squares = 0.0f;
  stage_block<NORM>(block, tile, x, norm, norm_chunks, squares, at);
  for (int turn = 0; turn < TURNS; turn++) {
    const uint share = group + turn * groups, first = share * TAKES, next = (share + groups) * TAKES;
    float parts[kind::PARTS], products[kind::HELD];
    accumulate_rows<NORM>(parts, block, x, norm, tile, squares, at);
    const bool more = TURNS > 1 && next < n;
    if (more) {  // under way while the lanes add up
      from[0] = rows_at<F, K>(weight, n, next);
      ask_rows(block, from, int(n - next), at);
    }
    sum_rows<NORM>(block, products, parts, tile, eps, turn, at);
    store_held<kind::HELD>(out + first, products, held_by<TAKES, SIMDGROUPS, kind::OWN>(int(n - first), at));
    if (!more) break;  // of the whole threadgroup
  }
}

// stacked_matvec: out_i[t] = norm(x[t]) W_i^T for up to four matrices; norm(x) = x without NORM, else
// x / sqrt(mean(x^2) + eps) * weight of the norm.
//
// operands     x        float[rows, K]
//              norm     float[K]; not read without NORM
//              weight_i packed matrix [N_i, K] of format F_i
//              out_i    float[rows, N_i]
//              control  uint[2]: first position, active rows
//              An unused part has N_i = 0, the format of part 0, and any buffer.
// ownership    grid x: the threadgroups of part 0, then those of part 1, ...; one of part i owns
//              SIMDGROUPS * ROWS_i rows of W_i. Grid y: a row of x. Else as matvec. With TURNS > 1, for one part
//              alone: every ceil(threadgroups / TURNS)th such share.
// norm         each threadgroup sums the squares while it stages x * weight; the products are scaled by the
//              inverse root at the end.
// threadgroup  as matvec, and 4 bytes per simdgroup
// needs        as matvec, for each part
// sums         as matvec
// source       stacking by constants instead of concatenated weights: lily's own prototype
template <int K, int SIMDGROUPS, bool NORM, bool ONE, int TURNS, typename F0, int N0, int ROWS0, typename F1, int N1,
          int ROWS1, typename F2, int N2, int ROWS2, typename F3, int N3, int ROWS3>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void stacked_matvec(
    const device float* x [[buffer(0)]], const device float* norm [[buffer(1)]],
    const device uint* weight0 [[buffer(2)]], const device uint* weight1 [[buffer(3)]],
    const device uint* weight2 [[buffer(4)]], const device uint* weight3 [[buffer(5)]],
    device float* out0 [[buffer(6)]], device float* out1 [[buffer(7)]], device float* out2 [[buffer(8)]],
    device float* out3 [[buffer(9)]], constant NormParams& params [[buffer(10)]],
    const device uint* control [[buffer(11)]], uint2 group [[threadgroup_position_in_grid]],
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
  constexpr uint END0 = part_of<N0, ROWS0, SIMDGROUPS>::GROUPS;
  constexpr uint END1 = END0 + part_of<N1, ROWS1, SIMDGROUPS>::GROUPS;
  constexpr uint END2 = END1 + part_of<N2, ROWS2, SIMDGROUPS>::GROUPS;
  constexpr bool ALIKE = is_same_v<F0, F1> && is_same_v<F0, F2> && is_same_v<F0, F3> &&
                         (N1 == 0 || ROWS1 == ROWS0) && (N2 == 0 || ROWS2 == ROWS0) && (N3 == 0 || ROWS3 == ROWS0);
  const staged_x tile = staged_at(values, sums, squares);
  const thread_place at = place_of(index, simdgroup, lane);
  const device float* row = x + size_t(token) * K;
  const uint g = group.x;
  if (ALIKE) {  // one body for all: less to compile
    const uint n = g < END0 ? N0 : g < END1 ? N1 : g < END2 ? N2 : N3;
    const uint start = g < END0 ? 0 : g < END1 ? END0 : g < END2 ? END1 : END2;
    const device uint* weight = g < END0 ? weight0 : g < END1 ? weight1 : g < END2 ? weight2 : weight3;
    device float* out = g < END0 ? out0 : g < END1 ? out1 : g < END2 ? out2 : out3;
    multiply_part<F0, K, ROWS0, SIMDGROUPS, NORM, TURNS>(out + size_t(token) * n, weight, n, g - start, row, norm,
                                                         params.eps, tile, at);
  } else if (g < END0) {
    multiply_part<F0, K, ROWS0, SIMDGROUPS, NORM, 1>(out0 + size_t(token) * N0, weight0, N0, g, row, norm, params.eps,
                                                     tile, at);
  } else if (g < END1) {
    multiply_part<F1, K, ROWS1, SIMDGROUPS, NORM, 1>(out1 + size_t(token) * N1, weight1, N1, g - END0, row, norm,
                                                     params.eps, tile, at);
  } else if (g < END2) {
    multiply_part<F2, K, ROWS2, SIMDGROUPS, NORM, 1>(out2 + size_t(token) * N2, weight2, N2, g - END1, row, norm,
                                                     params.eps, tile, at);
  } else {
    multiply_part<F3, K, ROWS3, SIMDGROUPS, NORM, 1>(out3 + size_t(token) * N3, weight3, N3, g - END2, row, norm,
                                                     params.eps, tile, at);
  }
}
