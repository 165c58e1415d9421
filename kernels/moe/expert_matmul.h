// Products of slots that are grouped by expert.
#pragma once
#include "common/control.h"
#include "common/block_product.h"

// Finds block `index` among the blocks of all experts, ceil(slots / BM) per expert in ascending order: which expert,
// where its slots start in order, and how many there are. False beyond the last block. Every simdgroup of a
// threadgroup does it for itself; lanes sum over N_EXPERTS / 32 experts each.
template <int N_EXPERTS, int BM>
METAL_FUNC bool find_block(const device uint* offsets, uint index, uint lane, thread uint& expert, thread uint& first,
                           thread uint& n_rows) {
  constexpr int SHARE = (N_EXPERTS + 31) / 32;
  uint starts[SHARE + 1];
  uint blocks = 0;
  UNROLL for (int i = 0; i <= SHARE; i++) {
    starts[i] = offsets[min(lane * SHARE + i, uint(N_EXPERTS))];
    if (i > 0) blocks += (starts[i] - starts[i - 1] + BM - 1) / BM;
  }
  uint end = blocks;
  UNROLL for (ushort d = 1; d < 32; d *= 2) {
    const uint below = simd_shuffle_up(end, d);
    if (lane >= d) end += below;
  }
  uint block = end - blocks;                            // the lane's first one
  expert = 0;
  first = 0;
  n_rows = 0;
  UNROLL for (int i = 0; i < SHARE; i++) {
    const uint count = starts[i + 1] - starts[i], here = (count + BM - 1) / BM;
    if (index >= block && index < block + here) {
      expert = lane * SHARE + i;
      first = starts[i] + (index - block) * BM;
      n_rows = min(starts[i + 1] - first, uint(BM));
    }
    block += here;
  }
  expert = simd_max(expert);
  first = simd_max(first);
  n_rows = simd_max(n_rows);
  return n_rows != 0;
}

// out[slot] = x[slot / PER_TOKEN] W[expert of slot]^T
//
// x        T [slots / PER_TOKEN, K], T = bfloat or float; PER_TOKEN = TOP_K: one row per token, 1: one per slot
// offsets  u32 [N_EXPERTS + 1], order u32 [slots]: as group_by_expert leaves them
// w        packed F [N_EXPERTS][N, K]
// out      f32 [slots, N], by slot index
//
// Threadgroup: B::BM slots of one expert by B::BN columns, grid (ceil(N / B::BN), ceil(slots / B::BM) + N_EXPERTS);
// group y finds its slots from offsets, and those beyond the last block return. The rest as in common/matmul.h.
template <typename F, typename T, int N_EXPERTS, int PER_TOKEN, int N, int K, typename B>
[[kernel, max_total_threads_per_threadgroup(B::THREADS)]] void expert_matmul(
    const device T* x [[buffer(0)]],
    const device uint* offsets [[buffer(1)]],
    const device uint* order [[buffer(2)]],
    const device uint* w [[buffer(3)]],
    device float* out [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef typename product_of<T, F, F, K>::kind kind;
  threadgroup float4 memory[product_memory<T, B, kind>::VECTORS];
  const uint n0 = group.x * uint(B::BN);

  LILY_WAIT();
  uint expert, first, n_rows;
  if (!find_block<N_EXPERTS, B::BM>(offsets, group.y, lane, expert, first, n_rows)) return;
  const matrix_rows<F> matrix = rows_at<F, K>(w, size_t(N_EXPERTS) * N, size_t(expert) * N);
  rows_of_expert<PER_TOKEN> rows;
  rows.slots = order + first;
  block_sums<B> sums;
  block_product<N, K, true>(sums, (threadgroup T*)memory, rows, n_rows, x, matrix, n0, tid, sg, kind());
  write_sums<N, false, false, T>(sums, (threadgroup float*)memory, rows, n_rows, n0, out, sg, lane, kind());
}

// out[slot] = silu(x[slot / PER_TOKEN] Wg[expert of slot]^T) * (x[slot / PER_TOKEN] Wu[expert of slot]^T)
//
// x              T [slots / PER_TOKEN, K], T = bfloat or float
// offsets, order as in expert_matmul
// gate, up       packed FG, FU [N_EXPERTS][N, K]
// out            O [slots, N], by slot index, O = bfloat or float
//
// As expert_matmul, with B::BN / 2 columns of both matrices: grid x = ceil(N / (B::BN / 2)). Requires B::SN % 32 == 0.
template <typename FG, typename FU, typename T, typename O, int N_EXPERTS, int PER_TOKEN, int N, int K, typename B>
[[kernel, max_total_threads_per_threadgroup(B::THREADS)]] void expert_gated_matmul(
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
  typedef typename product_of<T, FG, FU, K>::kind kind;
  threadgroup float4 memory[product_memory<T, B, kind>::VECTORS];
  const uint n0 = group.x * uint(B::BN / 2);

  LILY_WAIT();
  uint expert, first, n_rows;
  if (!find_block<N_EXPERTS, B::BM>(offsets, group.y, lane, expert, first, n_rows)) return;
  const matrix_rows<FG> gates = rows_at<FG, K>(gate, size_t(N_EXPERTS) * N, size_t(expert) * N);
  const matrix_rows<FU> ups = rows_at<FU, K>(up, size_t(N_EXPERTS) * N, size_t(expert) * N);
  rows_of_expert<PER_TOKEN> rows;
  rows.slots = order + first;
  block_sums<B> sums;
  block_product<N, K, true>(sums, (threadgroup T*)memory, rows, n_rows, x, gates, ups, n0, tid, sg, kind());
  write_sums<N, true, false, T>(sums, (threadgroup float*)memory, rows, n_rows, n0, out, sg, lane, kind());
}
