// Rows of a matrix times one row of activations: the loop of the matrix-vector kernels, but where a back end has a form of
// its own (row_block.h).
//
// A simdgroup takes some neighbouring rows. A lane takes packet 32 i + lane of each of them in step i, so a
// simdgroup reads a row in whole lines. Steps come in batches whose packets are all in flight at once; the
// first batch is asked for before LILY_WAIT, because weights depend on no earlier step.
//
// Order of a sum: a lane adds its packets in ascending order, then simd_sum adds the lanes. It depends on
// the format and on K alone: not on the grid, nor on the rows of a simdgroup, nor on how many rows of
// activations there are. The sum of squares of a folded norm also depends on the number of simdgroups.
#pragma once
#include "common/stage.h"

// How a simdgroup walks through ROWS rows of K values.
template <typename F, int K, int ROWS> struct row_plan {
  enum : int {
    V = lane_values<F, K>::COUNT,
    STEP = 32 * V,
    STEPS = (K + STEP - 1) / STEP,
    // 32 words of packets in flight keep the memory busy and leave registers for the arithmetic.
    FIT = 32 / (ROWS * packet<F, V>::WORDS),
    MOST = FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1,
    WHOLE = tile_of<K>::VALUES == K,
    // A power of two where the row is staged in several tiles, so that batches end where tiles do.
    BATCH = WHOLE ? (STEPS + (STEPS + MOST - 1) / MOST - 1) / ((STEPS + MOST - 1) / MOST)
            : MOST * STEP <= tile_of<K>::VALUES ? MOST
                                                : tile_of<K>::VALUES / STEP,
    BATCHES = (STEPS + BATCH - 1) / BATCH,
    TILE_BATCHES = WHOLE ? BATCHES : tile_of<K>::VALUES / (BATCH * STEP),
    EVEN = K % (STEP * BATCH) == 0
  };
};

// The packets in flight: one batch of steps of ROWS rows.
template <typename F, int K, int ROWS> struct row_batch {
  packet<F, row_plan<F, K, ROWS>::V> packets[row_plan<F, K, ROWS>::BATCH][ROWS];
  typename F::side_t sides[row_plan<F, K, ROWS>::BATCH][ROWS];
};

// The first of the ROWS rows of a simdgroup whose share begins at row `first` of n. Where fewer are left it
// starts earlier, so that every row it reads exists; it owns those from `first` on.
template <int ROWS> METAL_FUNC uint clamped_row(uint first, uint n) { return min(first, n - uint(ROWS)); }

// Asks for one batch of ROWS rows: the first ROWS / MATRICES of from[0], then as many of from[1].
template <typename F, int K, int ROWS, int MATRICES>
METAL_FUNC void load_batch(thread row_batch<F, K, ROWS>& to, const thread matrix_rows<F>* from, uint batch, uint lane) {
  typedef row_plan<F, K, ROWS> plan;
  UNROLL for (int s = 0; s < plan::BATCH; s++) {
    const uint index = ((batch * plan::BATCH + s) * 32 + lane) * plan::V;
    if (plan::EVEN || index < uint(K)) {
      UNROLL for (int r = 0; r < ROWS; r++) {
        const int matrix = r / (ROWS / MATRICES), row = r % (ROWS / MATRICES);
        load_packet(to.packets[s][r], from[matrix].words + row * row_of<F, K>::WORDS, index);
        if (F::QUANTISED) to.sides[s][r] = from[matrix].sides[row * row_of<F, K>::GROUPS + index / F::GROUP];
      }
    }
  }
}

// acc[r] = this lane's share of the dot of row r with norm(x); rows as in load_batch; norm(x) = x without NORM.
// The first tile of x is staged and the first batch asked for; `squares` is what staging gave this thread, and grows.
template <typename F, int K, int ROWS, int MATRICES, int SIMDGROUPS, bool NORM, typename T>
METAL_FUNC void accumulate_staged(thread float* acc, thread row_batch<F, K, ROWS>& batch,
                                  const thread matrix_rows<F>* from, const device T* x, const device float* norm,
                                  staged_x tile, thread float& squares, thread_place at) {
  typedef row_plan<F, K, ROWS> plan;
  UNROLL for (int r = 0; r < ROWS; r++) acc[r] = 0.0f;
  for (int b = 0; b < plan::BATCHES; b++) {
    if (b > 0) {
      load_batch<F, K, ROWS, MATRICES>(batch, from, b, at.lane);
      if (b % plan::TILE_BATCHES == 0) {
        const uint first = b * plan::BATCH * plan::STEP;
        tile_chunks<K, SIMDGROUPS * 32> norm_chunks;
        if (NORM) load_chunks(norm_chunks, norm, first, at.index);
        threadgroup_barrier(mem_flags::mem_threadgroup);  // all have read the tile before
        stage_tile<F, K, SIMDGROUPS, NORM>(tile, x, norm, norm_chunks, first, squares, at);
      }
    }
    UNROLL for (int s = 0; s < plan::BATCH; s++) {
      const uint in_tile = ((b % plan::TILE_BATCHES * plan::BATCH + s) * 32 + at.lane) * plan::V;
      if (plan::EVEN || ((b * plan::BATCH + s) * 32 + at.lane) * plan::V < uint(K)) {
        lane_x<plan::V> lx;
        read_staged<F>(lx, tile, in_tile);
        UNROLL for (int r = 0; r < ROWS; r++) {
          acc[r] = packet_dot(batch.packets[s][r], batch.sides[s][r], lx, acc[r]);
        }
      }
    }
  }
}

// products[r] = the sum of acc[r] over the lanes, the same in every lane, scaled by the norm.
template <int K, int ROWS, int SIMDGROUPS, bool NORM>
METAL_FUNC void sum_products(thread float* products, const thread float* acc, staged_x tile, float eps) {
  const float scale = NORM ? inverse_rms<K, SIMDGROUPS>(tile, eps) : 1.0f;
  UNROLL for (int r = 0; r < ROWS; r++) products[r] = simd_sum(acc[r]) * scale;
}

// products[r] = dot of row r with norm(x), the same in every lane; arguments as in accumulate_staged.
template <typename F, int K, int ROWS, int MATRICES, int SIMDGROUPS, bool NORM, typename T>
METAL_FUNC void multiply_staged(thread float* products, thread row_batch<F, K, ROWS>& batch,
                                const thread matrix_rows<F>* from, const device T* x, const device float* norm,
                                float eps, staged_x tile, float squares, thread_place at) {
  float acc[ROWS];
  accumulate_staged<F, K, ROWS, MATRICES, SIMDGROUPS, NORM>(acc, batch, from, x, norm, tile, squares, at);
  sum_products<K, ROWS, SIMDGROUPS, NORM>(products, acc, tile, eps);
}

// The same with nothing staged yet: asks for weights, waits for earlier steps, stages.
template <typename F, int K, int ROWS, int MATRICES, int SIMDGROUPS, bool NORM, typename T>
METAL_FUNC void multiply_rows(thread float* products, const thread matrix_rows<F>* from, const device T* x,
                              const device float* norm, float eps, staged_x tile, thread_place at) {
  row_batch<F, K, ROWS> batch;
  load_batch<F, K, ROWS, MATRICES>(batch, from, 0, at.lane);
  tile_chunks<K, SIMDGROUPS * 32> norm_chunks;
  if (NORM) load_chunks(norm_chunks, norm, 0, at.index);
  LILY_WAIT();
  float squares = 0.0f;
  stage_tile<F, K, SIMDGROUPS, NORM>(tile, x, norm, norm_chunks, 0, squares, at);
  multiply_staged<F, K, ROWS, MATRICES, SIMDGROUPS, NORM>(products, batch, from, x, norm, eps, tile, squares, at);
}
