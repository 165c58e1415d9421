// Projections of several rows.
#pragma once
#include "common/control.h"
#include "common/block_product.h"

// out[t] = x[t] W^T, or out[t] += x[t] W^T (ACCUMULATE)
//
// x        T [rows, K], T = bfloat or float
// w        packed F [N, K]
// out      f32 [rows, N]
// control  control block
//
// Threadgroup: B::BM rows by B::BN columns, grid (ceil(N / B::BN), ceil(rows / B::BM)): neighbours share rows of x.
// Simdgroup: B::SM x B::SN of them, in 16x16 tiles. Threadgroup memory: block_memory<T, B>.
// Requires K % B::BK == 0. Order of the sums and rounding: common/matmul.h.
template <typename F, typename T, int N, int K, typename B, bool ACCUMULATE, bool ONE>
[[kernel, max_total_threads_per_threadgroup(B::THREADS)]] void matmul(
    const device T* x [[buffer(0)]],
    const device uint* w [[buffer(1)]],
    device float* out [[buffer(2)]],
    const device uint* control [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef typename product_of<T, F, F, K>::kind kind;
  threadgroup float4 memory[product_memory<T, B, kind>::VECTORS];
  const uint n0 = group.x * uint(B::BN);
  LILY_WAIT();
  const uint active = active_rows<ONE>(control);
  rows_in_order rows;
  rows.first = group.y * uint(B::BM);
  if (rows.first >= active) return;
  const uint n_rows = min(active - rows.first, uint(B::BM));
  block_sums<B> sums;
  block_product<N, K, false>(sums, (threadgroup T*)memory, rows, n_rows, x, rows_at<F, K>(w, N, 0), n0, tid, sg, kind());
  write_sums<N, false, ACCUMULATE, T>(sums, (threadgroup float*)memory, rows, n_rows, n0, out, sg, lane, kind());
}

// out[t] = silu(x[t] Wg^T) * (x[t] Wu^T)
//
// x        T [rows, K], T = bfloat or float
// gate     packed FG [N, K]
// up       packed FU [N, K]
// out      O [rows, N], O = bfloat or float
// control  control block
//
// As matmul, with B::BN / 2 columns of both matrices: grid (ceil(N / (B::BN / 2)), ceil(rows / B::BM)). A simdgroup has
// the same columns of both, so the gate is applied where the sums are. Requires B::SN % 32 == 0.
template <typename FG, typename FU, typename T, typename O, int N, int K, typename B, bool ONE>
[[kernel, max_total_threads_per_threadgroup(B::THREADS)]] void gated_matmul(
    const device T* x [[buffer(0)]],
    const device uint* gate [[buffer(1)]],
    const device uint* up [[buffer(2)]],
    device O* out [[buffer(3)]],
    const device uint* control [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef typename product_of<T, FG, FU, K>::kind kind;
  threadgroup float4 memory[product_memory<T, B, kind>::VECTORS];
  const uint n0 = group.x * uint(B::BN / 2);
  LILY_WAIT();
  const uint active = active_rows<ONE>(control);
  rows_in_order rows;
  rows.first = group.y * uint(B::BM);
  if (rows.first >= active) return;
  const uint n_rows = min(active - rows.first, uint(B::BM));
  block_sums<B> sums;
  block_product<N, K, false>(sums, (threadgroup T*)memory, rows, n_rows, x, rows_at<FG, K>(gate, N, 0),
                             rows_at<FU, K>(up, N, 0), n0, tid, sg, kind());
  write_sums<N, true, false, T>(sums, (threadgroup float*)memory, rows, n_rows, n0, out, sg, lane, kind());
}
