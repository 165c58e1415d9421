// Matrix-matrix products with a packed weight matrix: y[m][n] = sum_k x[m][k] * W[n][k].
//
// A threadgroup computes BM rows by BN columns. In steps of BK it stages x as it is and W dequantised, both in T, in
// threadgroup memory, [row][k] with rows padded by 16 bytes; the simdgroups multiply 16x16 tiles from there. While they
// multiply, the next step's loads are in flight in registers. Expanded weights never reach device memory.
//
// T = bfloat: W is computed in f32 and rounded once. T = float: products are exact f32.
// Order of a sum: k ascending in the machine's tiles, in f32. It does not depend on the rows around it.
#pragma once
#include "common/activation.h"
#include "common/format.h"
#include "common/packet.h"
#include "common/tile.h"
#include "common/vector.h"

// How a threadgroup is cut: BM x BN outputs, steps of BK; WM x WN simdgroups, each SM x SN outputs.
template <int BM_, int BN_, int BK_, int WM_, int WN_> struct block {
  enum : int {
    BM = BM_,
    BN = BN_,
    BK = BK_,
    WM = WM_,
    WN = WN_,
    SM = BM_ / WM_,
    SN = BN_ / WN_,
    THREADS = WM_ * WN_ * 32
  };
};

// Threadgroup memory of a block: x and W of one step, or the sums of 16 rows per simdgroup.
template <typename T, typename B> struct block_memory {
  enum : int {
    LD = B::BK + 16 / int(sizeof(T)),                   // elements from row to row
    STAGED = (B::BM + B::BN) * LD * int(sizeof(T)),     // x, then W
    SUMS_LD = B::SN + 4,
    SUMS = B::WM * B::WN * 16 * SUMS_LD * 4,
    VECTORS = (STAGED > SUMS ? STAGED : SUMS) / 16
  };
};

// The sums of one simdgroup.
template <typename B> struct block_sums {
  tile_c tile[B::SM / 16][B::SN / 16];
};

// ---- staging ------------------------------------------------------------------------------------------------

// One thread's share of a step of x: 16 bytes at a time. Vectors of a row go to neighbouring threads.
template <typename T, typename B> struct x_stage {
  enum : int {
    IN_ROW = B::BK * int(sizeof(T)) / 16,
    COUNT = B::BM * IN_ROW,
    SHARE = (COUNT + B::THREADS - 1) / B::THREADS
  };
  uint4 values[SHARE];
  uint start[SHARE];                                    // of the vector in x at k = 0, in vectors
};

template <typename T, int K, typename B, typename M>
METAL_FUNC void begin_x(thread x_stage<T, B>& s, thread const M& rows, uint n_rows, uint tid) {
  constexpr uint IN_ROW = x_stage<T, B>::IN_ROW;
  UNROLL for (int i = 0; i < int(x_stage<T, B>::SHARE); i++) {
    const uint at = i * uint(B::THREADS) + tid;
    s.start[i] = input_row(rows, min(at / IN_ROW, n_rows - 1)) * uint(K * sizeof(T) / 16) + at % IN_ROW;
  }
}
template <typename T, typename B> METAL_FUNC void load_x(thread x_stage<T, B>& s, const device T* x, uint k) {
  const device uint4* vectors = (const device uint4*)x + k * uint(sizeof(T)) / 16;
  UNROLL for (int i = 0; i < int(x_stage<T, B>::SHARE); i++) s.values[i] = vectors[s.start[i]];
}
template <typename T, typename B>
METAL_FUNC void store_x(thread const x_stage<T, B>& s, threadgroup T* to, uint tid) {
  constexpr uint IN_ROW = x_stage<T, B>::IN_ROW;
  constexpr uint LD = block_memory<T, B>::LD;
  UNROLL for (int i = 0; i < int(x_stage<T, B>::SHARE); i++) {
    const uint at = i * uint(B::THREADS) + tid;
    if (int(x_stage<T, B>::COUNT) % int(B::THREADS) != 0 && at >= uint(x_stage<T, B>::COUNT)) break;
    *(threadgroup uint4*)(to + at / IN_ROW * LD + at % IN_ROW * (16 / sizeof(T))) = s.values[i];
  }
}

METAL_FUNC void store8(threadgroup float* to, float4 low, float4 high) {
  ((threadgroup float4*)to)[0] = low;
  ((threadgroup float4*)to)[1] = high;
}
METAL_FUNC void store8(threadgroup bfloat* to, float4 low, float4 high) {
  const uint2 a = as_type<uint2>(bfloat4(low)), b = as_type<uint2>(bfloat4(high));
  *(threadgroup uint4*)to = uint4(a.x, a.y, b.x, b.y);
}

// Primitive: the 8 nibbles of a word (low first), dequantised.
#ifndef LILY_NATIVE_DEQUANT8
METAL_FUNC void dequant8(threadgroup bfloat* to, uint v, scale_bias<bfloat> group) {
  const float scale = scale_of(group), bias = bias_of(group);
  const float4 low = float4(float(v & 15u), float((v >> 4) & 15u), float((v >> 8) & 15u), float((v >> 12) & 15u));
  const float4 high = float4(float((v >> 16) & 15u), float((v >> 20) & 15u), float((v >> 24) & 15u), float(v >> 28));
  store8(to, low * scale + bias, high * scale + bias);
}
#endif

// A packet's V values, dequantised.
template <int BITS, int GROUP, typename S, int V, typename T>
METAL_FUNC void dequantise(threadgroup T* to, const thread packet<affine<BITS, GROUP, S>, V>& p, scale_bias<S> group) {
  const float scale = scale_of(group), bias = bias_of(group);
  UNROLL for (int i = 0; i < V; i += 8) {
    float q[8];
    UNROLL for (int j = 0; j < 8; j++) q[j] = float(field<BITS>(p.words, i + j)) * scale + bias;
    store8(to + i, float4(q[0], q[1], q[2], q[3]), float4(q[4], q[5], q[6], q[7]));
  }
}
template <int GROUP, int V>
METAL_FUNC void dequantise(threadgroup bfloat* to, const thread packet<affine<4, GROUP, bfloat>, V>& p,
                           scale_bias<bfloat> group) {
  UNROLL for (int i = 0; i < V / 8; i++) dequant8(to + i * 8, p.words[i], group);
}
template <typename S, int V, typename T>
METAL_FUNC void dequantise(threadgroup T* to, const thread packet<dense<S>, V>& p, no_side) {
  float w[V];
  unpack(w, p);
  UNROLL for (int i = 0; i < V; i += 8) {
    store8(to + i, float4(w[i], w[i + 1], w[i + 2], w[i + 3]), float4(w[i + 4], w[i + 5], w[i + 6], w[i + 7]));
  }
}

// One thread's share of a step of N_ROWS rows of a packed matrix: packets of 32 quantised or 8 plain values, which lie
// in one group each. Packets of a row go to neighbouring threads.
template <typename F, typename B, int N_ROWS> struct w_stage {
  enum : int {
    V = F::QUANTISED ? 32 : 8,
    IN_ROW = B::BK / V,
    COUNT = N_ROWS * IN_ROW,
    SHARE = (COUNT + B::THREADS - 1) / B::THREADS
  };
  packet<F, V> values[SHARE];
  typename F::side_t sides[SHARE];
  uint row[SHARE];
};
// Stands for the second matrix of a product that has only one.
struct no_stage {};

// Rows n0 .. n0 + N_ROWS; those beyond the matrix are read from its last row, and their products are not used.
template <int N, typename F, typename B, int N_ROWS>
METAL_FUNC void begin_w(thread w_stage<F, B, N_ROWS>& s, uint n0, uint tid) {
  UNROLL for (int i = 0; i < int(w_stage<F, B, N_ROWS>::SHARE); i++) {
    s.row[i] = min(n0 + (i * uint(B::THREADS) + tid) / uint(w_stage<F, B, N_ROWS>::IN_ROW), uint(N - 1));
  }
}
template <typename S> METAL_FUNC void load_side(thread scale_bias<S>& to, const device scale_bias<S>* sides, uint at) {
  to = sides[at];
}
METAL_FUNC void load_side(thread no_side&, const device no_side*, uint) {}

template <int N, int K, typename F, typename B, int N_ROWS>
METAL_FUNC void load_w(thread w_stage<F, B, N_ROWS>& s, matrix_rows<F> w, uint k0, uint tid) {
  static_assert(size_t(N) * size_t(row_of<F, K>::WORDS) <= 0xffffffffu, "offsets in one expert's matrix are 32 bits");
  typedef w_stage<F, B, N_ROWS> stage;
  UNROLL for (int i = 0; i < int(stage::SHARE); i++) {
    const uint k = k0 + (i * uint(B::THREADS) + tid) % uint(stage::IN_ROW) * uint(stage::V);
    load_packet(s.values[i], w.words + s.row[i] * uint(row_of<F, K>::WORDS), k);
    load_side(s.sides[i], w.sides, s.row[i] * uint(row_of<F, K>::GROUPS) + k / uint(F::GROUP));
  }
}
template <typename T, typename F, typename B, int N_ROWS>
METAL_FUNC void store_w(thread const w_stage<F, B, N_ROWS>& s, threadgroup T* to, uint tid) {
  typedef w_stage<F, B, N_ROWS> stage;
  constexpr uint LD = block_memory<T, B>::LD;
  UNROLL for (int i = 0; i < int(stage::SHARE); i++) {
    const uint at = i * uint(B::THREADS) + tid;
    if (int(stage::COUNT) % int(B::THREADS) != 0 && at >= uint(stage::COUNT)) break;
    const uint row = at / uint(stage::IN_ROW), k = at % uint(stage::IN_ROW) * uint(stage::V);
    dequantise(to + row * LD + k, s.values[i], s.sides[i]);
  }
}

template <int N> METAL_FUNC void begin_w(thread no_stage&, uint, uint) {}
template <int N, int K> METAL_FUNC void load_w(thread no_stage&, no_stage, uint, uint) {}
template <typename T> METAL_FUNC void store_w(thread const no_stage&, threadgroup T*, uint) {}

// ---- product ------------------------------------------------------------------------------------------------

// One step: the first 16 * ROWS rows of the sums of a simdgroup grow by BK products. With two matrices (STRIPS = 2) the
// staged columns are BN / 2 of the first, then BN / 2 of the second, and a simdgroup takes the same SN / 2 of both, in
// that order.
template <int STRIPS, int ROWS, typename T, typename B>
METAL_FUNC void multiply_step(thread block_sums<B>& sums, const threadgroup T* staged, uint sg) {
  constexpr uint LD = block_memory<T, B>::LD;
  constexpr int COLUMNS = B::SN / 16, IN_STRIP = COLUMNS / STRIPS;
  const threadgroup T* xa = staged + sg / uint(B::WN) * uint(B::SM) * LD;
  const threadgroup T* wb = staged + int(B::BM) * LD + sg % uint(B::WN) * uint(B::SN / STRIPS) * LD;
  UNROLL for (int k = 0; k < int(B::BK); k += 16) {
    tile_a<T> a[ROWS];
    tile_b<T> b[COLUMNS];
    UNROLL for (int i = 0; i < ROWS; i++) tile_load_a(a[i], xa + i * 16 * LD + k, LD);
    UNROLL for (int j = 0; j < COLUMNS; j++) {
      const uint column = j / IN_STRIP * int(B::BN / STRIPS) + j % IN_STRIP * 16;
      tile_load_bt(b[j], wb + column * LD + k, LD);
    }
    UNROLL for (int i = 0; i < ROWS; i++) {
      UNROLL for (int j = 0; j < COLUMNS; j++) tile_mma(sums.tile[i][j], a[i], b[j]);
    }
  }
}

// The same for as many 16-row tiles as hold rows, if there are at most 4 of them; rows beyond the last tile stay zero.
template <int STRIPS, typename T, typename B>
METAL_FUNC void multiply_rows(thread block_sums<B>& sums, const threadgroup T* staged, uint tiles, uint sg) {
  constexpr int ROWS = B::SM / 16;
  if (ROWS > 1 && tiles <= 1) {
    if (tiles == 1) multiply_step<STRIPS, 1>(sums, staged, sg);
  } else if (ROWS > 2 && tiles == 2) {
    multiply_step<STRIPS, ROWS < 2 ? ROWS : 2>(sums, staged, sg);
  } else {
    multiply_step<STRIPS, ROWS>(sums, staged, sg);
  }
}

// The sums of a block of n_rows rows, from x and from rows0 (and rows1) of W; xr, w0 and w1 hold the first step.
template <int N, int K, int STRIPS, bool RAGGED, typename T, typename B, typename W0, typename W1, typename R0,
          typename R1>
METAL_FUNC void multiply(thread block_sums<B>& sums, threadgroup T* memory, uint n_rows, const device T* x,
                         thread x_stage<T, B>& xr, R0 rows0, thread W0& w0, R1 rows1, thread W1& w1, uint tid,
                         uint sg) {
  static_assert(K % int(B::BK) == 0, "whole steps");
  static_assert(int(B::SM) % 16 == 0 && int(B::SN) % (16 * STRIPS) == 0, "whole tiles");
  constexpr int LAST = K - int(B::BK), LD = block_memory<T, B>::LD;
  UNROLL for (int i = 0; i < int(B::SM / 16); i++) {
    UNROLL for (int j = 0; j < int(B::SN / 16); j++) tile_zero(sums.tile[i][j]);
  }
  const uint m0 = sg / uint(B::WN) * uint(B::SM);
  const uint tiles = !RAGGED ? uint(B::SM / 16) : n_rows > m0 ? (n_rows - m0 + 15) / 16 : 0;
  for (int k = 0; k <= LAST; k += int(B::BK)) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_x(xr, memory, tid);
    store_w(w0, memory + int(B::BM) * LD, tid);
    store_w(w1, memory + (int(B::BM) + int(B::BN / 2)) * LD, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k < LAST) {
      load_x(xr, x, k + int(B::BK));
      load_w<N, K>(w0, rows0, k + int(B::BK), tid);
      load_w<N, K>(w1, rows1, k + int(B::BK), tid);
    }
    multiply_rows<STRIPS>(sums, memory, tiles, sg);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// ---- rows ---------------------------------------------------------------------------------------------------

// Rows of a block of a dense product: as they come.
struct rows_in_order {
  uint first;
};
METAL_FUNC uint input_row(thread const rows_in_order& m, uint i) { return m.first + i; }
METAL_FUNC uint output_row(thread const rows_in_order& m, uint i) { return m.first + i; }

// Rows of a block of a grouped product: slots of one expert, through `order`. A slot's input is its own row, or that of
// its token where PER_TOKEN slots share one.
template <int PER_TOKEN> struct rows_of_expert {
  const device uint* slots;
};
template <int PER_TOKEN> METAL_FUNC uint input_row(thread const rows_of_expert<PER_TOKEN>& m, uint i) {
  return m.slots[i] / PER_TOKEN;
}
template <int PER_TOKEN> METAL_FUNC uint output_row(thread const rows_of_expert<PER_TOKEN>& m, uint i) {
  return m.slots[i];
}
