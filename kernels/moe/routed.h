// Routing, and the gate and up projections of the experts, for one token.
#pragma once
#include "common/gated_rows.h"
#include "moe/top_k.h"
#include "params.h"

// routed_gated_matvec: routing, and gate and up projections of the experts chosen and of the shared one.
// h = norm(x), norm as in stacked_matvec; e_j the TOP_K largest logits (ties: the lower index):
//   out[j] = silu(h Wg[e_j]^T) * (h Wu[e_j]^T)     shared_out = silu(h Vg^T) * (h Vu^T)
//   experts[j] = e_j     weights[j] = softmax over the chosen logits     weights[TOP_K] = sigmoid(shared_gate)
//
// operands     x float[K]; norm float[K], not read without NORM; logits float[EXPERTS]; shared_gate float[1]
//              gate, up: packed matrices [EXPERTS][N, K] of formats FG, FU
//              shared_gate_proj, shared_up_proj: packed matrices [SHARED_N, K] of formats SG, SU
//              experts uint[TOP_K]; weights float[TOP_K + 1]; out float[TOP_K, N]; shared_out float[SHARED_N]
// ownership    threadgroups: for each slot j those of its N rows, then those of the shared expert; each owns
//              SIMDGROUPS * ROWS rows of both matrices. Every one of a slot finds the slot's expert itself:
//              simdgroup 0, before its share of staging h. Threadgroup 0 writes experts and weights and publishes
//              them, so that routed_down can ask for its matrices early.
// threadgroup  as stacked_matvec, and 4 bytes
// needs        TOP_K <= 32, TOP_K <= EXPERTS <= 1024, SIMDGROUPS >= 2; N, SHARED_N >= ROWS; else as matvec
// sums         as matvec, for each product
// source       lily's own prototype
template <typename FG, typename FU, typename SG, typename SU, int EXPERTS, int TOP_K, int N, int SHARED_N, int K,
          int ROWS, int SIMDGROUPS, bool NORM>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void routed_gated_matvec(
    const device float* x [[buffer(0)]], const device float* norm [[buffer(1)]],
    const device float* logits [[buffer(2)]], const device float* shared_gate [[buffer(3)]],
    const device uint* gate [[buffer(4)]],
    const device uint* up [[buffer(5)]], const device uint* shared_gate_proj [[buffer(6)]],
    const device uint* shared_up_proj [[buffer(7)]], device uint* experts [[buffer(8)]],
    device float* weights [[buffer(9)]], device float* out [[buffer(10)]], device float* shared_out [[buffer(11)]],
    constant NormParams& params [[buffer(12)]], uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float values[tile_of<K>::FLOATS];
  threadgroup float2 sums[tile_of<K>::SUMS];
  threadgroup float squares[SIMDGROUPS];
  threadgroup uint picked[1];
  constexpr int TAKES = SIMDGROUPS * ROWS;
  constexpr uint PER_SLOT = (uint(N) + TAKES - 1) / TAKES;
  const staged_x tile = staged_at(values, sums, squares);
  const thread_place at = place_of(index, simdgroup, lane);
  if (group != 0) LILY_TRIGGER();
  if (group < PER_SLOT * TOP_K) {
    typedef gated_kind<FG, FU, K, TAKES, SIMDGROUPS> kind;
    const uint slot = group / PER_SLOT;
    const uint first = group % PER_SLOT * TAKES;
    const int left = N - int(first);
    tile_chunks<K, SIMDGROUPS * 32> norm_chunks, chunks;
    if (NORM) load_chunks(norm_chunks, norm, 0, index);
    LILY_WAIT();
    load_chunks(chunks, x, 0, index);
    if (simdgroup == 0) {  // the others stage meanwhile
      uint expert;
      float weight;
      top_k<EXPERTS, TOP_K>(logits, lane, expert, weight);
      if (lane == slot) picked[0] = expert;
      if (group == 0) {
        if (lane < uint(TOP_K)) {
          experts[lane] = expert;
          weights[lane] = weight;
        }
        if (lane == 0) weights[TOP_K] = sigmoid(shared_gate[0]);
        LILY_PUBLISH();
        LILY_TRIGGER();
      }
    }
    typename kind::block block;
    float squares_here = 0.0f;
    if (K % 8 == 0) {
      stage_loaded<NORM>(block, tile, chunks, norm_chunks, squares_here, at);
    } else {
      squares_here = stage_values<K, SIMDGROUPS * 32, NORM>(tile, x, norm, 0, index);
      publish_squares<NORM>(tile, squares_here, at);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const size_t all_rows = size_t(EXPERTS) * N, expert_row = size_t(picked[0]) * N + first;
    float g[kind::HELD], u[kind::HELD];
    gate_and_up<true, NORM>(g, u, block, rows_at<FG, K>(gate, all_rows, expert_row),
                            rows_at<FU, K>(up, all_rows, expert_row), left, x, norm, params.eps, tile, squares_here,
                            at, typename kind::formats());
    store_gated<kind::HELD>(out + slot * N + first, g, u, held_by<TAKES, SIMDGROUPS, kind::OWN>(left, at));
  } else {
    typedef gated_kind<SG, SU, K, TAKES, SIMDGROUPS> kind;
    const uint first = (group - PER_SLOT * TOP_K) * TAKES;
    const int left = SHARED_N - int(first);
    float g[kind::HELD], u[kind::HELD];
    typename kind::block block;
    gate_and_up<false, NORM>(g, u, block, rows_at<SG, K>(shared_gate_proj, SHARED_N, first),
                             rows_at<SU, K>(shared_up_proj, SHARED_N, first), left, x, norm, params.eps, tile, 0.0f,
                             at, typename kind::formats());
    store_gated<kind::HELD>(shared_out + first, g, u, held_by<TAKES, SIMDGROUPS, kind::OWN>(left, at));
  }
}
