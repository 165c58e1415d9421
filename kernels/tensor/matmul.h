// Projections of several rows on tensor units. Twins of linear/matmul.h: the same operands, grid and threadgroups.
#pragma once
#include "common/control.h"
#include "tensor/block.h"

// out[t] = x[t] W^T, or out[t] += x[t] W^T (ACCUMULATE)
//
// x        bfloat [rows, K]
// w        packed F [N, K]
// out      f32 [rows, N]
// control  control block
//
// Threadgroup: B::BM rows by B::BN columns, grid (ceil(N / B::BN), ceil(rows / B::BM)). Simdgroup: B::SM x B::SN of
// them, one operation of the tensor units per B::BK. Threadgroup memory: tensor_memory<B>. Requires K % B::BK == 0,
// T = bfloat. Order of the sums: tensor/block.h; within 1e-3 of the largest |out| of the twin.
template <typename F, typename T, int N, int K, typename B, bool ACCUMULATE, bool ONE>
[[kernel, max_total_threads_per_threadgroup(B::THREADS)]] void tensor_matmul(
    const device T* x [[buffer(0)]],
    const device uint* w [[buffer(1)]],
    device float* out [[buffer(2)]],
    const device uint* control [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float4 memory[tensor_memory<B>::VECTORS];
  threadgroup bfloat* xs = (threadgroup bfloat*)memory;
  threadgroup bfloat* ws = xs + int(B::BM) * int(block_memory<T, B>::LD);
  const uint n0 = group.x * uint(B::BN);
  const matrix_rows<F> matrix = rows_at<F, K>(w, N, 0);
  w_stage<F, B, B::BN> wr;
  begin_w<N>(wr, n0, tid);
  load_w<N, K>(wr, matrix, 0, tid);

  LILY_WAIT();
  const uint active = active_rows<ONE>(control);
  rows_in_order rows;
  rows.first = group.y * uint(B::BM);
  if (rows.first >= active) return;
  const uint n_rows = min(active - rows.first, uint(B::BM));
  x_stage<T, B> xr;
  begin_x<T, K>(xr, rows, n_rows, tid);
  load_x(xr, x, 0);
  typename simdgroup_product<B, B::SN>::type product;
  auto sums = product.template get_destination_cooperative_tensor<staged_rows, staged_rows, float>();
  no_sums none;
  no_stage no_second;
  multiply_tensor<N, K, 1>(sums, none, xr, x, wr, matrix, no_second, no_second, xs, ws, tid, sg);
  const uint m0 = sg / uint(B::WN) * uint(B::SM);
  write_tensor<N, ACCUMULATE>(sums, rows, m0, n_rows, n0 + sg % uint(B::WN) * uint(B::SN), out);
}

// out[t] = silu(x[t] Wg^T) * (x[t] Wu^T)
//
// x        bfloat [rows, K]
// gate     packed FG [N, K]
// up       packed FU [N, K]
// out      O [rows, N], O = bfloat or float
// control  control block
//
// As tensor_matmul, with B::BN / 2 columns of both matrices: grid (ceil(N / (B::BN / 2)), ceil(rows / B::BM)). Two
// operations per step, one per matrix. Requires B::SN % 32 == 0.
template <typename FG, typename FU, typename T, typename O, int N, int K, typename B, bool ONE>
[[kernel, max_total_threads_per_threadgroup(B::THREADS)]] void tensor_gated_matmul(
    const device T* x [[buffer(0)]],
    const device uint* gate [[buffer(1)]],
    const device uint* up [[buffer(2)]],
    device O* out [[buffer(3)]],
    const device uint* control [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float4 memory[tensor_memory<B>::VECTORS];
  threadgroup bfloat* xs = (threadgroup bfloat*)memory;
  threadgroup bfloat* ws = xs + int(B::BM) * int(block_memory<T, B>::LD);
  const uint n0 = group.x * uint(B::BN / 2);
  const matrix_rows<FG> gates = rows_at<FG, K>(gate, N, 0);
  const matrix_rows<FU> ups = rows_at<FU, K>(up, N, 0);
  w_stage<FG, B, B::BN / 2> gr;
  w_stage<FU, B, B::BN / 2> ur;
  begin_w<N>(gr, n0, tid);
  begin_w<N>(ur, n0, tid);
  load_w<N, K>(gr, gates, 0, tid);
  load_w<N, K>(ur, ups, 0, tid);

  LILY_WAIT();
  const uint active = active_rows<ONE>(control);
  rows_in_order rows;
  rows.first = group.y * uint(B::BM);
  if (rows.first >= active) return;
  const uint n_rows = min(active - rows.first, uint(B::BM));
  x_stage<T, B> xr;
  begin_x<T, K>(xr, rows, n_rows, tid);
  load_x(xr, x, 0);
  typename simdgroup_product<B, B::SN / 2>::type product;
  auto gate_sums = product.template get_destination_cooperative_tensor<staged_rows, staged_rows, float>();
  auto up_sums = product.template get_destination_cooperative_tensor<staged_rows, staged_rows, float>();
  multiply_tensor<N, K, 2>(gate_sums, up_sums, xr, x, gr, gates, ur, ups, xs, ws, tid, sg);
  const uint m0 = sg / uint(B::WN) * uint(B::SM);
  write_gated<N>(gate_sums, up_sums, rows, m0, n_rows, n0 + sg % uint(B::WN) * uint(B::SN / 2), out);
}
