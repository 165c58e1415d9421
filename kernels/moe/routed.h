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
  constexpr uint TAKES = SIMDGROUPS * ROWS, PER_SLOT = (uint(N) + TAKES - 1) / TAKES;
  const staged_x tile = staged_at(values, sums, squares);
  const thread_place at = place_of(index, simdgroup, lane);
  float g[ROWS];
  float u[ROWS];
  if (group != 0) LILY_TRIGGER();
  if (group < PER_SLOT * TOP_K) {
    const uint slot = group / PER_SLOT;
    const uint first = (group % PER_SLOT * SIMDGROUPS + simdgroup) * ROWS;
    const uint row = clamped_row<ROWS>(first, N);
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
    float squares_here = 0.0f;
    if (K % 8 == 0) squares_here = stage_chunks<FG, K, SIMDGROUPS * 32, NORM>(tile, chunks, norm_chunks, 0, index);
    else squares_here = stage_values<K, SIMDGROUPS * 32, NORM>(tile, x, norm, 0, index);
    publish_squares<NORM>(tile, squares_here, at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const size_t all_rows = size_t(EXPERTS) * N, expert_row = size_t(picked[0]) * N + row;
    gate_and_up<K, ROWS, SIMDGROUPS, NORM, true>(g, u, rows_at<FG, K>(gate, all_rows, expert_row),
                                                 rows_at<FU, K>(up, all_rows, expert_row), x, norm, params.eps, tile,
                                                 squares_here, at);
    store_gated<ROWS>(out + slot * N, g, u, first, row, lane);
  } else {
    const uint first = ((group - PER_SLOT * TOP_K) * SIMDGROUPS + simdgroup) * ROWS;
    const uint row = clamped_row<ROWS>(first, SHARED_N);
    gate_and_up<K, ROWS, SIMDGROUPS, NORM, false>(g, u, rows_at<SG, K>(shared_gate_proj, SHARED_N, row),
                                                  rows_at<SU, K>(shared_up_proj, SHARED_N, row), x, norm, params.eps,
                                                  tile, 0.0f, at);
    store_gated<ROWS>(shared_out, g, u, first, row, lane);
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

// routed_down: down projections of the experts chosen by routed_gated_matvec and of the shared one, weighted,
// onto the residual stream: x += sum_j weights[j] mid[j] Wd[e_j]^T + weights[TOP_K] shared_mid Vd^T.
//
// operands     mid float[TOP_K, N]; shared_mid float[SHARED_N]; experts uint[TOP_K]; weights float[TOP_K + 1]
//              down: packed matrices [EXPERTS][DIM, N] of format F; shared_down: packed matrix [DIM, SHARED_N]
//              of format S; x float[DIM], read and written
// ownership    a threadgroup owns ROWS outputs; simdgroup s takes slots s, s + SIMDGROUPS, ... of the TOP_K + 1,
//              the shared expert being the last. Each row of activations is read once per threadgroup, so
//              none is staged. The experts are read and their matrices asked for ahead of LILY_WAIT.
// threadgroup  4 bytes per slot and row
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
  threadgroup float part[(TOP_K + 1) * ROWS];
  LILY_TRIGGER();
  const uint first = group * ROWS;
  const uint row = clamped_row<ROWS>(first, DIM);
  const bool owner = index < uint(ROWS) && row + index >= first;
  float sum = 0.0f;
  for (uint slot = simdgroup; slot <= uint(TOP_K); slot += SIMDGROUPS) {
    float products[ROWS];
    if (slot < uint(TOP_K)) {
      const size_t expert = LILY_READ_PUBLISHED(experts + slot);
      const matrix_rows<F> rows = rows_at<F, N>(down, size_t(EXPERTS) * DIM, expert * DIM + row);
      row_batch<F, N, ROWS> batch;
      load_batch<F, N, ROWS, 1>(batch, &rows, 0, lane);
      LILY_WAIT();
      if (slot == 0 && owner) sum = x[row + index];
      multiply_rows_direct<F, N, ROWS>(products, batch, rows, mid + slot * N, lane);
    } else {
      const matrix_rows<S> rows = rows_at<S, SHARED_N>(shared_down, DIM, row);
      row_batch<S, SHARED_N, ROWS> batch;
      load_batch<S, SHARED_N, ROWS, 1>(batch, &rows, 0, lane);
      LILY_WAIT();
      multiply_rows_direct<S, SHARED_N, ROWS>(products, batch, rows, shared_mid, lane);
    }
    if (lane == 0) {
      const float weight = weights[slot];
      UNROLL for (int r = 0; r < ROWS; r++) part[slot * ROWS + r] = weight * products[r];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (owner) {
    for (int slot = 0; slot <= TOP_K; slot++) sum += part[slot * ROWS + index];
    x[row + index] = sum;
  }
}
