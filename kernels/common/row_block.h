// The rows of matrices that a threadgroup multiplies with one row of activations: TAKES rows of each of MATRICES
// matrices of one format.
//
// Used in this order: ask_rows, LILY_WAIT, stage_block, accumulate_rows, sum_rows; held_by says which products a thread
// then holds. Here a simdgroup owns some neighbouring rows whole (row_products.h). A back end may bring its own way for
// 4-bit matrices with bfloat scales (LILY_NATIVE_ROWS, digits.h); both keep the staged row in the same memory.
//
// Of that form: whole tiles of 16 rows, rows of K = 256 n up to 5120 in whole shares of 128 values per simdgroup. Order of
// a sum: groups in ascending order within a lane's share of K, the four lanes of a quad, then the simdgroups that share K.
// It depends on format, K and how the threadgroup is cut, which is the same for all rows of a matrix.
#pragma once
#include "common/digits.h"
#include "common/row_products.h"

// How a block is multiplied. HELD: products of one matrix that a thread holds. PARTS: what a lane adds up.
template <typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS> struct row_block_kind {
#ifdef LILY_NATIVE_ROWS
  enum : int {
    TILES = MATRICES * TAKES / 16,                      // of 16 rows
    SPLITS = TILES > 0 && TILES <= SIMDGROUPS ? SIMDGROUPS / (TILES > 0 ? TILES : 1) : 1,  // of K
    WORDS = K / 128 * int(DIGIT_WORDS) + int(ZERO_WORDS),
    FITS = TAKES % 16 == 0 && TILES * SPLITS == SIMDGROUPS && K % (128 * SPLITS) == 0 && K % 256 == 0 &&
           tile_of<K>::VALUES == K && WORDS + 2 * 16 * SIMDGROUPS <= tile_of<K>::FLOATS && TAKES <= SIMDGROUPS * 32,
    OWN = FITS && digit_format<F>::TAKEN
  };
#else
  enum : int { OWN = 0 };
#endif
  enum : int { HELD = OWN ? 1 : TAKES / SIMDGROUPS, PARTS = OWN ? 2 : MATRICES * HELD };
};

// The rows as they are asked for.
template <typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS,
          int OWN = row_block_kind<F, K, TAKES, MATRICES, SIMDGROUPS>::OWN>
struct row_block {
  row_batch<F, K, MATRICES * TAKES / SIMDGROUPS> batch;
  matrix_rows<F> from[MATRICES];
};

// Products that a thread holds: of rows row, row + 1, ... counted from the first row of the block; it stores those from
// begin on below end. All of them are rows of the matrix.
struct held_rows {
  int row;
  int begin;
  int end;
};

// The first row that a simdgroup of rows ROWS takes of a block of which `left` rows are there: earlier than its share
// where fewer are left, so that every row it reads exists.
template <int ROWS> METAL_FUNC int first_taken(int left, thread_place at) {
  return min(int(at.simdgroup) * ROWS, left - ROWS);
}

// The rows `row` after these, or before.
template <int K, typename F> METAL_FUNC matrix_rows<F> row_after(matrix_rows<F> rows, int row) {
  rows.words += row * int(row_of<F, K>::WORDS);
  rows.sides += row * int(row_of<F, K>::GROUPS);
  return rows;
}

template <int TAKES, int SIMDGROUPS, int OWN> METAL_FUNC held_rows held_by(int left, thread_place at) {
  held_rows held;
  if (OWN) {
    const int last = min(TAKES, left) - 1;
    held.row = min(int(at.index), last);
    held.begin = 0;
    held.end = int(at.index) <= last ? left : 0;
  } else {
    constexpr int ROWS = TAKES / SIMDGROUPS;
    held.row = first_taken<ROWS>(left, at);
    held.begin = int(at.simdgroup) * ROWS;
    held.end = at.lane == 0 ? left : 0;
  }
  return held;
}

// Asks for the rows of a block: first[m] is where row 0 of it lies in matrix m, of which `left` rows follow.
template <typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
METAL_FUNC void ask_rows(thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 0>& block,
                         const thread matrix_rows<F>* first, int left, thread_place at) {
  constexpr int ROWS = TAKES / SIMDGROUPS;
  const int row = first_taken<ROWS>(left, at);
  UNROLL for (int m = 0; m < MATRICES; m++) block.from[m] = row_after<K>(first[m], row);
  load_batch<F, K, MATRICES * ROWS, MATRICES>(block.batch, block.from, 0, at.lane);
}

// Stages what load_chunks has brought, and passes the barrier that makes it readable. squares: as in stage_tile.
template <bool NORM, typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
METAL_FUNC void stage_loaded(const thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 0>& block, staged_x tile,
                             const thread tile_chunks<K, SIMDGROUPS * 32>& chunks,
                             const thread tile_chunks<K, SIMDGROUPS * 32>& norm_chunks, thread float& squares,
                             thread_place at) {
  squares += stage_chunks<F, K, SIMDGROUPS * 32, NORM>(tile, chunks, norm_chunks, 0, at.index);
  publish_squares<NORM>(tile, squares, at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Stages the first tile of x.
template <bool NORM, typename T, typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS, int OWN>
METAL_FUNC void stage_block(const thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, OWN>& block, staged_x tile,
                            const device T* x, const device float* norm,
                            const thread tile_chunks<K, SIMDGROUPS * 32>& norm_chunks, thread float& squares,
                            thread_place at) {
  if (OWN) {
    tile_chunks<K, SIMDGROUPS * 32> chunks;
    load_chunks(chunks, x, 0, at.index);
    stage_loaded<NORM>(block, tile, chunks, norm_chunks, squares, at);
  } else {
    stage_tile<F, K, SIMDGROUPS, NORM>(tile, x, norm, norm_chunks, 0, squares, at);
  }
}

// parts[] = this lane's share of the products, of rows that have been asked for with the x that has been staged.
template <bool NORM, typename T, typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
METAL_FUNC void accumulate_rows(thread float* parts, thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 0>& block,
                                const device T* x, const device float* norm, staged_x tile, thread float& squares,
                                thread_place at) {
  accumulate_staged<F, K, MATRICES * TAKES / SIMDGROUPS, MATRICES, SIMDGROUPS, NORM>(parts, block.batch, block.from, x,
                                                                                     norm, tile, squares, at);
}

// products[m * HELD + i] = product of held row i with matrix m, scaled by the norm. All threads call it; `turn` counts
// its calls since x was staged.
template <bool NORM, typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
METAL_FUNC void sum_rows(const thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 0>& block, thread float* products,
                         const thread float* parts, staged_x tile, float eps, uint turn, thread_place at) {
  sum_products<K, MATRICES * TAKES / SIMDGROUPS, SIMDGROUPS, NORM>(products, parts, tile, eps);
}

// out[row] = products[i] for the rows held; out is that of row 0 of the block.
template <int HELD, typename O> METAL_FUNC void store_held(device O* out, const thread float* products, held_rows held) {
  UNROLL for (int i = 0; i < HELD; i++) {
    if (held.row + i >= held.begin && held.row + i < held.end) out[held.row + i] = O(products[i]);
  }
}

#ifdef LILY_NATIVE_ROWS
// A simdgroup takes one tile of 16 rows and one of SPLITS shares of K.
template <typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
struct row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 1> {
  typedef row_block_kind<F, K, TAKES, MATRICES, SIMDGROUPS> kind;
  enum : int { CHUNKS = K / 128 / kind::SPLITS };
  digit_weights<CHUNKS> weights;
};

template <typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
METAL_FUNC void ask_rows(thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 1>& block,
                         const thread matrix_rows<F>* first, int left, thread_place at) {
  typedef row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 1> own;
  constexpr uint SPLITS = own::kind::SPLITS, TILES_OF_ONE = TAKES / 16;
  const uint tile = at.simdgroup / SPLITS, split = at.simdgroup % SPLITS;
  const int row = int(tile % TILES_OF_ONE * 16 + at.lane / 4);
  const matrix_rows<F> from = MATRICES > 1 && tile >= TILES_OF_ONE ? first[MATRICES - 1] : first[0];
  ask_weights<K>(block.weights, row_after<K>(from, min(row, left - 1)), row_after<K>(from, min(row + 8, left - 1)),
                 split * own::CHUNKS, at.lane);
}

template <bool NORM, typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
METAL_FUNC void stage_loaded(const thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 1>& block, staged_x tile,
                             const thread tile_chunks<K, SIMDGROUPS * 32>& chunks,
                             const thread tile_chunks<K, SIMDGROUPS * 32>& norm_chunks, thread float& squares,
                             thread_place at) {
  threadgroup uint* digits = (threadgroup uint*)tile.values;
  UNROLL for (int j = 0; j < tile_chunks<K, SIMDGROUPS * 32>::COUNT; j++) {
    const uint c = j * (SIMDGROUPS * 32) + at.index;
    if (uint(j * SIMDGROUPS) + at.simdgroup >= uint(K / 256)) continue;  // of a whole simdgroup
    float4 a = chunks.low[j], b = chunks.high[j];
    if (NORM) {
      squares += dot(a, a) + dot(b, b);
      a *= norm_chunks.low[j];
      b *= norm_chunks.high[j];
    }
    store_digits(digits, tile.sums, a, b, c, true);
  }
  if (at.index < uint(ZERO_WORDS)) digits[K / 128 * int(DIGIT_WORDS) + at.index] = 0;
  publish_squares<NORM>(tile, squares, at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

template <bool NORM, typename T, typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
METAL_FUNC void accumulate_rows(thread float* parts, thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 1>& block,
                                const device T* x, const device float* norm, staged_x tile, thread float& squares,
                                thread_place at) {
  typedef row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 1> own;
  const threadgroup uint* digits = (const threadgroup uint*)tile.values;
  parts[0] = 0.0f;
  parts[1] = 0.0f;
  // The lane counted from the index: from at.lane NVRTC makes code with up to nine registers more.
  multiply_digits(parts, block.weights, digits, digits + K / 128 * int(DIGIT_WORDS), tile.sums,
                  at.simdgroup % own::kind::SPLITS * own::CHUNKS, at.index % 32);
}

template <bool NORM, typename F, int K, int TAKES, int MATRICES, int SIMDGROUPS>
METAL_FUNC void sum_rows(const thread row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 1>& block, thread float* products,
                         const thread float* parts, staged_x tile, float eps, uint turn, thread_place at) {
  typedef row_block<F, K, TAKES, MATRICES, SIMDGROUPS, 1> own;
  constexpr uint SPLITS = own::kind::SPLITS;
  // Two areas in turn: what was written two turns ago has been read by all.
  threadgroup float* shares = tile.values + own::kind::WORDS + turn % 2 * (16 * SIMDGROUPS);
  float y[2] = {parts[0], parts[1]};
  sum_quad(y);
  if (at.lane % 4 == 0) {
    shares[at.simdgroup * 16 + at.lane / 4] = y[0];
    shares[at.simdgroup * 16 + at.lane / 4 + 8] = y[1];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float scale = NORM ? inverse_rms<K, SIMDGROUPS>(tile, eps) : 1.0f;
  const uint row = min(at.index, uint(TAKES - 1));
  UNROLL for (int m = 0; m < MATRICES; m++) {
    const threadgroup float* of = shares + (m * TAKES + row / 16 * 16) * SPLITS + row % 16;
    float sum = 0.0f;
    UNROLL for (int s = 0; s < int(SPLITS); s++) sum += of[s * 16];
    products[m] = sum * scale;
  }
}
#endif
