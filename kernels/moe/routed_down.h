// The down projections of the experts for one token.
#pragma once
#include "common/row_block.h"

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
    OWN = ROWS == 16 && K % 128 == 0 && K <= 1024 && digit_format<F>::TAKEN
  };
  enum : int { WORDS = OWN ? K / 128 * int(DIGIT_WORDS) + int(ZERO_WORDS) : 4, SUMS = OWN ? K / 64 : 1 };
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
  digit_weights<K / 128> weights;
};
template <typename F, int K, int ROWS>
METAL_FUNC void ask_slot(thread slot_rows<F, K, ROWS, 1>& rows, matrix_rows<F> from, uint lane) {
  ask_weights<K>(rows.weights, row_after<K>(from, int(lane / 4)), row_after<K>(from, int(lane / 4 + 8)), 0, lane);
}
template <typename F, int K, int ROWS>
METAL_FUNC void multiply_slot(threadgroup float* part, thread slot_rows<F, K, ROWS, 1>& rows, const device float* x,
                              const device float* weight, threadgroup uint* digits, threadgroup float2* sums, uint lane) {
  constexpr int COUNT = (K / 8 + 31) / 32;
  float4 low[COUNT], high[COUNT];
  const float scale = *weight;
  UNROLL for (int j = 0; j < COUNT; j++) load8(low[j], high[j], x + 8 * min(j * 32 + lane, uint(K / 8 - 1)));
  UNROLL for (int j = 0; j < COUNT; j++) {
    store_digits(digits, sums, low[j], high[j], j * 32 + lane, j * 32 + lane < uint(K / 8));
  }
  threadgroup uint* zeros = digits + K / 128 * int(DIGIT_WORDS);
  if (lane < uint(ZERO_WORDS)) zeros[lane] = 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  float y[2] = {0.0f, 0.0f};
  multiply_digits(y, rows.weights, digits, zeros, sums, 0, lane);
  sum_quad(y);
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
