// The feed-forward network of a mixture of experts for one token, in two steps.
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

// products[r] = dot of row r with x, read straight from device memory; the same in every lane. `batch` is the first
// one of the matrix, which has been asked for.
template <typename F, int K, int ROWS>
METAL_FUNC void multiply_rows_direct(thread float* products, thread row_batch<F, K, ROWS>& batch, matrix_rows<F> rows,
                                     const device float* x, uint lane) {
  typedef row_plan<F, K, ROWS> plan;
  float acc[ROWS];
  UNROLL for (int r = 0; r < ROWS; r++) acc[r] = 0.0f;
  for (int b = 0; b < plan::BATCHES; b++) {
    if (b > 0) load_batch<F, K, ROWS, 1>(batch, &rows, b, lane);
    UNROLL for (int s = 0; s < plan::BATCH; s++) {
      const uint index = ((b * plan::BATCH + s) * 32 + lane) * plan::V;
      if (plan::EVEN || index < uint(K)) {
        lane_x<plan::V> lx;
        read_direct<F>(lx, x + index);
        UNROLL for (int r = 0; r < ROWS; r++) {
          acc[r] = packet_dot(batch.packets[s][r], batch.sides[s][r], lx, acc[r]);
        }
      }
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++) products[r] = simd_sum(acc[r]);
}

// The down projection of one slot by one simdgroup: ROWS rows of a matrix times one row of activations. ask_slot comes
// before LILY_WAIT. Here every lane has all products; a back end's own form (LILY_NATIVE_ROWS) takes 16 rows at a time.
template <typename F, int K, int ROWS> struct slot_kind {
#ifdef LILY_NATIVE_ROWS
  enum : int {
    OWN = ROWS == 16 && K % 128 == 0 && K <= 1024 &&
          (is_same_v<F, affine<4, 64, bfloat>> || is_same_v<F, affine<4, 128, bfloat>>)
  };
  enum : int { WORDS = OWN ? K / 128 * int(DIGIT_WORDS_) + int(ZERO_WORDS_) : 4, SUMS = OWN ? K / 64 : 1 };
#else
  enum : int { OWN = 0, WORDS = 4, SUMS = 1 };
#endif
};
template <typename F, int K, int ROWS, int OWN = slot_kind<F, K, ROWS>::OWN> struct slot_rows {
  matrix_rows<F> from;
  row_batch<F, K, ROWS> batch;
};
template <typename F, int K, int ROWS>
METAL_FUNC void ask_slot(thread slot_rows<F, K, ROWS, 0>& rows, matrix_rows<F> from, uint lane) {
  rows.from = from;
  load_batch<F, K, ROWS, 1>(rows.batch, &rows.from, 0, lane);
}
// part[r] = weight times the product of row r. digits, sums: this simdgroup's own, as slot_kind says.
template <typename F, int K, int ROWS>
METAL_FUNC void multiply_slot(threadgroup float* part, thread slot_rows<F, K, ROWS, 0>& rows, const device float* x,
                              const device float* weight, threadgroup uint* digits, threadgroup float2* sums, uint lane) {
  float products[ROWS];
  multiply_rows_direct<F, K, ROWS>(products, rows.batch, rows.from, x, lane);
  if (lane == 0) {
    const float scale = *weight;
    UNROLL for (int r = 0; r < ROWS; r++) part[r] = scale * products[r];
  }
}

#ifdef LILY_NATIVE_ROWS
template <typename F, int K, int ROWS> struct slot_rows<F, K, ROWS, 1> {
  digit_weights_<K / 128> weights;
};
template <typename F, int K, int ROWS>
METAL_FUNC void ask_slot(thread slot_rows<F, K, ROWS, 1>& rows, matrix_rows<F> from, uint lane) {
  ask_weights_<K, F::GROUP>(rows.weights, from.words, (const device uint*)from.sides, int(lane / 4), int(lane / 4 + 8),
                            0);
}
template <typename F, int K, int ROWS>
METAL_FUNC void multiply_slot(threadgroup float* part, thread slot_rows<F, K, ROWS, 1>& rows, const device float* x,
                              const device float* weight, threadgroup uint* digits, threadgroup float2* sums, uint lane) {
  constexpr int COUNT = (K / 8 + 31) / 32;
  float4 low[COUNT], high[COUNT];
  const float scale = *weight;
  UNROLL for (int j = 0; j < COUNT; j++) load8(low[j], high[j], x + 8 * min(j * 32 + lane, uint(K / 8 - 1)));
  UNROLL for (int j = 0; j < COUNT; j++) {
    store_digits_(digits, sums, low[j], high[j], j * 32 + lane, j * 32 + lane < uint(K / 8));
  }
  threadgroup uint* zeros = digits + K / 128 * int(DIGIT_WORDS_);
  if (lane < uint(ZERO_WORDS_)) zeros[lane] = 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  float y[2] = {0.0f, 0.0f};
  multiply_digits_(y, rows.weights, digits, zeros, sums, 0);
  sum_quad_(y);
  if (lane % 4 == 0) {
    part[lane / 4] = scale * y[0];
    part[lane / 4 + 8] = scale * y[1];
  }
}
#endif

// routed_down: down projections of the experts chosen by routed_gated_matvec and of the shared one, weighted,
// onto the residual stream: x += sum_j weights[j] mid[j] Wd[e_j]^T + weights[TOP_K] shared_mid Vd^T.
//
// operands     mid float[TOP_K, N]; shared_mid float[SHARED_N]; experts uint[TOP_K]; weights float[TOP_K + 1]
//              down: packed matrices [EXPERTS][DIM, N] of format F; shared_down: packed matrix [DIM, SHARED_N]
//              of format S; x float[DIM], read and written
// ownership    a threadgroup owns ROWS outputs; simdgroup s takes slots s, s + SIMDGROUPS, ... of the TOP_K + 1,
//              the shared expert being the last. Each row of activations is read once per threadgroup, so
//              none is staged for others. The experts are read and their matrices asked for ahead of LILY_WAIT.
// threadgroup  4 bytes per slot and row, and what slot_kind says per simdgroup
// needs        ROWS <= DIM, ROWS <= 32; else as matvec
// sums         a product as in matvec; then x + slot 0 + slot 1 + ... + the shared expert
// source       lily's own prototype
template <typename F, typename S, int EXPERTS, int TOP_K, int N, int SHARED_N, int DIM, int ROWS, int SIMDGROUPS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void routed_down(
    const device float* mid [[buffer(0)]], const device float* shared_mid [[buffer(1)]],
    const device uint* experts [[buffer(2)]], const device float* weights [[buffer(3)]],
    const device uint* down [[buffer(4)]], const device uint* shared_down [[buffer(5)]], device float* x [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  typedef slot_kind<F, N, ROWS> routed;
  typedef slot_kind<S, SHARED_N, ROWS> shared;
  constexpr int WORDS = routed::WORDS > shared::WORDS ? routed::WORDS : shared::WORDS;
  constexpr int SUMS = routed::SUMS > shared::SUMS ? routed::SUMS : shared::SUMS;
  threadgroup float part[(TOP_K + 1) * ROWS];
  threadgroup uint4 digits[SIMDGROUPS * WORDS / 4];
  threadgroup float2 sums[SIMDGROUPS * SUMS];
  LILY_TRIGGER();
  const uint first = group * ROWS;
  const uint row = clamped_row<ROWS>(first, DIM);
  const bool owner = index < uint(ROWS) && row + index >= first;
  threadgroup uint* own_digits = (threadgroup uint*)digits + simdgroup * WORDS;
  threadgroup float2* own_sums = sums + simdgroup * SUMS;
  float sum = 0.0f;
  for (uint slot = simdgroup; slot <= uint(TOP_K); slot += SIMDGROUPS) {
    if (slot < uint(TOP_K)) {
      const size_t expert = LILY_READ_PUBLISHED(experts + slot);
      slot_rows<F, N, ROWS> rows;
      ask_slot(rows, rows_at<F, N>(down, size_t(EXPERTS) * DIM, expert * DIM + row), lane);
      LILY_WAIT();
      if (slot == 0 && owner) sum = x[row + index];
      multiply_slot(part + slot * ROWS, rows, mid + slot * N, weights + slot, own_digits, own_sums, lane);
    } else {
      slot_rows<S, SHARED_N, ROWS> rows;
      ask_slot(rows, rows_at<S, SHARED_N>(shared_down, DIM, row), lane);
      LILY_WAIT();
      multiply_slot(part + slot * ROWS, rows, shared_mid, weights + slot, own_digits, own_sums, lane);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);      // before its memory serves the next slot
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (owner) {
    for (int slot = 0; slot <= TOP_K; slot++) sum += part[slot * ROWS + index];
    x[row + index] = sum;
  }
}
