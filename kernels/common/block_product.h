// The sums of one block of a matrix-matrix product: the loop of common/matmul.h, or a machine's own.
//
// A back end may bring the product of 4-bit and 8-bit matrices in groups of 64 with bfloat scales
// (LILY_NATIVE_PRODUCT), for bfloat activations and whole steps of 128:
//
//   native_product_memory<B>::VECTORS                      threadgroup memory in 16 bytes, at most 48 KiB
//   native_product<BITS, N, K, STRIPS, RAGGED>(sums, memory, rows, n_rows, x, words, sides, n0, tid, sg)
//   tile_store_across(c, p, ld)                            tile_store for the sums that it leaves
//
// with the words and sides of STRIPS matrices. k may be added up in another order within a step, the same for every row.
#pragma once
#include "common/matmul.h"

// Whether a product is the machine's own.
template <bool OWN> struct own_product {};
template <typename T, typename F0, typename F1, int K> struct product_of {
#ifdef LILY_NATIVE_PRODUCT
  enum : bool {
    OWN = is_same_v<T, bfloat> && is_same_v<F0, F1> && K % 128 == 0 &&
          (is_same_v<F0, affine<4, 64, bfloat>> || is_same_v<F0, affine<8, 64, bfloat>>)
  };
#else
  enum : bool { OWN = false };
#endif
  typedef own_product<OWN> kind;
};

// The sums of a block of n_rows rows with the columns from n0 on of one matrix; all have passed LILY_WAIT.
template <int N, int K, bool RAGGED, typename T, typename B, typename M, typename F, bool OWN>
METAL_FUNC void block_product(thread block_sums<B>& sums, threadgroup T* memory, thread const M& rows, uint n_rows,
                              const device T* x, matrix_rows<F> matrix, uint n0, uint tid, uint sg, own_product<OWN>) {
  w_stage<F, B, B::BN> wr;
  begin_w<N>(wr, n0, tid);
  load_w<N, K>(wr, matrix, 0, tid);
  x_stage<T, B> xr;
  begin_x<T, K>(xr, rows, n_rows, tid);
  load_x(xr, x, 0);
  no_stage none;
  multiply<N, K, 1, RAGGED>(sums, memory, n_rows, x, xr, matrix, wr, none, none, tid, sg);
}

// The same with two matrices: half of the columns are those from n0 on of either.
template <int N, int K, bool RAGGED, typename T, typename B, typename M, typename F0, typename F1, bool OWN>
METAL_FUNC void block_product(thread block_sums<B>& sums, threadgroup T* memory, thread const M& rows, uint n_rows,
                              const device T* x, matrix_rows<F0> matrix0, matrix_rows<F1> matrix1, uint n0, uint tid,
                              uint sg, own_product<OWN>) {
  w_stage<F0, B, B::BN / 2> w0;
  w_stage<F1, B, B::BN / 2> w1;
  begin_w<N>(w0, n0, tid);
  begin_w<N>(w1, n0, tid);
  load_w<N, K>(w0, matrix0, 0, tid);
  load_w<N, K>(w1, matrix1, 0, tid);
  x_stage<T, B> xr;
  begin_x<T, K>(xr, rows, n_rows, tid);
  load_x(xr, x, 0);
  multiply<N, K, 2, RAGGED>(sums, memory, n_rows, x, xr, matrix0, w0, matrix1, w1, tid, sg);
}

// Threadgroup memory of a block in 16 bytes: that of the product, and of write_sums.
template <typename T, typename B, typename KIND> struct product_memory {
  enum : int { VECTORS = block_memory<T, B>::VECTORS };
};

// The sums of 16 rows of a simdgroup to its memory, [row][column].
template <typename B, bool OWN>
METAL_FUNC void store_rows(thread block_sums<B>& sums, int i, threadgroup float* to, uint ld, own_product<OWN>) {
  UNROLL for (int j = 0; j < int(B::SN / 16); j++) tile_store(sums.tile[i][j], to + j * 16, ld);
}

#ifdef LILY_NATIVE_PRODUCT
template <typename B>
METAL_FUNC void store_rows(thread block_sums<B>& sums, int i, threadgroup float* to, uint ld, own_product<true>) {
  UNROLL for (int j = 0; j < int(B::SN / 16); j++) tile_store_across(sums.tile[i][j], to + j * 16, ld);
}
template <typename T, typename B> struct product_memory<T, B, own_product<true>> {
  enum : int {
    OWN = native_product_memory<B>::VECTORS,
    SUMS = block_memory<T, B>::SUMS / 16,
    VECTORS = OWN > SUMS ? OWN : SUMS
  };
};
template <int N, int K, bool RAGGED, typename B, typename M, int BITS>
METAL_FUNC void block_product(thread block_sums<B>& sums, threadgroup bfloat* memory, thread const M& rows, uint n_rows,
                              const device bfloat* x, matrix_rows<affine<BITS, 64, bfloat>> matrix, uint n0, uint tid,
                              uint sg, own_product<true>) {
  const device uint* words[1] = {matrix.words};
  const device uint* sides[1] = {(const device uint*)matrix.sides};
  native_product<BITS, N, K, 1, RAGGED>(sums, (threadgroup uint4*)memory, rows, n_rows, x, words, sides, n0, tid, sg);
}
template <int N, int K, bool RAGGED, typename B, typename M, int BITS>
METAL_FUNC void block_product(thread block_sums<B>& sums, threadgroup bfloat* memory, thread const M& rows, uint n_rows,
                              const device bfloat* x, matrix_rows<affine<BITS, 64, bfloat>> matrix0,
                              matrix_rows<affine<BITS, 64, bfloat>> matrix1, uint n0, uint tid, uint sg,
                              own_product<true>) {
  const device uint* words[2] = {matrix0.words, matrix1.words};
  const device uint* sides[2] = {(const device uint*)matrix0.sides, (const device uint*)matrix1.sides};
  native_product<BITS, N, K, 2, RAGGED>(sums, (threadgroup uint4*)memory, rows, n_rows, x, words, sides, n0, tid, sg);
}
#endif

// Writes the sums of a simdgroup through threadgroup memory, 16 rows at a time. GATED: silu(first half) * second half
// of the columns. n0: first column of the block in the output of N columns.
template <int N, bool GATED, bool ACCUMULATE, typename T, typename B, typename M, typename O, bool OWN>
METAL_FUNC void write_sums(thread block_sums<B>& sums, threadgroup float* memory, thread const M& rows, uint n_rows,
                           uint n0, device O* out, uint sg, uint lane, own_product<OWN> kind) {
  constexpr uint LD = block_memory<T, B>::SUMS_LD;
  constexpr uint COLUMNS = GATED ? B::SN / 2 : B::SN, VECTORS = COLUMNS / 4;
  threadgroup float* own = memory + sg * 16 * LD;
  const uint m0 = sg / uint(B::WN) * uint(B::SM);
  n0 += sg % uint(B::WN) * COLUMNS;
  UNROLL for (int i = 0; i < int(B::SM / 16); i++) {
    store_rows(sums, i, own, LD, kind);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (int e = 0; e < int(16 * VECTORS / 32); e++) {
      const uint v = e * 32 + lane, r = v / VECTORS, c = v % VECTORS * 4;
      const uint row = m0 + i * 16 + r, column = n0 + c;
      if (row >= n_rows || column >= uint(N)) continue;
      float4 y = *(threadgroup float4*)(own + r * LD + c);
      if (GATED) y = silu(y) * *(threadgroup float4*)(own + r * LD + COLUMNS + c);
      device O* to = out + size_t(output_row(rows, row)) * N + column;
      if (N % 4 == 0) {
        store4(to, ACCUMULATE ? load4(to) + y : y);
      } else {
        UNROLL for (int t = 0; t < 4; t++) {
          if (column + t < uint(N)) to[t] = O(ACCUMULATE ? float(to[t]) + y[t] : y[t]);
        }
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
