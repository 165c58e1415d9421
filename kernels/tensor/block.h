// The product of a staged block on tensor units (Metal 4, matmul2d): twin of multiply in common/matmul.h
// and of write_sums in common/block_product.h, with the same staging and the same operands.
//
// Each simdgroup runs its own operation over what it owns, SM x SN sums of the block, and keeps the sums in a
// cooperative tensor: its lanes hold them, which lane holds which is the machine's business. Both operands are staged
// in threadgroup memory as whole blocks, rows beyond the edges included, so no extent of an operation is ragged; what
// lies beyond an edge is not written.
//
// Operands are bfloat, sums f32, k ascending in steps of BK; inside a step the order is the machine's. So the sums may
// differ from the twin's in the last bits, and do not depend on the rows around.
#pragma once
#include "common/matmul.h"

// Threadgroup memory of a block, in 16 bytes: x and W of one step. Sums never go there.
template <typename B> struct tensor_memory {
  enum : int { VECTORS = block_memory<bfloat, B>::STAGED / 16 };
};

// SM x COLUMNS sums += [SM x BK] [COLUMNS x BK]^T. Relaxed precision is about float operands; for bfloat it only
// selects the quick form.
template <typename B, int COLUMNS> struct simdgroup_product {
  typedef mpp::tensor_ops::matmul2d<
      mpp::tensor_ops::matmul2d_descriptor(B::SM, COLUMNS, B::BK, false, true, true,
                                           mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate),
      execution_simdgroup>
      type;
};

// Rows of BK staged values, LD apart. Operands may not be const, although they are only read.
typedef tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline> staged_rows;

template <typename B, int ROWS> METAL_FUNC staged_rows rows_from(threadgroup bfloat* p) {
  return staged_rows(p, dextents<int32_t, 2>(int(B::BK), ROWS),
                     array<int32_t, 2>({1, int(block_memory<bfloat, B>::LD)}));
}

// Stands for the sums of the second matrix of a product that has only one.
struct no_sums {};

// An operation adds to what its sums hold, and they hold nothing defined at first.
template <typename S> METAL_FUNC void clear(thread S& sums) {
  UNROLL for (ushort i = 0; i < sums.get_capacity(); i++) {
    if (sums.is_valid_element(i)) sums[i] = 0.0f;
  }
}
METAL_FUNC void clear(thread no_sums&) {}

// One step of one matrix. All lanes of the simdgroup call together.
template <typename B, int COLUMNS, typename S>
METAL_FUNC void multiply_staged(thread S& sums, threadgroup bfloat* xa, threadgroup bfloat* wb) {
  staged_rows a = rows_from<B, B::SM>(xa);
  staged_rows b = rows_from<B, COLUMNS>(wb);
  typename simdgroup_product<B, COLUMNS>::type product;
  product.run(a, b, sums);
}
template <typename B, int COLUMNS>
METAL_FUNC void multiply_staged(thread no_sums&, threadgroup bfloat*, threadgroup bfloat*) {}

// The sums of a block, of one matrix (W1 = no_stage, S1 = no_sums, STRIPS = 1) or of two (STRIPS = 2).
template <int N, int K, int STRIPS, typename B, typename W0, typename W1, typename R0, typename R1, typename S0,
          typename S1>
METAL_FUNC void multiply_tensor(thread S0& sums0, thread S1& sums1, thread x_stage<bfloat, B>& xr,
                                const device bfloat* x, thread W0& w0, R0 rows0, thread W1& w1, R1 rows1,
                                threadgroup bfloat* xs, threadgroup bfloat* ws, uint tid, uint sg) {
  static_assert(K % int(B::BK) == 0, "whole steps");
  constexpr uint LD = block_memory<bfloat, B>::LD;
  constexpr int COLUMNS = B::SN / STRIPS;
  threadgroup bfloat* second = ws + int(B::BN / 2) * int(LD);
  threadgroup bfloat* xa = xs + sg / uint(B::WN) * uint(B::SM) * LD;
  const uint strip = sg % uint(B::WN) * uint(COLUMNS) * LD;
  clear(sums0);
  clear(sums1);
  for (int k = 0; k < K; k += int(B::BK)) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_x(xr, xs, tid);
    store_w(w0, ws, tid);
    store_w(w1, second, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + int(B::BK) < K) {
      load_x(xr, x, k + int(B::BK));
      load_w<N, K>(w0, rows0, k + int(B::BK), tid);
      load_w<N, K>(w1, rows1, k + int(B::BK), tid);
    }
    multiply_staged<B, COLUMNS>(sums0, xa, ws + strip);
    multiply_staged<B, COLUMNS>(sums1, xa, second + strip);
  }
}

// Writes the sums of a simdgroup, each lane its own: value(i) of element i. n0: first column of the simdgroup in the
// output of N columns, m0: its first row in the block.
template <int N, bool ACCUMULATE, typename M, typename O, typename S>
METAL_FUNC void write_tensor(thread S& sums, thread const M& rows, uint m0, uint n_rows, uint n0, device O* out) {
  UNROLL for (ushort i = 0; i < sums.get_capacity(); i++) {
    if (!sums.is_valid_element(i)) continue;
    const auto at = sums.get_multidimensional_index(i);  // column, row
    const uint row = m0 + uint(at[1]), column = n0 + uint(at[0]);
    if (row >= n_rows || column >= uint(N)) continue;
    device O* to = out + size_t(output_row(rows, row)) * N + column;
    const float y = sums[i];
    *to = O(ACCUMULATE ? float(*to) + y : y);
  }
}

// The same for silu(gates) * ups: both have one form, so an element is in the same lane of both.
template <int N, typename M, typename O, typename S>
METAL_FUNC void write_gated(thread S& gates, thread S& ups, thread const M& rows, uint m0, uint n_rows, uint n0,
                            device O* out) {
  UNROLL for (ushort i = 0; i < gates.get_capacity(); i++) {
    if (!gates.is_valid_element(i)) continue;
    const auto at = gates.get_multidimensional_index(i);  // column, row
    const uint row = m0 + uint(at[1]), column = n0 + uint(at[0]);
    if (row >= n_rows || column >= uint(N)) continue;
    const float gate = gates[i], up = ups[i];
    out[size_t(output_row(rows, row)) * N + column] = O(silu(gate) * up);
  }
}
