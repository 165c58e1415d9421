// Products of slots that are grouped by expert, on tensor units. Twins of moe/expert_matmul.h: the same operands, grid
// and threadgroups.
#pragma once
#include "moe/expert_matmul.h"
#include "tensor/block.h"

// out[slot] = x[slot / PER_TOKEN] W[expert of slot]^T
//
// x        bfloat [slots / PER_TOKEN, K]; PER_TOKEN = TOP_K: one row per token, 1: one per slot
// offsets  u32 [N_EXPERTS + 1], order u32 [slots]: as group_by_expert leaves them
// w        packed F [N_EXPERTS][N, K]
// out      f32 [slots, N], by slot index
//
// Threadgroup: B::BM slots of one expert by B::BN columns, grid (ceil(N / B::BN), ceil(slots / B::BM) + N_EXPERTS);
// groups beyond the last block return. Simdgroup: B::SM x B::SN, one operation of the tensor units per B::BK.
// Threadgroup memory: tensor_memory<B>. Requires K % B::BK == 0, T = bfloat. Order of the sums: tensor/block.h; within
// 1e-3 of the largest |out| of the twin.
template <typename F, typename T, int N_EXPERTS, int PER_TOKEN, int N, int K, typename B>
[[kernel, max_total_threads_per_threadgroup(B::THREADS)]] void tensor_expert_matmul(
    const device T* x [[buffer(0)]],
    const device uint* offsets [[buffer(1)]],
    const device uint* order [[buffer(2)]],
    const device uint* w [[buffer(3)]],
    device float* out [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 memory[tensor_memory<B>::VECTORS];
  threadgroup bfloat* xs = (threadgroup bfloat*)memory;
  threadgroup bfloat* ws = xs + int(B::BM) * int(block_memory<T, B>::LD);
  const uint n0 = group.x * uint(B::BN);

  LILY_WAIT();
  uint expert, first, n_rows;
  if (!find_block<N_EXPERTS, B::BM>(offsets, group.y, lane, expert, first, n_rows)) return;
  const matrix_rows<F> matrix = rows_at<F, K>(w, size_t(N_EXPERTS) * N, size_t(expert) * N);
  w_stage<F, B, B::BN> wr;
  begin_w<N>(wr, n0, tid);
  load_w<N, K>(wr, matrix, 0, tid);
  rows_of_expert<PER_TOKEN> rows;
  rows.slots = order + first;
  x_stage<T, B> xr;
  begin_x<T, K>(xr, rows, n_rows, tid);
  load_x(xr, x, 0);
  typename simdgroup_product<B, B::SN>::type product;
  auto sums = product.template get_destination_cooperative_tensor<staged_rows, staged_rows, float>();
  no_sums none;
  no_stage no_second;
  multiply_tensor<N, K, 1>(sums, none, xr, x, wr, matrix, no_second, no_second, xs, ws, tid, sg);
  const uint m0 = sg / uint(B::WN) * uint(B::SM);
  write_tensor<N, false>(sums, rows, m0, n_rows, n0 + sg % uint(B::WN) * uint(B::SN), out);
}

// out[slot] = silu(x[slot / PER_TOKEN] Wg[expert of slot]^T) * (x[slot / PER_TOKEN] Wu[expert of slot]^T)
//
// x              bfloat [slots / PER_TOKEN, K]
// offsets, order as in tensor_expert_matmul
// gate, up       packed FG, FU [N_EXPERTS][N, K]
// out            O [slots, N], by slot index, O = bfloat or float
//
// As tensor_expert_matmul, with B::BN / 2 columns of both matrices: grid x = ceil(N / (B::BN / 2)). Two operations per
// step, one per matrix. Requires B::SN % 32 == 0.
template <typename FG, typename FU, typename T, typename O, int N_EXPERTS, int PER_TOKEN, int N, int K, typename B>
[[kernel, max_total_threads_per_threadgroup(B::THREADS)]] void tensor_expert_gated_matmul(
    const device T* x [[buffer(0)]],
    const device uint* offsets [[buffer(1)]],
    const device uint* order [[buffer(2)]],
    const device uint* gate [[buffer(3)]],
    const device uint* up [[buffer(4)]],
    device O* out [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 memory[tensor_memory<B>::VECTORS];
  threadgroup bfloat* xs = (threadgroup bfloat*)memory;
  threadgroup bfloat* ws = xs + int(B::BM) * int(block_memory<T, B>::LD);
  const uint n0 = group.x * uint(B::BN / 2);

  LILY_WAIT();
  uint expert, first, n_rows;
  if (!find_block<N_EXPERTS, B::BM>(offsets, group.y, lane, expert, first, n_rows)) return;
  const matrix_rows<FG> gates = rows_at<FG, K>(gate, size_t(N_EXPERTS) * N, size_t(expert) * N);
  const matrix_rows<FU> ups = rows_at<FU, K>(up, size_t(N_EXPERTS) * N, size_t(expert) * N);
  w_stage<FG, B, B::BN / 2> gr;
  w_stage<FU, B, B::BN / 2> ur;
  begin_w<N>(gr, n0, tid);
  begin_w<N>(ur, n0, tid);
  load_w<N, K>(gr, gates, 0, tid);
  load_w<N, K>(ur, ups, 0, tid);
  rows_of_expert<PER_TOKEN> rows;
  rows.slots = order + first;
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
